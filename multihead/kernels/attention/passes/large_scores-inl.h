// The softmax of rows whose scores are large, for the backward pass. Of a log-sum-exp L only ulp(L) is known: where a
// mask of -1e9 or of the lowest float lies on a whole row, the logarithm of the number of keys is rounded away, and
// e^(S - L) would be 1 for each of them. Such rows' scores are computed once more before the key blocks run, for their
// maximum and the sum of e^(S - maximum), which is then the row's log-sum-exp; their scores count from the maximum.

#if defined(MULTIHEAD_KERNELS_ATTENTION_PASSES_LARGE_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_PASSES_LARGE_SCORES_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_PASSES_LARGE_SCORES_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_PASSES_LARGE_SCORES_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "multihead/kernels/attention/block/block-inl.h"
#include "multihead/kernels/attention/row_softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

inline constexpr float kMaxFloat = std::numeric_limits<float>::max();

// f(lane, first, last): vectors of lanes, and the numbers of the keys that they need.
template <class Body>
HWY_INLINE void EachLane(const RowTile& t, const BlockRange& r, const Body& f) {
  for (int lane = 0; lane < t.groups * kGroupRows; lane += kN) {
    const int g = lane / kGroupRows;
    f(lane, r.need_begin[g] - r.k0, r.need_end[g] - r.k0);
  }
}

// Per lane the maximum of the scores so far, and the sum of e^(score - maximum), or of 2^ that.
struct RowSums {
  alignas(64) float top[kTileRows], sum[kTileRows];
  RowSums() {
    std::fill_n(top, kTileRows, -kMaxFloat);
    std::fill_n(sum, kTileRows, 0.0f);
  }
};

// Keys in order, whatever the width of the vectors.
template <bool kNatural>
void AddToRowSums(const RowTile& t, const BlockRange& r, const float* s, RowSums& sums) {
  const F d;
  const auto power = [&](Vec x) HWY_ATTR {
    if constexpr (kNatural)
      return Exp(d, x);
    else
      return Exp2(d, x);
  };
  EachLane(t, r, [&](int lane, int first, int last) HWY_ATTR {
    const Vec old = hn::Load(d, sums.top + lane);
    Vec top = old;
    for (int k = first; k < last; ++k) top = hn::Max(top, hn::LoadU(d, s + k * kTileRows + lane));
    Vec sum = hn::Mul(hn::Load(d, sums.sum + lane), power(hn::Sub(old, top)));
    for (int k = first; k < last; ++k) {
      const Vec x = hn::LoadU(d, s + k * kTileRows + lane);
      sum = hn::Add(sum, hn::IfThenZeroElse(hn::Eq(x, hn::Set(d, -kInfinity)), power(hn::Sub(x, top))));
    }
    hn::Store(top, d, sums.top + lane);
    hn::Store(sum, d, sums.sum + lane);
  });
}

// s <- s - top.
inline void CountFrom(const float* top, const RowTile& t, const BlockRange& r, float* s) {
  const F d;
  EachLane(t, r, [&](int lane, int first, int last) HWY_ATTR {
    const Vec from = hn::LoadU(d, top + lane);
    for (int k = first; k < last; ++k) {
      float* at = s + k * kTileRows + lane;
      hn::StoreU(hn::Sub(hn::LoadU(d, at), from), d, at);
    }
  });
}

inline bool IsLarge(float lse) { return std::abs(lse) > kLargeLogSum && std::abs(lse) <= kMaxFloat; }

// Rows of large scores: lse becomes what is left of it above `top`. `unit`: the natural logarithm of the scores' base.
inline void KeepRowSums(const RowSums& sums, float unit, float* lse, float* top) {
  for (int lane = 0; lane < kTileRows; ++lane) {
    if (!IsLarge(lse[lane]) || sums.sum[lane] <= 0) continue;
    const double from = double{sums.top[lane]} * unit, epsilon = std::numeric_limits<float>::epsilon();
    lse[lane] = static_cast<float>(log_sum_above(double{lse[lane]}, from, double{sums.sum[lane]}, epsilon));
    top[lane] = sums.top[lane];
  }
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
