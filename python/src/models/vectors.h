// Sparse and multi-vector encoders, and the search among vectors: a part of bind_embed().
#pragma once

#include "python/src/bindings.h"

namespace multihead::python {

void bind_vectors(nanobind::module_& m);

}  // namespace multihead::python
