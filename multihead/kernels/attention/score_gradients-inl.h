// The backward pass of one tile against one key block, from scores to their gradients.

#if defined(MULTIHEAD_KERNELS_ATTENTION_SCORE_GRADIENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_SCORE_GRADIENTS_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_SCORE_GRADIENTS_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_SCORE_GRADIENTS_INL_H_
#endif

#include "multihead/kernels/attention/block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Probability from a score.
template <bool kNatural>
HWY_INLINE Vec Probability(F d, Vec s, Vec lse) {
  if constexpr (kNatural) return Exp(d, hn::Sub(s, lse));
  return Exp2(d, hn::NegMulAdd(lse, hn::Set(d, kLog2e), s));
}

// P · (dP - delta), exactly zero where excluded (s = -inf) whatever dP is.
HWY_INLINE Vec ScoreGradient(F d, Vec s, Vec p, Vec dp, Vec delta) {
  return hn::IfThenZeroElse(hn::Eq(s, hn::Set(d, -kInfinity)), hn::Mul(p, hn::Sub(dp, delta)));
}

// s <- P, dp <- dS.
template <bool kNatural>
inline void GradientRows(const RowTile& t, const BlockRange& r, const float* lse, const float* delta,
                         float* s, float* dp) {
  const F d;
  for (int lane = 0; lane < t.groups * kGroupRows; lane += kN) {
    const int g = lane / kGroupRows;
    const Vec vl = hn::LoadU(d, lse + lane), vd = hn::LoadU(d, delta + lane);
    float* ps = s + (r.need_begin[g] - r.k0) * kTileRows + lane;
    float* pd = dp + (r.need_begin[g] - r.k0) * kTileRows + lane;
    for (int k = r.need_begin[g]; k < r.need_end[g]; ++k, ps += kTileRows, pd += kTileRows) {
      const Vec x = hn::LoadU(d, ps), p = Probability<kNatural>(d, x, vl);
      hn::StoreU(p, d, ps);
      hn::StoreU(ScoreGradient(d, x, p, hn::LoadU(d, pd), vd), d, pd);
    }
  }
}

// With dropout: dropped <- P · keep / (1 - p), dp <- dS of dP · keep / (1 - p).
template <bool kNatural>
inline void DropGradientRows(const AttentionProblem& p, const RowTile& t, const BlockRange& r,
                             const float* lse, const float* delta, float* s, float* dp, float* dropped) {
  const F d;
  if (p.dropout_p >= 1) {
    std::fill_n(dp, (r.k1 - r.k0) * kTileRows, 0.0f);
    std::fill_n(dropped, (r.k1 - r.k0) * kTileRows, 0.0f);
    return GradientRows<kNatural>(t, r, lse, delta, s, dp);
  }
  const Vec keep_scale = hn::Set(d, static_cast<float>(1 / (1 - p.dropout_p)));
  EachDropout(p, t, r, [&](int k, int lane, hn::Mask<F> kept) HWY_ATTR {
    const int64_t at = int64_t{k - r.k0} * kTileRows + lane;
    const Vec x = hn::LoadU(d, s + at), probability = Probability<kNatural>(d, x, hn::LoadU(d, lse + lane));
    hn::StoreU(hn::IfThenElseZero(kept, hn::Mul(probability, keep_scale)), d, dropped + at);
    const Vec kept_dp = hn::IfThenElseZero(kept, hn::Mul(hn::LoadU(d, dp + at), keep_scale));
    hn::StoreU(ScoreGradient(d, x, probability, kept_dp, hn::LoadU(d, delta + lane)), d, dp + at);
  });
}

// Rows that a group does not need become zero, so that the products may run over them.
inline void ZeroUnneeded(const RowTile& t, const BlockRange& r, float* s) {
  for (int g = 0; g < t.groups; ++g) {
    ZeroRows(s + g * kGroupRows, r.need_begin[g] - r.k0);
    ZeroRows(s + (r.need_end[g] - r.k0) * kTileRows + g * kGroupRows, r.k1 - r.need_end[g]);
  }
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
