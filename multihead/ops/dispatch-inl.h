// Shared by all ops: dispatch on f32 and f64, row-major inputs.
#pragma once

#include <functional>

#include "multihead/core/error.h"
#include "multihead/core/tensor/tensor.h"
#include "multihead/kernels/matmul/gemm.h"
#include "multihead/ops/shape.h"

namespace multihead::detail {

/// Throws DtypeError unless x is f32 or f64.
inline void check_real(const char* who, const char* argument, const Tensor& x) {
  MH_CHECK(x.dtype() == Dtype::f32 || x.dtype() == Dtype::f64, DtypeError, who, ": ", argument,
           " must be f32 or f64, got ", x.dtype());
}

/// Throws DtypeError unless `x` has the dtype of `first`. Which of the two is the wrong one, only the caller knows.
inline void check_same_dtype(const char* who, const char* argument, const Tensor& x,
                             const char* first_argument, const Tensor& first) {
  MH_CHECK(x.dtype() == first.dtype(), DtypeError, who, ": ", first_argument, " is ", first.dtype(), " but ",
           argument, " is ", x.dtype(), ": convert ", first_argument, " to ", x.dtype(), " or ", argument,
           " to ", first.dtype());
}

/// f(float{}) or f(double{}), after check_real.
template <class F>
void dispatch_real(Dtype dtype, F&& f) {
  if (dtype == Dtype::f64) {
    f(double{});
  } else {
    f(float{});
  }
}

/// Row-major memory with x's elements (its own if possible), without gradient.
inline Tensor dense(const Tensor& x) { return x.contiguous(); }

/// A gradient in row-major memory, and memory for the result: the same if nothing else holds it.
struct ReusedGradient {
  Tensor from, to;
};
ReusedGradient reusable(Tensor gradient);

/// An input kept for the backward: its elements or, if its op can recompute it, the recipe.
class Kept {
 public:
  Kept() = default;
  Kept(const Tensor& input, Tensor elements);
  /// Without gradient. Call once.
  Tensor take();

 private:
  Tensor elements_;
  std::function<Tensor()> rebuild_;
};

/// data() of a tensor that may be undefined.
template <class T>
T* data_or_null(const Tensor& x) {
  return x.defined() ? x.data<T>() : nullptr;
}

/// The elements of a tensor that may be undefined.
inline kernels::GemmMatrix matrix_of(const Tensor& x) {
  return x.defined() ? kernels::GemmMatrix(x.raw(), x.dtype()) : kernels::GemmMatrix();
}

/// f(pointers…) to the elements of tensors of one type, f32 or f64: null where a tensor is undefined. `first`
/// is not.
template <class F, class... Tensors>
void with_data(F&& f, const Tensor& first, const Tensors&... others) {
  dispatch_real(first.dtype(), [&](auto zero) {
    using T = decltype(zero);
    f(first.data<T>(), data_or_null<T>(others)...);
  });
}

}  // namespace multihead::detail
