// Softmax and its logarithm along one axis.
#pragma once

#include "multihead/core/tensor.h"

namespace multihead {

/// exp(x - max) / sum(exp(x - max)).
///
/// Dtypes    f32, f64
/// Gradient  x: y ⊙ (dy - ⟨dy, y⟩)
/// Rows      all -inf give zeros and no gradient; NaN or +inf give NaN
/// Throws    DtypeError, ShapeError (axis)
Tensor softmax(const Tensor& x, int axis = -1);

/// x - max - log(sum(exp(x - max))). A row of -inf stays -inf, without gradient.
Tensor log_softmax(const Tensor& x, int axis = -1);

}  // namespace multihead
