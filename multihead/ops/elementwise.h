// Elementwise arithmetic, and sums.
//
// Binary ops broadcast as in NumPy: shapes are aligned at the last axis, sizes are equal or 1. Gradients are
// summed to the input's shape. Inputs may have any strides; results are contiguous.
//
// Dtypes    f32, f64, both inputs the same; bf16, f16: as f32, rounded once, and f32 where types differ
// Throws    ShapeError (shapes do not broadcast), DtypeError
#pragma once

#include "multihead/core/tensor/tensor.h"

namespace multihead {

Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);

Tensor scale(const Tensor& x, double factor);      ///< x · factor
Tensor add_scalar(const Tensor& x, double value);  ///< x + value
Tensor neg(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor square(const Tensor& x);
Tensor abs(const Tensor& x);          ///< gradient at 0: 0
Tensor softplus(const Tensor& x);     ///< log(1 + e^x)
Tensor log_sigmoid(const Tensor& x);  ///< log(1 / (1 + e^-x)), where log(sigmoid(x)) would be -inf

/// mask ? a : b. `mask` is bool; all three broadcast together. Gradient: a, b.
Tensor where(const Tensor& mask, const Tensor& a, const Tensor& b);

/// Sum or mean of all elements, shape []. The mean of an empty tensor is 0.
Tensor sum(const Tensor& x);
Tensor mean(const Tensor& x);
/// Sum over one axis, which is removed or kept with size 1.
Tensor sum(const Tensor& x, int axis, bool keep_axis = false);

/// Sums x down to `shape`, which must broadcast to x's: the gradient of expand().
Tensor sum_to(const Tensor& x, const Shape& shape);

}  // namespace multihead
