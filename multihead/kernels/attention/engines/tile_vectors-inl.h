// Vectors of attention on tiles: bf16 from f32, and rows turned into the words of tiles. Internal.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <type_traits>

#include "hwy/base.h"
#include "multihead/kernels/amx/tile_blocks-inl.h"
#include "multihead/kernels/amx/tile_emulation-inl.h"
#include "multihead/kernels/amx/tile_target-inl.h"
#include "multihead/kernels/attention/engines/tile_rows-inl.h"

#if MH_TILES
#define MH_PUSH_TILES \
  HWY_PUSH_ATTRIBUTES("avx,avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")

// The compiler does not know what tiles read and write.
#define MH_TILE_BARRIER __asm__ volatile("" ::: "memory")

MH_PUSH_TILES
namespace multihead::kernels::tiles {

inline constexpr int kRowBytes = 64, kPairBytes = 4 * kTileBytes, kStripBytes = 2 * kTileBytes;
inline constexpr int kMostParts = 3;

// f(std::integral_constant<int, parts>()).
template <class Body>
HWY_INLINE auto WithParts(int parts, const Body& f) {
  if (parts == 1) return f(std::integral_constant<int, 1>());
  return parts == 2 ? f(std::integral_constant<int, 2>()) : f(std::integral_constant<int, 3>());
}

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
  const __m512 top = _mm512_castsi512_ps(_mm512_set1_epi32(0x7F7F0000)), size = _mm512_abs_ps(x);
  __mmask16 large = _mm512_cmp_ps_mask(size, top, _CMP_GT_OQ);
  if (HWY_LIKELY(large == 0)) return x;
  large &= _mm512_cmp_ps_mask(size, _mm512_set1_ps(std::numeric_limits<float>::infinity()), _CMP_LT_OQ);
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000U));
  const __m512i cut =
      _mm512_or_si512(_mm512_and_si512(_mm512_castps_si512(x), sign), _mm512_castps_si512(top));
  return _mm512_mask_blend_ps(large, x, _mm512_castsi512_ps(cut));
}

// The nearest bf16, of two as near the larger one: the rest is exact in f32.
HWY_INLINE __m512 FirstPart(__m512 x) {
  const __m512i up = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
  return _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32(static_cast<int>(0xFFFF0000U))));
}

// The parts of `low`, then of `high`. `kCut`: as BelowInf().
template <bool kAmx, bool kCut = false, int kParts>
HWY_INLINE void PartsOf(__m512 high, __m512 low, __m512i (&to)[kParts]) {
#pragma GCC unroll 3
  for (int part = 0; part < kParts; ++part) {
    const bool cut = kCut && part == 0;
    __m512 a = cut ? BelowInf(low) : low, b = cut ? BelowInf(high) : high;
    if (part + 1 < kParts) {
      a = FirstPart(a), b = FirstPart(b);
      low = _mm512_sub_ps(low, a), high = _mm512_sub_ps(high, b);
    }
    to[part] = Rounded<kAmx>(b, a);
  }
}

// The parts of numbers [32 step, 32 step + 32) of a row, zeros beyond its end and for rows that are not there.
template <bool kAmx, int kParts>
HWY_INLINE void LoadStep(const TileSource& x, int row, int64_t step, __m512i (&to)[kParts]) {
  if (row < x.first || row >= x.end) {
#pragma GCC unroll 3
    for (__m512i& part : to) part = _mm512_setzero_si512();
    return;
  }
  const char* at = x.rows + row * x.stride;
  const __mmask32 some = FirstBits(x.dim - 32 * step);
  if (kParts == 1 && x.bf16) {
    to[0] = _mm512_maskz_loadu_epi16(some, at + 64 * step);
    return;
  }
  at += 128 * step;
  const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(some), at);
  const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(some >> 16), at + 64);
  PartsOf<kAmx, true>(high, low, to);
}

HWY_INLINE __m512i WithoutSign(__m512i x) { return _mm512_and_si512(x, _mm512_set1_epi16(0x7FFF)); }
HWY_INLINE __mmask32 InfOrNan(__m512i x) {
  return _mm512_cmpge_epi16_mask(WithoutSign(x), _mm512_set1_epi16(0x7F80));
}

// A step of one or two strips of A, or of two of B: distances in bytes between the rows of a tile, the strips, and
// from the first part to the second and to the third.
struct StepOperand {
  const char* at = nullptr;
  int64_t row = kRowBytes, tile = kTileBytes, second = 0, third = 0;

  HWY_INLINE const char* Part(int part) const { return part == 0 ? at : at + (part == 1 ? second : third); }
};

// Registers 0-3 += A · B of a step, in 4, 5 and 6, 7: of every two parts, in the order of kProducts.
template <int kParts, int kStrips, int kProduct = 0>
HWY_INLINE void AddStep(const StepOperand& a, const StepOperand& b) {
  if constexpr (kProduct < static_cast<int>(std::size(kProducts<kParts>))) {
    constexpr PartProduct kPair = kProducts<kParts>[kProduct],
                          kBefore = kProducts<kParts>[std::max(kProduct - 1, 0)];
    constexpr bool kNewA = kProduct == 0 || kPair.x != kBefore.x,
                   kNewB = kProduct == 0 || kPair.y != kBefore.y;
    const char *x = a.Part(kPair.x), *y = b.Part(kPair.y);
    if constexpr (kNewA) _tile_loadd(4, x, a.row);
    if constexpr (kNewB) _tile_loadd(6, y, b.row);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kNewB) _tile_loadd(7, y + b.tile, b.row);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kStrips == 2) {
      if constexpr (kNewA) _tile_loadd(5, x + a.tile, a.row);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    AddStep<kParts, kStrips, kProduct + 1>(a, b);
  }
}

// The same by loops: c[strip][2] tiles of floats, whose rows, strips and columns lie at such distances.
inline void EmulateStep(int parts, int strips, const StepOperand& a, const StepOperand& b, float* c,
                        int64_t row, int64_t strip, int64_t column) {
  WithParts(parts, [&](auto count) {
    for (const PartProduct& p : kProducts<count()>) {
      for (int i = 0; i < 2 * strips; ++i) {
        emulate_tile(a.Part(p.x) + i / 2 * a.tile, a.row, b.Part(p.y) + i % 2 * b.tile, b.row,
                     c + i / 2 * strip + i % 2 * column, row);
      }
    }
  });
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

// 2^y to 2.6e-6, or `kFine` to 7e-8, for y up to 127; 0 for -Inf and where the result would be subnormal, NaN for NaN.
template <bool kFine>
HWY_INLINE __m512 PolynomialOf(__m512 y) {
  const __m512 f = _mm512_reduce_ps(y, 9);  // y - floor(y)
  const auto add = [&](__m512 p, float x) __attribute__((always_inline)) {
    return _mm512_fmadd_ps(p, f, _mm512_set1_ps(x));
  };
  if constexpr (kFine) {
    const __m512 p = add(add(_mm512_set1_ps(0.0018776747f), 0.0089893397f), 0.0558263175f);
    return add(add(add(p, 0.2401536101f), 0.6931530833f), 0.9999999404f);
  }
  const __m512 p = add(add(_mm512_set1_ps(0.013534168f), 0.05201146f), 0.24144275f);
  return add(add(p, 0.69300383f), 1.0000026f);
}
template <bool kMasked, bool kFine = false>
HWY_INLINE __m512 Power(__m512 y, uint32_t seen) {
  const __m512 p = PolynomialOf<kFine>(y);
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
#endif
