// From a block of scores [key][query] to their gradients, and from these to those of the score terms.

#if defined(MULTIHEAD_KERNELS_ATTENTION_BLOCK_SCORE_GRADIENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_BLOCK_SCORE_GRADIENTS_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_BLOCK_SCORE_GRADIENTS_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_BLOCK_SCORE_GRADIENTS_INL_H_
#endif

#include "multihead/kernels/attention/block/backward_call-inl.h"
#include "multihead/kernels/attention/block/block-inl.h"
#include "multihead/kernels/attention/block/relative-inl.h"

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

// Weights without a softmax and what their gradients are made of.
struct WeightArgs {
  Normalise normalise;
  const float* raw;      // what the weights were made of, -inf where excluded
  const float* slope;    // the weights' derivative by it; null: applied later, or 1
  const float* inverse;  // per lane: 1 / normaliser
  const float* delta;    // per lane: ⟨out, d_out⟩ / normaliser less the normaliser's own gradient
};

// s <- w / normaliser, dp <- gradient of raw: that of w is dp / normaliser - delta · (1 or the sign of w). `factor`
// is what dropout multiplies by.
HWY_INLINE void WeightGradient(const WeightArgs& args, int64_t at, int lane, Vec factor, float* s, float* dp,
                               float* dropped) {
  const F d;
  const Vec zero = hn::Zero(d), one = hn::Set(d, 1.0f);
  const auto excluded = hn::Eq(hn::LoadU(d, args.raw + at), hn::Set(d, -kInfinity));
  const Vec w = hn::IfThenZeroElse(excluded, hn::LoadU(d, s + at));
  const Vec inverse = hn::Mul(hn::LoadU(d, args.inverse + lane), factor);
  Vec share = hn::LoadU(d, args.delta + lane);
  if (args.normalise == Normalise::abs_sum) {
    share = hn::IfThenZeroElse(hn::Eq(w, zero), hn::Mul(share, hn::CopySign(one, w)));
  }
  Vec dw = hn::NegMulAdd(one, share, hn::Mul(inverse, hn::LoadU(d, dp + at)));
  if (args.slope != nullptr)
    dw = hn::IfThenZeroElse(hn::Eq(dw, zero), hn::Mul(dw, hn::LoadU(d, args.slope + at)));
  hn::StoreU(hn::Mul(w, inverse), d, dropped + at);
  hn::StoreU(hn::IfThenZeroElse(excluded, dw), d, dp + at);
}

