// Arithmetic of tensors as it is written: a + b, 2.0 * x, 1.0 / x. A new tensor each; see elementwise.h.
#pragma once

#include "multihead/core/tensor/tensor.h"
#include "multihead/ops/elementwise.h"

namespace multihead {

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator-(const Tensor& x) { return neg(x); }

inline Tensor operator+(const Tensor& x, double value) { return add_scalar(x, value); }
inline Tensor operator+(double value, const Tensor& x) { return add_scalar(x, value); }
inline Tensor operator-(const Tensor& x, double value) { return add_scalar(x, -value); }
inline Tensor operator-(double value, const Tensor& x) { return add_scalar(neg(x), value); }
inline Tensor operator*(const Tensor& x, double factor) { return scale(x, factor); }
inline Tensor operator*(double factor, const Tensor& x) { return scale(x, factor); }
inline Tensor operator/(const Tensor& x, double divisor) {
  return div(x, Tensor::full({}, divisor, x.dtype()));
}
inline Tensor operator/(double dividend, const Tensor& x) {
  return div(Tensor::full({}, dividend, x.dtype()), x);
}

}  // namespace multihead
