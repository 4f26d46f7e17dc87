// Dot products of bf16 pairs (AVX512_BF16).

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_SIMD_DOT_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_SIMD_DOT_PAIRS_INL_H_
#undef MULTIHEAD_KERNELS_SIMD_DOT_PAIRS_INL_H_
#else
#define MULTIHEAD_KERNELS_SIMD_DOT_PAIRS_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_AVX3

using PairSums = hn::Vec<hn::ScalableTag<float>>;

// sum + a.lower · b.lower + a.upper · b.upper. Highway 1.0.3 does not know the instruction and its target has
// no name for the compiler; the callers have asked the CPU (bf16_dots()).
HWY_INLINE PairSums DotPairs(PairSums sum, PairSums a, PairSums b) {
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
  return sum;
}

#endif  // HWY_AVX3

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
