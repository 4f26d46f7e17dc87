// Shared by softmax and cross-entropy: the maximum of a row and the exponentials below it.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_REDUCE_ROW_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_REDUCE_ROW_EXP_INL_H_
#undef MULTIHEAD_KERNELS_REDUCE_ROW_EXP_INL_H_
#else
#define MULTIHEAD_KERNELS_REDUCE_ROW_EXP_INL_H_
#endif

#include "multihead/kernels/reduce/chains-inl.h"
#include "multihead/kernels/simd/lanes-inl.h"
#include "multihead/kernels/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

inline constexpr float kMinusInfinity = -__builtin_inff();

struct ExpNonPositiveOp {
  HWY_INLINE FloatVec operator()(FloatVec x) const { return ExpNonPositive(Floats(), x); }
};

template <class T>
HWY_INLINE float RowMax(const T* x, int64_t size) {
  Pack max = Set(kMinusInfinity);
  ForPacks(size, [&](int64_t i, auto at) HWY_ATTR { max = Max(max, at.Load(x + i, kMinusInfinity)); });
  return Max(max);
}

// y = exp(x - max); returns the sum. Lanes past the end load -inf and add nothing.
template <class T>
HWY_INLINE float RowExp(const T* x, float max, float* y, int64_t size) {
  return SumOfChains(size, [&](int64_t from, int64_t n) HWY_ATTR {
    const Pack shift = Set(max);
    Pack sum = Set(0);
    ForPacks(n, [&](int64_t i, auto at) HWY_ATTR {
      const Pack e = Map(ExpNonPositiveOp(), Sub(at.Load(x + from + i, kMinusInfinity), shift));
      at.Store(e, y + from + i);
      sum = Add(sum, e);
    });
    return Sum(sum);
  });
}

template <class T>
HWY_INLINE float RowExpSum(const T* x, float max, int64_t size) {
  return SumOfChains(size, [&](int64_t from, int64_t n) HWY_ATTR {
    const Pack shift = Set(max);
    Pack sum = Set(0);
    ForPacks(n, [&](int64_t i, auto at) HWY_ATTR {
      sum = Add(sum, Map(ExpNonPositiveOp(), Sub(at.Load(x + from + i, kMinusInfinity), shift)));
    });
    return Sum(sum);
  });
}

HWY_INLINE float LogOf(float x) {
  const hn::CappedTag<float, 1> d;
  return hn::GetLane(Log(d, hn::Set(d, x)));
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
