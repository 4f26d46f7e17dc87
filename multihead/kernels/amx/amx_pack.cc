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
#include "multihead/kernels/simd/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
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

HWY_INLINE void TransposeWords(const uint32_t* from, uint16_t* to) {
#if HWY_TARGET == HWY_AVX3
  Vec x[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) x[i] = Vec{_mm512_castsi512_ps(_mm512_loadu_si512(from + 16 * i))};
  TransposeRegisters(x);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) _mm512_storeu_si512(to + 32 * i, _mm512_castps_si512(x[i].raw));
#else
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) std::memcpy(to + 32 * i + 2 * j, from + 16 * j + i, 4);
  }
#endif
}

// One step of a strip, all 16 x 32 numbers there. Lines lie in rows (k_stride 1) or in columns.
template <bool kZero, class T>
HWY_INLINE void PackStep(const T* from, int64_t stride, bool in_rows, AmxSide side, int parts, uint16_t* to,
                         VecU& non_finite) {
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
    if (in_rows == (side == AmxSide::rows)) {
      std::memcpy(to + p * kAmxWords, words + p * kAmxWords / 2, 2 * kAmxWords);
    } else {
      TransposeWords(words + p * kAmxWords / 2, to + p * kAmxWords);
    }
  }
}

// The same at the operand's edges, through a copy with zeros around it.
template <bool kZero, class T>
HWY_INLINE void PackEdge(const AmxOperand& o, int64_t line, int64_t k, AmxSide side, int parts, uint16_t* to,
                         VecU& non_finite) {
  alignas(64) T copy[kAmxWords];
  std::fill_n(copy, kAmxWords, T{0});
  const auto* from = static_cast<const T*>(o.data);
  const int64_t first = std::max(k, o.before), last = std::min(k + kAmxStep, o.before + o.count);
  for (int64_t i = line; i < std::min(line + kAmxLines, o.lines); ++i) {
    for (int64_t j = first; j < last; ++j) {
      copy[(i - line) * kAmxStep + j - k] = from[i * o.line_stride + (j - o.before) * o.k_stride];
    }
  }
  PackStep<kZero>(copy, kAmxStep, true, side, parts, to, non_finite);
}

template <bool kZero, class T>
bool PackAll(const AmxOperand& o, AmxSide side, int parts, uint16_t* to) {
  const U u;
  VecU non_finite = hn::Zero(u);
  const bool in_rows = o.k_stride == 1;
  const auto* from = static_cast<const T*>(o.data);
  for (int64_t line = 0; line < o.lines; line += kAmxLines) {
    for (int64_t k = 0; k < o.before + o.count; k += kAmxStep, to += parts * kAmxWords) {
      const bool whole = line + kAmxLines <= o.lines && k >= o.before && k + kAmxStep <= o.before + o.count;
      if (!whole) {
        PackEdge<kZero, T>(o, line, k, side, parts, to, non_finite);
        continue;
      }
      const T* at = from + line * o.line_stride + (k - o.before) * o.k_stride;
      PackStep<kZero>(at, in_rows ? o.line_stride : o.k_stride, in_rows, side, parts, to, non_finite);
    }
  }
  return !hn::AllTrue(u, hn::Eq(non_finite, hn::Zero(u)));
}

bool AmxPack(const AmxOperand& o, AmxSide side, int parts, NotFinite rule, uint16_t* to) {
  if (rule == NotFinite::keep) {
    return o.bf16 ? PackAll<false, uint16_t>(o, side, parts, to) : PackAll<false, float>(o, side, parts, to);
  }
  return o.bf16 ? PackAll<true, uint16_t>(o, side, parts, to) : PackAll<true, float>(o, side, parts, to);
}

}  // namespace
}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {

HWY_EXPORT(AmxPack);
bool amx_pack(const AmxOperand& from, AmxSide side, int parts, NotFinite rule, uint16_t* to) {
  return HWY_DYNAMIC_DISPATCH(AmxPack)(from, side, parts, rule, to);
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
