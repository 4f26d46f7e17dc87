// Broadcast pairs of numbers without a gradient, for ops that bring their own. Internal to ops.
#pragma once

#include "multihead/core/tensor/tensor.h"
#include "multihead/kernels/elementwise/elementwise.h"

namespace multihead::detail {

/// op(a, b); f32, f64, bf16. Throws ShapeError, DtypeError, naming `who`.
Tensor binary(const char* who, kernels::Binary op, const Tensor& a, const Tensor& b);

}  // namespace multihead::detail
