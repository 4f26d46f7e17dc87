// Probabilities as pairs of keys in bf16, for products of pairs: the exponential of scores-inl.h,
// its sums in f32, and the rounding in one pass (8x1024, d = 32: .05 of f32's rate more than in two; Zen 5,
// 2026-11). The numbers are those of the two passes. A shorter exponential (2^(i/16) from the table, a
// polynomial of degree 2) gained nothing at d = 64 and 1 % at d = 32.

#if defined(MULTIHEAD_KERNELS_ATTENTION_BLOCK_PAIRS_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_BLOCK_PAIRS_SOFTMAX_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_BLOCK_PAIRS_SOFTMAX_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_BLOCK_PAIRS_SOFTMAX_INL_H_
#endif

#include "multihead/kernels/attention/block/scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3
// Lane i: lower[i] and upper[i] rounded to bf16, to nearest even.
HWY_INLINE __m512i RoundPairs(Vec lower, Vec upper) {
  __m512i halves;
  __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(halves) : "v"(upper.raw), "v"(lower.raw));
  alignas(64) static constexpr uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                      21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                      11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), halves);
}

// s: rows of probabilities of keys [from, to) -> rows of pairs of keys, counted from the even position at or
// below r.k0. Odd ends are those of the block.
HWY_INLINE void PairProbabilities(const RowTile& t, const BlockRange& r, int from, int to, float* s) {
  const F d;
  const int odd = r.k0 & 1, keys = r.k1 - r.k0;
  if (from == to) return;
  for (int pair = (from - (r.k0 - odd)) / 2; 2 * pair < to - r.k0 + odd; ++pair) {
    const int k = 2 * pair - odd;
    for (int lane = 0; lane < t.groups * kGroupRows; lane += kN) {
      const Vec lower = k < 0 ? hn::Zero(d) : hn::LoadU(d, s + k * kTileRows + lane);
      const Vec upper = k + 1 < keys ? hn::LoadU(d, s + (k + 1) * kTileRows + lane) : hn::Zero(d);
      _mm512_storeu_si512(s + pair * kTileRows + lane, RoundPairs(lower, upper));
    }
  }
}

// Two rows of scores, pairs of keys from them, added to `chain` before the rounding.
template <int NV, bool kNatural>
HWY_INLINE void ExpPair(const float* s, const Vec (&max)[NV], Vec (&chain)[NV], float* to) {
  const F d;
#pragma GCC unroll 4
  for (int j = 0; j < NV; ++j) {
    const Vec x = hn::Sub(hn::LoadU(d, s + j * kN), max[j]);
    const Vec y = hn::Sub(hn::LoadU(d, s + kTileRows + j * kN), max[j]);
    const Vec lower = kNatural ? Exp(d, x) : Exp2(d, x), upper = kNatural ? Exp(d, y) : Exp2(d, y);
    chain[j] = hn::Add(hn::Add(chain[j], lower), upper);
    _mm512_storeu_si512(to + j * kN, RoundPairs(lower, upper));
  }
}

// As ExpRows for keys at even ends, which become pairs from `to` on.
template <int NV, bool kNatural>
HWY_INLINE void ExpPairRows(const float* s, int k0, int k1, const float* max, float* sum, float* to) {
  const F d;
  Vec m[NV], total[NV];
#pragma GCC unroll 4
  for (int j = 0; j < NV; ++j) {
    m[j] = hn::LoadU(d, max + j * kN);
    total[j] = hn::LoadU(d, sum + j * kN);
  }
  for (int k = k0; k < k1;) {
    Vec chain[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) chain[j] = hn::Zero(d);
    const int pairs = (std::min(k1, SumChainEnd(k)) - k) / 2;
    if (pairs == kSumChain / 2) {
#pragma GCC unroll 2
      for (int i = 0; i < kSumChain / 2; ++i) {
        ExpPair<NV, kNatural>(s + 2 * i * kTileRows, m, chain, to + i * kTileRows);
      }
    } else {
      for (int i = 0; i < pairs; ++i) {
        ExpPair<NV, kNatural>(s + 2 * i * kTileRows, m, chain, to + i * kTileRows);
      }
    }
    s += 2 * pairs * kTileRows, to += pairs * kTileRows, k += 2 * pairs;
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) total[j] = hn::Add(total[j], chain[j]);
  }
#pragma GCC unroll 4
  for (int j = 0; j < NV; ++j) hn::StoreU(total[j], d, sum + j * kN);
}

// ExpBlock and PairProbabilities in one pass where every query sees both keys of every pair.
template <bool kNatural>
HWY_INLINE void ExpPairBlock(const RowTile& t, const BlockRange& r, float* s, const float* max, float* sum) {
  auto [a, e] = WholeChains(r);
  if (a % 2 != 0) a = std::min(SumChainEnd(a), e);
  if (e % 2 != 0) e = std::max(e / kSumChain * kSumChain, a);
  if (a == e) a = e = r.k0;
  ExpPart<kNatural>(t, r, r.k0, a, s, max, sum);
  PairProbabilities(t, r, r.k0, a, s);
  const float* from = s + (a - r.k0) * kTileRows;
  float* to = s + (a - (r.k0 & ~1)) / 2 * kTileRows;
  if (t.groups == kTileGroups) {
    ExpPairRows<4, kNatural>(from, a, e, max, sum, to);
  } else {
    for (int c = 0; c < t.groups * kGroupRows; c += kN) {
      ExpPairRows<1, kNatural>(from + c, a, e, max + c, sum + c, to + c);
    }
  }
  ExpPart<kNatural>(t, r, e, r.k1, s, max, sum);
  PairProbabilities(t, r, e, r.k1, s);
}

#endif

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
