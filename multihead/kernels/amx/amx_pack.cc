// Packing for tiles. 16 lines of 32 numbers become a 16 x 16 block of words, each two neighbours in k: by
// rows as tiles of A want it, by columns as tiles of B do. Where the source lies the other way the block is
// transposed.
#include <algorithm>
#include <cstring>

#include "multihead/kernels/amx/amx-inl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/amx/amx_pack.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

using F = hn::ScalableTag<float>;
using Vec = hn::Vec<F>;

inline constexpr int kPairsOfStep = 16, kMostParts = 3;
inline constexpr int kLanes = std::min(static_cast<int>(hn::MaxLanes(F())), kPairsOfStep);
using U = hn::RebindToUnsigned<F>;
using VecU = hn::Vec<U>;

// The bf16 next to x, as an f32; a finite number that rounds to Inf is cut off instead.
HWY_INLINE Vec NearestPart(Vec x) {
  const F d;
  const U u;
  const VecU bits = hn::BitCast(u, x), top = hn::Set(u, 0xFFFF0000u), inf = hn::Set(u, 0x7F800000u);
  const VecU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1));
  const VecU rounded = hn::And(top, hn::Add(bits, hn::Add(odd, hn::Set(u, 0x7FFF))));
  const auto over = hn::Or(hn::Eq(hn::And(bits, inf), inf), hn::Eq(hn::And(rounded, inf), inf));
  const VecU quiet = hn::IfThenElseZero(hn::RebindMask(u, hn::Ne(x, x)), hn::Set(u, 0x400000u));
  return hn::BitCast(d, hn::IfThenElse(over, hn::Or(hn::And(bits, top), quiet), rounded));
}

struct Pairs {
  Vec even, odd;
};

template <bool kZero>
HWY_INLINE Vec Cleaned(Vec x, VecU& non_finite) {
  if constexpr (!kZero) return x;
  const U u;
  const VecU inf = hn::Set(u, 0x7F800000u);
  const auto wrong = hn::Eq(hn::And(hn::BitCast(u, x), inf), inf);
  non_finite = hn::Or(non_finite, hn::IfThenElseZero(wrong, inf));
  return hn::IfThenZeroElse(hn::RebindMask(F(), wrong), x);
}

// words[part][at …] from the pairs.
template <bool kZero>
HWY_INLINE void StoreParts(Pairs x, int parts, uint32_t* words, VecU& non_finite) {
  const U u;
  x = {Cleaned<kZero>(x.even, non_finite), Cleaned<kZero>(x.odd, non_finite)};
  for (int p = 0; p < parts; ++p, words += kAmxWords / 2) {
    const Pairs part = {NearestPart(x.even), NearestPart(x.odd)};
    hn::StoreU(hn::Or(hn::ShiftRight<16>(hn::BitCast(u, part.even)), hn::BitCast(u, part.odd)), u, words);
    x = {hn::Sub(x.even, part.even), hn::Sub(x.odd, part.odd)};
  }
}

// Numbers i, i + 2, … and i + 1, i + 3, … of a row.
HWY_INLINE Pairs LoadNeighbours(const float* from) {
  Pairs x;
  hn::LoadInterleaved2(F(), from, x.even, x.odd);
  return x;
}
HWY_INLINE Pairs LoadNeighbours(const uint16_t* from) {
  const F d;
  const U u;
  alignas(64) uint32_t pairs[hn::MaxLanes(U())];
  std::memcpy(pairs, from, sizeof(pairs));
  const VecU x = hn::Load(u, pairs);
  return {hn::BitCast(d, hn::ShiftLeft<16>(x)), hn::BitCast(d, hn::And(x, hn::Set(u, 0xFFFF0000u)))};
}

HWY_INLINE Vec LoadLines(const float* from) { return hn::LoadU(F(), from); }
HWY_INLINE Vec LoadLines(const uint16_t* from) {
  const hn::Rebind<uint16_t, F> d16;
  return hn::BitCast(F(), hn::ShiftLeft<16>(hn::PromoteTo(U(), hn::LoadU(d16, from))));
}

#if HWY_TARGET == HWY_AVX3
// 16 bytes at `from` of rows 0, s, 2s and 3s.
HWY_INLINE __m512i LoadQuarters(const char* from, int64_t stride) {
  const auto load = [&](int64_t i) HWY_ATTR {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * stride));
  };
  __m512i x = _mm512_castsi128_si512(load(0));  // broadcasts into a quarter need no shuffle
  x = _mm512_mask_broadcast_i32x4(x, 0x00F0, load(1));
  x = _mm512_mask_broadcast_i32x4(x, 0x0F00, load(2));
  return _mm512_mask_broadcast_i32x4(x, 0xF000, load(3));
}

