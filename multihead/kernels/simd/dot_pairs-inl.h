// Dot products of bf16 pairs (AVX512_BF16, FEAT_BF16).

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_SIMD_DOT_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_SIMD_DOT_PAIRS_INL_H_
#undef MULTIHEAD_KERNELS_SIMD_DOT_PAIRS_INL_H_
#else
#define MULTIHEAD_KERNELS_SIMD_DOT_PAIRS_INL_H_
#endif

#include "hwy/highway.h"
#include "multihead/kernels/simd/arm_numbers.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using PairSums = hn::Vec<hn::ScalableTag<float>>;

#if HWY_TARGET == HWY_AVX3

// sum + a.lower · b.lower + a.upper · b.upper. Highway 1.0.3 does not know the instruction and its target has
// no name for the compiler; the callers have asked the CPU (bf16_dots()).
HWY_INLINE PairSums DotPairs(PairSums sum, PairSums a, PairSums b) {
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
  return sum;
}

#elif HWY_TARGET == HWY_NEON

// bfdot. Rounds to odd, and takes and gives subnormals as zero.
HWY_INLINE PairSums DotPairs(PairSums sum, PairSums a, PairSums b) {
  __asm__(MH_NUMBERED "0x6e40fc00" : "+w"(sum.raw) : "w"(a.raw), "w"(b.raw));
  return sum;
}

// bfmmla: sum + a · bᵀ of two rows of two pairs each, [a0·b0, a0·b1, a1·b0, a1·b1]; each of them is two DotPairs(), the
// first pair's first.
HWY_INLINE PairSums SquareOfPairs(PairSums sum, PairSums a, PairSums b) {
  __asm__(MH_NUMBERED "0x6e40ec00" : "+w"(sum.raw) : "w"(a.raw), "w"(b.raw));
  return sum;
}

// bfcvtn: four bf16 to nearest even, in the lower half.
HWY_INLINE uint16x4_t RoundFour(PairSums x) {
  uint16x8_t rounded;
  __asm__(MH_REGISTERS ".inst 0x0ea16800 + .Lmh_%0 + (.Lmh_%1 << 5)" : "=w"(rounded) : "w"(x.raw));
  return vget_low_u16(rounded);
}

#endif  // HWY_NEON

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
