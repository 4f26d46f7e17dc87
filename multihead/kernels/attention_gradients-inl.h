// Gradients of score terms from a block of score gradients [key][query].

#if defined(MULTIHEAD_KERNELS_ATTENTION_GRADIENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_GRADIENTS_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_GRADIENTS_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_GRADIENTS_INL_H_
#endif

#include "multihead/kernels/attention_backward.h"
#include "multihead/kernels/attention_terms-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Adds `rows` rows of ds (queries [first, first + rows) of the tile, keys [a, a + n)) to d_bias. Broadcast
// axes have stride 0: the sum runs over queries in order, for each key.
HWY_INLINE void AddBias(const float* ds, int rows, int n, const Strides4& s, float* to, float* turned) {
  const F d;
  if (s.key != 1 || s.query == 0) {
    for (int k = 0; k < n; ++k) {
      for (int q = 0; q < rows; ++q) to[q * s.query + k * s.key] += ds[k * kTileRows + q];
    }
    return;
  }
  TransposeTo(ds, kTileRows, n, rows, turned, n, 1.0f);
  for (int q = 0; q < rows; ++q) {
    float* row = to + q * s.query;
    const float* from = turned + q * n;
    int k = 0;
    for (; k + kN <= n; k += kN)
      hn::StoreU(hn::Add(hn::LoadU(d, row + k), hn::LoadU(d, from + k)), d, row + k);
    for (; k < n; ++k) row[k] += from[k];
  }
}

HWY_INLINE void BiasGradient(const ScoreTerms<float>& terms, const RowTile& t, const BlockRange& r,
                             const float* ds, float* d_bias, float* turned) {
  const Strides4& s = terms.bias_strides;
  each_head_run(t, [&](int run, int run_count) {
    for (int first = run; first < run + run_count;) {
      const int g = first / kGroupRows, count = std::min(run + run_count, (g + 1) * kGroupRows) - first;
      const int a = r.need_begin[g], n = r.need_end[g] - a;
      float* to = d_bias + t.b * s.batch + t.head[first] * s.head + t.query[first] * s.query + a * s.key;
      AddBias(ds + (a - r.k0) * kTileRows + first, count, n, s, to, turned);
      first += count;
    }
  });
}

// relative[head of the group][index] += ds, keys outer, queries inner.
HWY_INLINE void RelativeGradient(const ScoreTerms<float>& terms, int64_t group, const RowTile& t,
                                 const BlockRange& r, const float* ds, float* relative) {
  for (int row = 0; row < t.rows; ++row) {
    const int g = row / kGroupRows;
    float* table = relative + (t.head[row] - t.kv * group) * terms.relative_span;
    const int64_t offset = terms.relative_center - t.query[row] - t.diagonal, last = terms.relative_span - 1;
    for (int k = r.need_begin[g]; k < r.need_end[g]; ++k) {
      table[std::clamp<int64_t>(k + offset, 0, last)] += ds[(k - r.k0) * kTileRows + row];
    }
  }
}

// alibi[head of the group] -= Σ ds · distance.
HWY_INLINE void AlibiGradient(const LaneTerms& lanes, int64_t group, const RowTile& t, const BlockRange& r,
                              const float* ds, float* alibi) {
  const F d;
  alignas(64) float sum[kTileRows];
  for (int lane = 0; lane < t.groups * kGroupRows; lane += kN) {
    const int g = lane / kGroupRows;
    Vec total = hn::Zero(d);
    for (int k = r.need_begin[g]; k < r.need_end[g]; ++k) {
      total = hn::MulAdd(hn::LoadU(d, ds + (k - r.k0) * kTileRows + lane), Distance(lanes, lane, k), total);
    }
    hn::Store(total, d, sum + lane);
  }
  for (int row = 0; row < t.rows; ++row) alibi[t.head[row] - t.kv * group] -= sum[row];
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
