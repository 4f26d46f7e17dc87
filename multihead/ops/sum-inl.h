// Sums that are not rounded yet. Internal.
#pragma once

#include "multihead/core/tensor/tensor.h"

namespace multihead::detail {

/// As sum(), in f32 if x is bf16 or f16: for what goes on from there.
Tensor wide_sum(const Tensor& x, int axis, bool keep_axis);

}  // namespace multihead::detail
