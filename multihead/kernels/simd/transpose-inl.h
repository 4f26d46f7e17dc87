// Transposes of squares in registers.

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

#if HWY_TARGET == HWY_AVX3
// x[c] <- column c of the 16x16 matrix with rows x[r]: 4x4 within 128-bit lanes, then 4x4 of lanes.
HWY_INLINE void TransposeRegisters(hn::Vec<hn::ScalableTag<float>> (&x)[16]) {
  using Vec = hn::Vec<hn::ScalableTag<float>>;
  const hn::ScalableTag<float> d;
  const hn::Repartition<double, decltype(d)> dd;
#pragma GCC unroll 4
  for (int g = 0; g < 16; g += 4) {
    const auto a = hn::BitCast(dd, hn::InterleaveLower(d, x[g], x[g + 1]));
    const auto b = hn::BitCast(dd, hn::InterleaveLower(d, x[g + 2], x[g + 3]));
    const auto e = hn::BitCast(dd, hn::InterleaveUpper(d, x[g], x[g + 1]));
    const auto h = hn::BitCast(dd, hn::InterleaveUpper(d, x[g + 2], x[g + 3]));
    x[g] = hn::BitCast(d, hn::InterleaveLower(dd, a, b));
    x[g + 1] = hn::BitCast(d, hn::InterleaveUpper(dd, a, b));
    x[g + 2] = hn::BitCast(d, hn::InterleaveLower(dd, e, h));
    x[g + 3] = hn::BitCast(d, hn::InterleaveUpper(dd, e, h));
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {  // x[4g + j] holds rows 4g … 4g + 3 of columns j, 4 + j, 8 + j, 12 + j
    const __m512 a = _mm512_shuffle_f32x4(x[j].raw, x[4 + j].raw, 0x44);
    const __m512 b = _mm512_shuffle_f32x4(x[j].raw, x[4 + j].raw, 0xEE);
    const __m512 e = _mm512_shuffle_f32x4(x[8 + j].raw, x[12 + j].raw, 0x44);
    const __m512 h = _mm512_shuffle_f32x4(x[8 + j].raw, x[12 + j].raw, 0xEE);
    x[j] = Vec{_mm512_shuffle_f32x4(a, e, 0x88)};
    x[4 + j] = Vec{_mm512_shuffle_f32x4(a, e, 0xDD)};
    x[8 + j] = Vec{_mm512_shuffle_f32x4(b, h, 0x88)};
    x[12 + j] = Vec{_mm512_shuffle_f32x4(b, h, 0xDD)};
  }
}
#endif

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
