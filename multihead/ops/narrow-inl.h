// 16-bit inputs of ops. All but products and attention compute in f32 and round the result once: x is widened
// by a recorded cast() that keeps the 16-bit elements for the backward. Gradients are f32.
#pragma once

#include <type_traits>

#include "multihead/core/tensor/tensor.h"
#include "multihead/ops/dispatch-inl.h"

namespace multihead::detail {

/// bf16 or f16. False if undefined.
bool is_narrow(const Tensor& x);
/// Throws DtypeError unless x is f32, f64 or bf16: for ops that read bf16 where it lies.
void check_real_or_bf16(const char* op, const char* argument, const Tensor& x);
/// Whether an op that reads bf16 where it lies must take f32 nevertheless: f16, or bf16 beside another type.
bool must_widen(const Tensor& a, const Tensor& b);
/// x itself, or as f32 if it is narrow.
Tensor widened(const Tensor& x);
/// The type of op(a, b) on f32 if one is narrow: theirs, or f32.
Dtype common_dtype(const Tensor& a, const Tensor& b);
/// f32 under Autocast, else the type given: of a norm, softmax …
Dtype statistics_dtype(Dtype dtype);
/// An input of a product or of attention: bf16 if it is f32 and Autocast says so.
Tensor for_product(const Tensor& x);

/// The type of the gradients of elements of type T, as arithmetic_dtype().
template <class T>
using GradientOf = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;

/// f(BFloat16{}), f(float{}) or f(double{}): for ops that read bf16 where it lies.
template <class F>
void dispatch_elements(Dtype dtype, F&& f) {
  if (dtype == Dtype::bf16) return f(BFloat16{});
  dispatch_real(dtype, f);
}

}  // namespace multihead::detail