// Transposes 4x4 words within quarters.
HWY_INLINE void StoreSquares(__m512i x0, __m512i x1, __m512i x2, __m512i x3, char* to, int64_t stride = 64) {
  const __m512i a = _mm512_unpacklo_epi32(x0, x1), b = _mm512_unpackhi_epi32(x0, x1);
  const __m512i c = _mm512_unpacklo_epi32(x2, x3), d = _mm512_unpackhi_epi32(x2, x3);
  _mm512_storeu_si512(to, _mm512_unpacklo_epi64(a, c));
  _mm512_storeu_si512(to + stride, _mm512_unpackhi_epi64(a, c));
  _mm512_storeu_si512(to + 2 * stride, _mm512_unpacklo_epi64(b, d));
  _mm512_storeu_si512(to + 3 * stride, _mm512_unpackhi_epi64(b, d));
}

// to[word][line] = from[line][word] of 16 x 16 words; distances of lines in bytes.
HWY_INLINE void TransposeWords(const char* from, int64_t stride, char* to, int64_t to_stride = 64) {
#pragma GCC unroll 4
  for (int64_t c = 0; c < 4; ++c) {
    __m512i x[4];
#pragma GCC unroll 4
    for (int64_t r = 0; r < 4; ++r) x[r] = LoadQuarters(from + r * stride + 16 * c, 4 * stride);
    StoreSquares(x[0], x[1], x[2], x[3], to + 4 * c * to_stride, to_stride);
  }
}

// to[line][k] = from[k][line] of 16 lines and 32 k of two bytes, eight lines at a time.
HWY_INLINE void TransposeHalves(const char* from, int64_t stride, char* to) {
#pragma GCC unroll 2
  for (int64_t h = 0; h < 2; ++h) {
    __m512i x[8], y[8];
#pragma GCC unroll 8
    for (int64_t r = 0; r < 8; ++r) x[r] = LoadQuarters(from + r * stride + 16 * h, 8 * stride);
#pragma GCC unroll 4
    for (int64_t i = 0; i < 4; ++i) {  // neighbours in k side by side: lines 0 to 3 and 4 to 7
      y[i] = _mm512_unpacklo_epi16(x[2 * i], x[2 * i + 1]);
      y[4 + i] = _mm512_unpackhi_epi16(x[2 * i], x[2 * i + 1]);
    }
    StoreSquares(y[0], y[1], y[2], y[3], to + 512 * h);
    StoreSquares(y[4], y[5], y[6], y[7], to + 512 * h + 256);
  }
}

// Rows k and k + 1 of 32 lines, their neighbours in k side by side.
HWY_INLINE void InterleaveHalves(const char* from, int64_t stride, char* low, char* high) {
  alignas(64) static constexpr uint16_t kLow[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                    37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                    11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i first = _mm512_load_si512(kLow), second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
  const __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + stride);
  _mm512_storeu_si512(low, _mm512_permutex2var_epi16(a, first, b));
  _mm512_storeu_si512(high, _mm512_permutex2var_epi16(a, second, b));
}

// Two strips of one step of bf16 as it is, 32 lines and 32 k.
HWY_INLINE void PackHalves(const uint16_t* from, int64_t stride, bool in_rows, AmxSide side, uint16_t* low,
                           uint16_t* high) {
  const auto* x = reinterpret_cast<const char*>(from);
  auto *to = reinterpret_cast<char*>(low), *above = reinterpret_cast<char*>(high);
  const int64_t s = 2 * stride;
  if (in_rows && side == AmxSide::rows) {
    for (int64_t i = 0; i < 16; ++i) {
      _mm512_storeu_si512(to + 64 * i, _mm512_loadu_si512(x + i * s));
      _mm512_storeu_si512(above + 64 * i, _mm512_loadu_si512(x + (16 + i) * s));
    }
  } else if (in_rows) {
    TransposeWords(x, s, to), TransposeWords(x + 16 * s, s, above);
  } else if (side == AmxSide::rows) {
    TransposeHalves(x, s, to), TransposeHalves(x + 32, s, above);
  } else {
    for (int64_t i = 0; i < 16; ++i) InterleaveHalves(x + 2 * i * s, s, to + 64 * i, above + 64 * i);
  }
}
#else
HWY_INLINE void TransposeWords(const char* from, int64_t stride, char* to, int64_t to_stride = 64) {
  for (int64_t i = 0; i < 16; ++i) {
    for (int64_t j = 0; j < 16; ++j) std::memcpy(to + to_stride * i + 4 * j, from + stride * j + 4 * i, 4);
  }
}
#endif