inline void WeightGradientRows(const AttentionProblem& p, const RowTile& t, const BlockRange& r,
                               const WeightArgs& args, float* s, float* dp, float* dropped) {
  const F d;
  if (p.dropout_p > 0 && p.dropout_p < 1) {
    const Vec keep_scale = hn::Set(d, static_cast<float>(1 / (1 - p.dropout_p)));
    EachDropout(p, t, r, [&](int k, int lane, hn::Mask<F> kept) HWY_ATTR {
      WeightGradient(args, int64_t{k - r.k0} * kTileRows + lane, lane, hn::IfThenElseZero(kept, keep_scale),
                     s, dp, dropped);
    });
    return;
  }
  const Vec factor = hn::Set(d, p.dropout_p > 0 ? 0.0f : 1.0f);
  for (int lane = 0; lane < t.groups * kGroupRows; lane += kN) {
    const int g = lane / kGroupRows;
    for (int k = r.need_begin[g]; k < r.need_end[g]; ++k) {
      WeightGradient(args, int64_t{k - r.k0} * kTileRows + lane, lane, factor, s, dp, dropped);
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

// Adds `rows` rows of ds (queries [first, first + rows) of the tile, keys [a, a + n)) to d_bias. Broadcast
// axes have stride 0: the sum runs over queries in order, for each key.
HWY_INLINE void AddBias(const float* ds, int rows, int n, const Strides4& s, float* to, float* transposed) {
  const F d;
  if (s.key != 1 || s.query == 0) {
    for (int k = 0; k < n; ++k) {
      for (int q = 0; q < rows; ++q) to[q * s.query + k * s.key] += ds[k * kTileRows + q];
    }
    return;
  }
  TransposeTo(ds, kTileRows, n, rows, transposed, n, 1.0f);
  for (int q = 0; q < rows; ++q) {
    float* row = to + q * s.query;
    const float* from = transposed + q * n;
    int k = 0;
    for (; k + kN <= n; k += kN)
      hn::StoreU(hn::Add(hn::LoadU(d, row + k), hn::LoadU(d, from + k)), d, row + k);
    for (; k < n; ++k) row[k] += from[k];
  }
}

HWY_INLINE void BiasGradient(const ScoreTerms& terms, const RowTile& t, const BlockRange& r, const float* ds,
                             float* d_bias, float* transposed) {
  const Strides4& s = terms.bias_strides;
  each_head_run(t, [&](int run, int run_count) {
    for (int first = run; first < run + run_count;) {
      const int g = first / kGroupRows, count = std::min(run + run_count, (g + 1) * kGroupRows) - first;
      const int a = r.need_begin[g], n = r.need_end[g] - a;
      float* to = d_bias + t.b * s.batch + t.head[first] * s.head + t.query[first] * s.query + a * s.key;
      AddBias(ds + (a - r.k0) * kTileRows + first, count, n, s, to, transposed);
      first += count;
    }
  });
}

// relative[head of the group][index] += ds, keys outer, queries inner.
HWY_INLINE void RelativeGradient(const ScoreTerms& terms, int64_t group, const RowTile& t,
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

// Adds a tile's gradients to each term's sums of the key block.
HWY_INLINE void AddToHeadSums(const ScoreTerms& terms, const LaneTerms& lanes, int64_t group,
                              const RowTile& t, const BlockRange& r, const float* ds, const HeadSums& sums,
                              int64_t block) {
  if (float* relative = sums[relative_bias_numbers]) {
    RelativeGradient(terms, group, t, r, ds, relative + block * group * terms.relative_span);
  }
  if (float* alibi = sums[alibi_slope]) AlibiGradient(lanes, group, t, r, ds, alibi + block * group);
}

// Operands of a tile's relative key gradients.
struct RelativeKeyArgs {
  const RelativeTable* table;
  int64_t dim, group;
  Rows query;       // of the tile
  int64_t columns;  // of all rows of sums: dim rounded up to 16
  float* d_query;   // of the tile; may be null
  float* sums;      // [group][sum_rows][columns], from row sum_first of the table on; may be null
  int64_t sum_first, sum_rows;
  float* band;         // 16 · kBandRow
  float* padded_rows;  // if columns != dim: room for a band's rows of the table
};

// Rows of the table with `columns` readable numbers each.
HWY_INLINE Rows BandRows(const RelativeKeyArgs& args, const DistanceBand& d) {
  if (args.columns == args.dim) return {d.rows, args.table->row_stride};
  for (int64_t i = 0; i < d.count; ++i) {
    float* to = args.padded_rows + i * args.columns;
    std::copy_n(d.rows + i * args.table->row_stride, args.dim, to);
    std::fill(to + args.dim, to + args.columns, 0.0f);
  }
  return {args.padded_rows, args.columns};
}

// d_query[q] += Σ_d band[q][d] relative_key[d], sums[d] += Σ_q band[q][d] query[q].
HWY_INLINE void RelativeKeyGradient(const RelativeKeyArgs& args, const RowTile& t, const BlockRange& r,
                                    const float* ds) {
  EachSixteen(t, r, [&](int start, int count, KeyRange keys) HWY_ATTR {
    const DistanceBand d = BandOf(*args.table, t, start, keys);
    GatherBand<false>(ds + (keys.begin - r.k0) * kTileRows + start, d, args.table->span, count, keys,
                      args.band);
    ProductArgs product{};
    product.a = args.band + kGroupRows, product.c_stride = args.columns;
    if (args.d_query) {
      const Rows rows = BandRows(args, d);
      product.a_row = kBandRow, product.a_step = 1, product.b = rows.data, product.b_stride = rows.stride;
      product.c = args.d_query + start * args.columns, product.k = d.count;
      product.first_chain = KeyChainRest(static_cast<int>(d.first)), product.chain = kKeyChain;
      Product<End::add, true>(product, count, args.columns);
    }
    if (args.sums) {
      product.a_row = 1, product.a_step = kBandRow;
      product.b = args.query.data + start * args.query.stride, product.b_stride = args.query.stride;
      product.c =
          args.sums +
          ((t.head[start] - t.kv * args.group) * args.sum_rows + d.first - args.sum_first) * args.columns;
      product.k = product.first_chain = count, product.chain = kGroupRows;
      Product<End::add, false>(product, d.count, args.columns);
    }
  });
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
