// Squares of four words.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_SIMD_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_SIMD_TRANSPOSE_INL_H_
#undef MULTIHEAD_KERNELS_SIMD_TRANSPOSE_INL_H_
#else
#define MULTIHEAD_KERNELS_SIMD_TRANSPOSE_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
// Transposes the square blocks of n rows, where n words fill 128 bits (4 of f32, 2 of f64): out[j] has in its
// 128-bit block b element n b + j of each row. `out` may be `rows`.
template <class D>
HWY_INLINE void TransposeWithinBlocks(D d, const hn::Vec<D>* rows, hn::Vec<D>* out) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    const auto low = hn::InterleaveLower(d, rows[0], rows[1]);
    out[1] = hn::InterleaveUpper(d, rows[0], rows[1]);
    out[0] = low;
  } else {
    const hn::Repartition<double, D> pairs;
    const auto ab_low = hn::BitCast(pairs, hn::InterleaveLower(d, rows[0], rows[1]));
    const auto ab_high = hn::BitCast(pairs, hn::InterleaveUpper(d, rows[0], rows[1]));
    const auto cd_low = hn::BitCast(pairs, hn::InterleaveLower(d, rows[2], rows[3]));
    const auto cd_high = hn::BitCast(pairs, hn::InterleaveUpper(d, rows[2], rows[3]));
    out[0] = hn::BitCast(d, hn::InterleaveLower(pairs, ab_low, cd_low));
    out[1] = hn::BitCast(d, hn::InterleaveUpper(pairs, ab_low, cd_low));
    out[2] = hn::BitCast(d, hn::InterleaveLower(pairs, ab_high, cd_high));
    out[3] = hn::BitCast(d, hn::InterleaveUpper(pairs, ab_high, cd_high));
  }
}
#endif

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
