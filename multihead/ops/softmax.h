// Softmax and log-softmax along one axis.
#pragma once

#include "multihead/core/tensor/tensor.h"

namespace multihead {

/// exp(x - max) / sum(exp(x - max)).
///
/// Dtypes    f32, f64; bf16, f16: as f32, rounded once, f32 under Autocast
/// Gradient  x: y ⊙ (dy - ⟨dy, y⟩)
/// Rows      all -inf gives zeros and no gradient; NaN or +inf gives NaN
/// Throws    DtypeError, ShapeError (axis)
Tensor softmax(const Tensor& x, int axis = -1);

/// x - max - log(sum(exp(x - max))). A row of -inf stays -inf and has no gradient.
Tensor log_softmax(const Tensor& x, int axis = -1);

}  // namespace multihead
