// Embedding lookup.
#pragma once

#include "multihead/core/tensor/tensor.h"

namespace multihead {

/// out[..., :] = weight[ids[...], :].
///
/// Shapes    weight [V, E], ids [...] -> [..., E]
/// Dtypes    weight any, ids i64 or i32
/// Gradient  weight: rows are accumulated in the order of ids, the same bits at any thread count
/// Throws    ShapeError, DtypeError, ValueError (an id outside [0, V), before anything is computed)
Tensor embedding(const Tensor& weight, const Tensor& ids);

}  // namespace multihead
