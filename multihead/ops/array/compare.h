// Comparisons, the larger and smaller of two, and powers. Shapes broadcast as in NumPy.
//
// Throws    ShapeError (shapes do not broadcast), DtypeError
#pragma once

#include "multihead/core/tensor/tensor.h"

namespace multihead {

/// bool. Both operands have one dtype, any; nothing but not_equal holds with NaN. No gradient.
Tensor equal(const Tensor& a, const Tensor& b);
Tensor not_equal(const Tensor& a, const Tensor& b);
Tensor less(const Tensor& a, const Tensor& b);
Tensor less_equal(const Tensor& a, const Tensor& b);
Tensor greater(const Tensor& a, const Tensor& b);
Tensor greater_equal(const Tensor& a, const Tensor& b);

/// NaN if one is. Where both are equal, each gets half of the gradient.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);
/// max(low, min(x, high)), low <= high. The gradient is 1 where low <= x <= high, else 0.
Tensor clamp(const Tensor& x, double low, double high);

/// a^b, computed in f64. Gradient: b a^(b-1), and a^b ln(a) (0 where a is 0 and b is not negative).
Tensor pow(const Tensor& a, const Tensor& b);
Tensor pow(const Tensor& x, double exponent);

}  // namespace multihead
