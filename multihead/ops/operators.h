// Arithmetic of tensors as it is written: a + b, 2.0 * x, 1.0 / x. A new tensor each; see elementwise.h.
#pragma once

#include "multihead/core/tensor/tensor.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"

namespace multihead {

namespace detail {

/// op(x, number), of 16-bit numbers as f32, rounded once: they may not hold the number.
template <class Op>
Tensor with_number(const Tensor& x, double number, const Op& op) {
  const Dtype wide = size_of(x.dtype()) == 2 ? Dtype::f32 : x.dtype();
  return cast(op(cast(x, wide), Tensor::full({}, number, wide)), x.dtype());
}

}  // namespace detail

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
  return detail::with_number(x, divisor, [](const Tensor& a, const Tensor& b) { return div(a, b); });
}
inline Tensor operator/(double dividend, const Tensor& x) {
  return detail::with_number(x, dividend, [](const Tensor& a, const Tensor& b) { return div(b, a); });
}

}  // namespace multihead
