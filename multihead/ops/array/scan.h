// Running sums.
#pragma once

#include "multihead/core/tensor/tensor.h"

namespace multihead {

/// y_i = x_0 + … + x_i along an axis or, reversed, x_i + … + x_last. Summed in f64, in the order of the axis.
///
/// Dtypes    f32, f64; bf16, f16: as f32
/// Gradient  x: the running sum from the other end
/// Throws    ShapeError, DtypeError
Tensor cumsum(const Tensor& x, int axis, bool reverse = false);

}  // namespace multihead
