// What module.cc binds of tensor/, besides python/src/bindings.h.
#pragma once

#include <nanobind/nanobind.h>

namespace multihead::python {

void bind_custom_op(nanobind::module_& m);  // custom_op.cc: gradients in Python
void bind_array_ops(nanobind::module_& m);  // ops_array.cc

}  // namespace multihead::python
