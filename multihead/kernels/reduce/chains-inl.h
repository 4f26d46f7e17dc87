// Long sums in parts.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_REDUCE_CHAINS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_REDUCE_CHAINS_INL_H_
#undef MULTIHEAD_KERNELS_REDUCE_CHAINS_INL_H_
#else
#define MULTIHEAD_KERNELS_REDUCE_CHAINS_INL_H_
#endif

#include "multihead/kernels/simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Elements that a chain of f32 additions may take, because its error grows with its length.
inline constexpr int64_t kSumChain = 1024;

// Σ part(begin, count) over parts of kSumChain elements, the last of fewer, added in f64.
template <class Part>
HWY_INLINE float SumOfChains(int64_t size, const Part& part) {
  if (size <= kSumChain) return part(0, size);
  double total = 0;
  for (int64_t begin = 0; begin < size; begin += kSumChain)
    total += part(begin, HWY_MIN(kSumChain, size - begin));
  return static_cast<float>(total);
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