// One strip of one step, all 16 x 32 numbers there. Lines lie in rows (k_stride 1) or in columns.
template <bool kZero, class T>
HWY_INLINE void PackStep(const T* from, int64_t stride, bool in_rows, AmxSide side, int parts, int64_t part,
                         uint16_t* to, VecU& non_finite) {
  alignas(64) uint32_t words[kMostParts * kAmxWords / 2];
  for (int row = 0; row < 16; ++row) {
    for (int at = 0; at < kPairsOfStep; at += kLanes) {
      Pairs x;
      if (in_rows) {
        x = LoadNeighbours(from + row * stride + 2 * at);
      } else {
        x = {LoadLines(from + 2 * row * stride + at), LoadLines(from + (2 * row + 1) * stride + at)};
      }
      StoreParts<kZero>(x, parts, words + 16 * row + at, non_finite);
    }
  }
  for (int p = 0; p < parts; ++p) {
    const uint32_t* of = words + p * kAmxWords / 2;
    if (in_rows == (side == AmxSide::rows)) {
      std::memcpy(to + p * part, of, 2 * kAmxWords);
    } else {
      TransposeWords(reinterpret_cast<const char*>(of), 64, reinterpret_cast<char*>(to + p * part));
    }
  }
}

#if HWY_TARGET == HWY_AVX3
// Rounds to bf16 (AVX512_BF16, for which Highway 1.0.3 has no name).
HWY_INLINE __m512i RoundPairs(__m512 low, __m512 high) {
  __m512i rounded;
  __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(rounded) : "v"(high), "v"(low));
  return rounded;
}
HWY_INLINE __m512 Widen(__m256i x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

// to[part][32][32]: parts of a block of f32. False if a number is not finite or rounds to one that is not.
HWY_INLINE bool SplitBlock(const float* from, int64_t stride, int parts, uint16_t* to) {
  __mmask32 wrong = 0;
  for (int64_t r = 0; r < kAmxStep; ++r, from += stride, to += kAmxStep) {
    __m512 a = _mm512_loadu_ps(from), b = _mm512_loadu_ps(from + 16);
    __m512i rounded = RoundPairs(a, b);
    _mm512_storeu_si512(to, rounded);
    wrong |= _mm512_cmpge_epu16_mask(_mm512_slli_epi16(rounded, 1),
                                     _mm512_set1_epi16(static_cast<int16_t>(0xFF00)));
    for (int p = 1; p < parts; ++p) {
      a = _mm512_sub_ps(a, Widen(_mm512_castsi512_si256(rounded)));
      b = _mm512_sub_ps(b, Widen(_mm512_extracti64x4_epi64(rounded, 1)));
      rounded = RoundPairs(a, b);
      _mm512_storeu_si512(to + 2 * p * kAmxWords, rounded);
    }
  }
  return wrong == 0;
}

// One step of two strips, or of one; false if that takes the way of all numbers.
HWY_INLINE bool PackFast(const uint16_t* from, int64_t stride, bool in_rows, AmxSide side, int, uint16_t* low,
                         uint16_t* high, int64_t, int64_t) {
  PackHalves(from, stride, in_rows, side, low, high);
  return true;
}
HWY_INLINE bool PackFast(const float* from, int64_t stride, bool in_rows, AmxSide side, int parts,
                         uint16_t* low, uint16_t* high, int64_t part, int64_t high_part) {
  alignas(64) uint16_t split[kMostParts * 2 * kAmxWords];
  if (!has_tiles() || !SplitBlock(from, stride, parts, split)) return false;
  for (int p = 0; p < parts; ++p)
    PackHalves(split + 2 * p * kAmxWords, kAmxStep, in_rows, side, low + p * part, high + p * high_part);
  return true;
}
#endif

// One step of two strips, or of one, all of whose numbers are there.
template <bool kZero, class T>
HWY_INLINE void PackPair(const T* from, int64_t stride, bool in_rows, AmxSide side, int parts, int strips,
                         const AmxPlaces& to, uint16_t* at, VecU& non_finite) {
#if HWY_TARGET == HWY_AVX3
  if (sizeof(T) == 4 || (!kZero && parts == 1)) {
    alignas(64) uint16_t nowhere[kAmxWords];
    const bool two = strips == 2;
    if (PackFast(from, stride, in_rows, side, parts, at, two ? at + to.strip : nowhere, to.part,
                 two ? to.part : 0))
      return;
  }
#endif
  for (int64_t i = 0; i < strips; ++i) {
    const T* strip = from + i * kAmxLines * (in_rows ? stride : 1);
    PackStep<kZero>(strip, stride, in_rows, side, parts, to.part, at + i * to.strip, non_finite);
  }
}

// 32 lines from `line` and 32 k from `k` on, with zeros around the numbers that are there.
template <class T>
HWY_NOINLINE void CopyCorner(const AmxOperand& o, int64_t line, int64_t k, T* copy) {
  std::fill_n(copy, 2 * kAmxWords, T{0});
  const auto* from = static_cast<const T*>(o.data);
  const int64_t first = std::max(k, o.before), last = std::min(k + kAmxStep, o.before + o.count);
  const int64_t lines = std::min(2 * kAmxLines, o.lines - line);
  if (first >= last) return;
  from += line * o.line_stride + (first - o.before) * o.k_stride;
  if (o.k_stride == 1) {
    for (int64_t i = 0; i < lines; ++i)
      std::copy_n(from + i * o.line_stride, last - first, copy + i * kAmxStep + first - k);
  } else {
    for (int64_t j = 0; j < last - first; ++j)
      std::copy_n(from + j * o.k_stride, lines, copy + (first - k + j) * kAmxStep);
  }
}

template <bool kZero, class T>
bool PackAll(const AmxOperand& o, AmxSide side, int parts, const AmxPlaces& to) {
  const U u;
  VecU non_finite = hn::Zero(u);
  const bool in_rows = o.k_stride == 1;
  const int64_t steps = amx_steps(o.before + o.count),
                pairs = (o.lines + 2 * kAmxLines - 1) / (2 * kAmxLines);
  const auto pack = [&](int64_t pair, int64_t step) HWY_ATTR {
    const int64_t line = pair * 2 * kAmxLines, k = step * kAmxStep;
    uint16_t* at = to.first + pair * to.pair + step * to.step;
    const int strips = o.lines - line > kAmxLines ? 2 : 1;
    const bool whole = line + 2 * kAmxLines <= o.lines && k >= o.before && k + kAmxStep <= o.before + o.count;
    if (whole) {
      const T* from = static_cast<const T*>(o.data) + line * o.line_stride + (k - o.before) * o.k_stride;
      return PackPair<kZero>(from, in_rows ? o.line_stride : o.k_stride, in_rows, side, parts, strips, to, at,
                             non_finite);
    }
    alignas(64) T copy[2 * kAmxWords];
    CopyCorner(o, line, k, copy);
    PackPair<kZero>(static_cast<const T*>(copy), kAmxStep, in_rows, side, parts, strips, to, at, non_finite);
  };
  if (in_rows) {  // memory is read in order
    for (int64_t i = 0; i < pairs; ++i)
      for (int64_t s = 0; s < steps; ++s) pack(i, s);
  } else {
    for (int64_t s = 0; s < steps; ++s)
      for (int64_t i = 0; i < pairs; ++i) pack(i, s);
  }
  return !hn::AllTrue(u, hn::Eq(non_finite, hn::Zero(u)));
}

bool AmxPack(const AmxOperand& o, AmxSide side, int parts, NotFinite rule, const AmxPlaces& to) {
  if (rule == NotFinite::keep) {
    return o.bf16 ? PackAll<false, uint16_t>(o, side, parts, to) : PackAll<false, float>(o, side, parts, to);
  }
  return o.bf16 ? PackAll<true, uint16_t>(o, side, parts, to) : PackAll<true, float>(o, side, parts, to);
}

void TransposeTile(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  TransposeWords(reinterpret_cast<const char*>(from), 4 * from_stride, reinterpret_cast<char*>(to),
                 4 * to_stride);
}

}  // namespace
}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {

HWY_EXPORT(AmxPack);
HWY_EXPORT(TransposeTile);

bool amx_pack(const AmxOperand& from, AmxSide side, int parts, NotFinite rule, const AmxPlaces& to) {
  return HWY_DYNAMIC_DISPATCH(AmxPack)(from, side, parts, rule, to);
}

bool amx_pack(const AmxOperand& from, AmxSide side, int parts, NotFinite rule, uint16_t* to) {
  const int64_t step = parts * kAmxWords, strip = amx_steps(from.before + from.count) * step;
  return amx_pack(from, side, parts, rule, AmxPlaces{to, 2 * strip, strip, step, kAmxWords});
}

void transpose_tile(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  HWY_DYNAMIC_DISPATCH(TransposeTile)(from, from_stride, to, to_stride);
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
