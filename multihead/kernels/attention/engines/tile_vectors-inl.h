// Vectors of attention on tiles: bf16 from f32, and rows turned into the words of tiles. Internal.
#pragma once

#include <cstdint>
#include <limits>

#include "hwy/base.h"
#include "multihead/kernels/amx/tile_blocks-inl.h"
#include "multihead/kernels/attention/engines/tile_rows-inl.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define MH_TILES 1
#pragma GCC diagnostic push
#if !defined(__clang__)  // GCC 12 takes the undefined operands of intrinsics for uninitialised ones
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop

#define MH_PUSH_TILES \
  HWY_PUSH_ATTRIBUTES("avx,avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")

// The compiler does not know what tiles read and write.
#define MH_TILE_BARRIER __asm__ volatile("" ::: "memory")

MH_PUSH_TILES
namespace multihead::kernels::tiles {

inline constexpr int kRowBytes = 64, kPairBytes = 4 * kTileBytes, kStripBytes = 2 * kTileBytes;

HWY_INLINE __mmask32 FirstBits(int64_t count) {
  return count >= 32 ? ~0U : count <= 0 ? 0U : (1U << count) - 1;
}

// To nearest even, where there is no instruction; subnormals are zero already.
HWY_INLINE __m512i RoundedBits(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
}

// bf16 of `low`, then of `high`.
template <bool kAmx>
HWY_INLINE __m512i Rounded(__m512 high, __m512 low) {
  if constexpr (kAmx) {
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  } else {
    alignas(64) uint32_t x[16], y[16];
    alignas(64) uint16_t to[32];
    _mm512_store_si512(x, RoundedBits(low)), _mm512_store_si512(y, RoundedBits(high));
    for (int i = 0; i < 16; ++i) {
      to[i] = static_cast<uint16_t>(x[i] >> 16), to[16 + i] = static_cast<uint16_t>(y[i] >> 16);
    }
    return _mm512_load_si512(to);
  }
}

// A finite number that would round to Inf is cut off.
HWY_INLINE __m512 BelowInf(__m512 x) {
  const __m512 top = _mm512_castsi512_ps(_mm512_set1_epi32(0x7F7F0000));
  const __m512 inf = _mm512_set1_ps(std::numeric_limits<float>::infinity());
  const __mmask16 large = _mm512_cmp_ps_mask(_mm512_abs_ps(x), top, _CMP_GT_OQ) &
                          _mm512_cmp_ps_mask(_mm512_abs_ps(x), inf, _CMP_LT_OQ);
  return _mm512_mask_blend_ps(
      large, x,
      _mm512_castsi512_ps(_mm512_or_si512(
          _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(static_cast<int>(0x80000000U))),
          _mm512_castps_si512(top))));
}

// Numbers [32 step, 32 step + 32) of a row as bf16, zeros beyond its end and for rows that are not there.
template <bool kAmx>
HWY_INLINE __m512i LoadStep(const TileSource& x, int row, int64_t step) {
  if (row < x.first || row >= x.end) return _mm512_setzero_si512();
  const char* at = x.rows + row * x.stride;
  const __mmask32 some = FirstBits(x.dim - 32 * step);
  if (x.bf16) return _mm512_maskz_loadu_epi16(some, at + 64 * step);
  at += 128 * step;
  const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(some), at);
  const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(some >> 16), at + 64);
  return Rounded<kAmx>(BelowInf(high), BelowInf(low));
}

// 16 bytes of rows 0, 4, 8 and 12.
HWY_INLINE __m512i LoadQuarters(const char* from, int64_t stride) {
  const auto load = [&](int64_t i) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * stride));
  };
  __m512i x = _mm512_castsi128_si512(load(0));  // broadcasts into a quarter need no shuffle
  x = _mm512_mask_broadcast_i32x4(x, 0x00F0, load(4));
  x = _mm512_mask_broadcast_i32x4(x, 0x0F00, load(8));
  return _mm512_mask_broadcast_i32x4(x, 0xF000, load(12));
}

// to[word][line] = from[line][word] of 16 x 16 words; distances of lines in bytes.
template <class Store>
HWY_INLINE void TransposeWords(const char* from, int64_t stride, const Store& store) {
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const char* at = from + 16 * c;
    const __m512i x0 = LoadQuarters(at, stride), x1 = LoadQuarters(at + stride, stride);
    const __m512i x2 = LoadQuarters(at + 2 * stride, stride), x3 = LoadQuarters(at + 3 * stride, stride);
    const __m512i a = _mm512_unpacklo_epi32(x0, x1), b = _mm512_unpackhi_epi32(x0, x1);
    const __m512i d = _mm512_unpacklo_epi32(x2, x3), e = _mm512_unpackhi_epi32(x2, x3);
    store(4 * c, _mm512_unpacklo_epi64(a, d)), store(4 * c + 1, _mm512_unpackhi_epi64(a, d));
    store(4 * c + 2, _mm512_unpacklo_epi64(b, e)), store(4 * c + 3, _mm512_unpackhi_epi64(b, e));
  }
}

// 2^y to 2.6e-6 for y up to 127; 0 for -Inf and where the result would be subnormal, NaN for NaN.
HWY_INLINE __m512 PolynomialOf(__m512 y) {
  const __m512 f = _mm512_reduce_ps(y, 9);  // y - floor(y)
  __m512 p = _mm512_fmadd_ps(f, _mm512_set1_ps(0.013534168f), _mm512_set1_ps(0.05201146f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.24144275f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.69300383f));
  return _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0000026f));
}
template <bool kMasked>
HWY_INLINE __m512 Power(__m512 y, uint32_t seen) {
  const __m512 p = PolynomialOf(y);
  return kMasked ? _mm512_maskz_scalef_ps(static_cast<__mmask16>(seen), p, y) : _mm512_scalef_ps(p, y);
}

// Words of two rows side by side: of the first 16 columns, and of the last.
struct PairOrder {
  alignas(64) uint16_t low[32], high[32];
  constexpr PairOrder() : low(), high() {
    for (int i = 0; i < 16; ++i) {
      low[2 * i] = static_cast<uint16_t>(i), low[2 * i + 1] = static_cast<uint16_t>(32 + i);
      high[2 * i] = static_cast<uint16_t>(16 + i), high[2 * i + 1] = static_cast<uint16_t>(48 + i);
    }
  }
};
inline constexpr PairOrder kPairOrder;

}  // namespace multihead::kernels::tiles
HWY_POP_ATTRIBUTES
#else
#define MH_TILES 0
#endif
