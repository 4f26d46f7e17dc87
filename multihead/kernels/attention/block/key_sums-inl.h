// Sums over a block's keys for the rows of a tile: out[q] = out[q] (op) Σ_k weights[k][q] · rows[k].
//
// Chain by chain of 64 keys, each for all rows of the tile: a chain's weights and rows (32 KiB at 64 columns)
// stay in L1. Row by row over all keys, every register tile read all of a block's rows from L2 again: dense
// forward 1.03-1.04, the product alone 1.09 (Sapphire Rapids, November 2026). The chains and the order of
// their sums are the same.

#if defined(MULTIHEAD_KERNELS_ATTENTION_BLOCK_KEY_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_BLOCK_KEY_SUMS_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_BLOCK_KEY_SUMS_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_BLOCK_KEY_SUMS_INL_H_
#endif

#include "multihead/kernels/attention/block/rows-inl.h"
#include "multihead/kernels/attention/block/scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Rows to prefetch during a product, `columns` floats of one for each row of A; there may be none.
struct PrefetchRows {
  Rows rows;
  int64_t columns = 0;
};
HWY_INLINE PrefetchRows Shifted(const PrefetchRows& prefetch, int64_t by) {
  return prefetch.rows.data ? PrefetchRows{Shifted(prefetch.rows, by), prefetch.columns} : prefetch;
}

// The part of each row that one chain of a block prefetches: all of it at once would hold up the loads that
// come after.
HWY_INLINE PrefetchRows ShareOf(const PrefetchRows& prefetch, const BlockRange& r, KeyRange chain) {
  if (!prefetch.rows.data) return prefetch;
  const int first = r.k0 / kKeyChain, chains = (r.k1 - 1) / kKeyChain - first + 1;
  const int64_t lines = (prefetch.columns + 15) / 16, share = (lines + chains - 1) / chains * 16;
  const int64_t from = (chain.begin / kKeyChain - first) * share;
  return {{prefetch.rows.data + from, prefetch.rows.stride}, std::min(share, prefetch.columns - from)};
}

struct KeySum {
  const RowTile& tile;
  const BlockRange& range;
  const float* weights;  // [key][kTileRows], from range.k0 on
  Rows rows;             // one per key, likewise
  int64_t columns;
  float* out;                    // [row][columns]
  const float* alpha = nullptr;  // End::merge, per row
  const float* beta = nullptr;
};

// Rows of a tile that share the keys which a sum runs over.
struct RowStepKeys {
  int row, count;
  KeyRange keys;
};

// Some columns of a sum. The chains before a row's last are summed in `partial`.
struct ColumnStrip {
  int64_t column, columns;
  float* partial;
  int64_t partial_stride;
};

// The part of `chain` in the sums of some rows. kOnly and kLast say what becomes of a row's only and of its
// last chain. `args` holds what is the same for all: filling it anew for each costs short rows .06.
template <End kOnly, End kLast>
HWY_INLINE void AddKeyChain(const KeySum& sum, const RowStepKeys& step, const ColumnStrip& strip,
                            KeyRange chain, const PrefetchRows& prefetch, ProductArgs& args) {
  const int begin = std::max(step.keys.begin, chain.begin), end = std::min(step.keys.end, chain.end);
  const bool none = step.keys.begin >= step.keys.end;  // such rows still merge, with nothing
  if (none ? kOnly == End::add || chain.begin != sum.range.k0 : begin >= end) return;
  const bool starts = none || begin == step.keys.begin, ends = none || end == step.keys.end;
  args.a = sum.weights + (begin - sum.range.k0) * kTileRows + step.row;
  args.b = Shifted(sum.rows, begin - sum.range.k0).data + strip.column;
  args.k = none ? 0 : end - begin;
  args.prefetch = Shifted(prefetch, step.row).rows.data;
  if (!ends) {
    args.c = strip.partial + step.row * strip.partial_stride, args.c_stride = strip.partial_stride;
    return starts ? ProductColumns<End::store, false, false>(args, step.count, strip.columns)
                  : ProductColumns<End::add, false, false>(args, step.count, strip.columns);
  }
  args.c = sum.out + step.row * sum.columns + strip.column, args.c_stride = sum.columns;
  if constexpr (HasPartial(kLast)) args.partial = strip.partial + step.row * strip.partial_stride;
  if constexpr (Merges(kOnly)) args.alpha = sum.alpha + step.row, args.beta = sum.beta + step.row;
  starts ? ProductColumns<kOnly, false, false>(args, step.count, strip.columns)
         : ProductColumns<kLast, false, false>(args, step.count, strip.columns);
}

// SumOverKeys of a range within one chain.
template <End kOnly, class Before>
HWY_INLINE void SumOverChain(const KeySum& sum, const PrefetchRows& prefetch, const Before& before) {
  const BlockRange& r = sum.range;
  before(KeyRange{r.k0, r.k1});
  ProductArgs args{};
  args.a_row = 1, args.a_step = kTileRows, args.b_stride = sum.rows.stride, args.c_stride = sum.columns;
  args.prefetch_stride = prefetch.rows.stride, args.prefetch_columns = prefetch.columns;
  EachRowStep(sum.tile, r, sum.columns, [&](int row, int count, KeyRange keys) HWY_ATTR {
    if (kOnly == End::add && keys.begin == keys.end) return;  // others merge, with nothing
    args.a = sum.weights + (keys.begin - r.k0) * kTileRows + row;
    args.b = Shifted(sum.rows, keys.begin - r.k0).data, args.k = keys.end - keys.begin;
    args.c = sum.out + row * sum.columns;
    args.prefetch = Shifted(prefetch, row).rows.data;
    if constexpr (Merges(kOnly)) args.alpha = sum.alpha + row, args.beta = sum.beta + row;
    ProductColumns<kOnly, false, false>(args, count, sum.columns);
  });
}

// All of a sum. `in_place`: the chains before a row's last are summed in `out`. One of the rows `prefetch`
// for each row. before(keys) comes before the first use of these keys.
template <End kOnly, End kLast, class Before>
HWY_INLINE void SumOverKeys(const KeySum& sum, bool in_place, const PrefetchRows& prefetch,
                            const Before& before) {
  if (sum.range.k1 - sum.range.k0 <= KeyChainRest(sum.range.k0)) {
    return SumOverChain<kOnly>(sum, prefetch, before);
  }
  alignas(64) float partial[kTileRows * kPartialColumns];
  RowStepKeys steps[kTileRows];
  int count = 0;
  EachRowStep(sum.tile, sum.range, sum.columns, [&](int row, int rows, KeyRange keys) {
    steps[count++] = {row, rows, keys};
  });
  ProductArgs args{};
  args.a_row = 1, args.a_step = kTileRows, args.b_stride = sum.rows.stride;
  int64_t column = 0;
  do {  // once without columns, too: the keys still count
    const int64_t columns = std::min<int64_t>(sum.columns - column, kPartialColumns);
    const ColumnStrip strip = in_place ? ColumnStrip{column, columns, sum.out + column, sum.columns}
                                       : ColumnStrip{column, columns, partial, kPartialColumns};
    for (KeyRange chain{0, sum.range.k0}; chain.end < sum.range.k1;) {
      chain = {chain.end, std::min(sum.range.k1, chain.end + KeyChainRest(chain.end))};
      if (column == 0) before(chain);
      const PrefetchRows share = column == 0 ? ShareOf(prefetch, sum.range, chain) : PrefetchRows{};
      args.prefetch_stride = share.rows.stride, args.prefetch_columns = share.columns;
      for (int i = 0; i < count; ++i) AddKeyChain<kOnly, kLast>(sum, steps[i], strip, chain, share, args);
    }
    column += kPartialColumns;
  } while (column < sum.columns);
}

// out[q] = out[q] · alpha[q] + beta[q] · Σ_k p[k][q] value[k], the sum from zero over the keys that q sees.
// `first`: out[q] is not read.
template <class Before>
HWY_INLINE void BlockValues(const KeySum& sum, bool first, const PrefetchRows& prefetch,
                            const Before& before) {
  first ? SumOverKeys<End::store, End::add>(sum, true, prefetch, before)
        : SumOverKeys<End::merge, End::add_merge>(sum, false, prefetch, before);
}

// out[q] += Σ_k weights[k][q] rows[k] over the keys that q sees.
inline void AddKeySums(const KeySum& sum) {
  SumOverKeys<End::add, End::add_both>(sum, false, {}, [](KeyRange) {});
}

// As KeySum over the runs of a block. `weights` of a run begin where those of the run before end, or, if `spread`, at
// the key's distance from runs.first; rows.data is the row of key runs.first.
struct RunSum {
  int count;  // of rows
  const KeyRuns& runs;
  const float* weights;
  bool spread;
  Rows rows;
  int64_t columns;
  float* out;  // [row][columns]
  const float* alpha = nullptr;
  const float* beta = nullptr;
};

// The keys of one chain in a block's runs: pieces of runs, and where their weights begin.
struct ChainPieces {
  static constexpr int kMost = kKeyChain / kRunGrain;
  int count = 0, keys = 0;
  KeyRange piece[kMost];
  int64_t weights[kMost];

  bool has_holes() const { return piece[count - 1].end - piece[0].begin != keys; }
};

HWY_INLINE int PiecesOfRuns(const KeyRuns& runs, bool spread, ChainPieces* chains) {
  int count = 0, chain = -1;
  int64_t at = 0;
  for (int i = 0; i < runs.count; ++i) {
    for (int k = runs.run[i].begin, end = 0; k < runs.run[i].end; k = end) {
      end = std::min(runs.run[i].end, k + KeyChainRest(k));
      if (k / kKeyChain != chain) chain = k / kKeyChain, chains[count++] = {};
      ChainPieces& last = chains[count - 1];
      last.piece[last.count] = {k, end};
      last.weights[last.count++] = (spread ? k - runs.first : at) * kTileRows;
      last.keys += end - k, at += end - k;
    }
  }
  return count;
}

template <End kEnd>
HWY_NOINLINE void ChainProduct(ProductArgs& args, int64_t rows, int64_t columns) {
  ProductColumns<kEnd, false, false>(args, rows, columns);
}

// Copies the rows of a chain's pieces, some of their columns, one behind the other.
HWY_INLINE void GatherPieces(const ChainPieces& chain, const Rows& from, int first, int64_t columns,
                             float* to) {
  for (int i = 0; i < chain.count; ++i) {
    for (int k = chain.piece[i].begin; k < chain.piece[i].end; ++k, to += columns) {
      std::copy_n(from.data + (k - first) * from.stride, columns, to);
    }
  }
}

// The rows and weights of a chain as one product takes them: where they lie, or, if it has holes, copies.
HWY_INLINE void PlaceChain(const RunSum& sum, const ChainPieces& chain, int64_t column, int64_t columns,
                           float* rows, float* weights, ProductArgs& args) {
  const Rows all{sum.rows.data + column, sum.rows.stride};
  const Rows in_place = Shifted(all, chain.piece[0].begin - sum.runs.first);
  args.a = sum.weights + chain.weights[0], args.b = in_place.data, args.b_stride = in_place.stride;
  args.k = chain.keys, args.a_step = kTileRows;
  if (!chain.has_holes()) return;
  GatherPieces(chain, all, sum.runs.first, columns, rows);
  args.b = rows, args.b_stride = columns;
  if (!sum.spread) return;
  args.a = weights, args.a_step = padded(sum.count);
  GatherPieces(chain, {sum.weights, kTileRows}, sum.runs.first, args.a_step, weights);
}

// The sums of SumOverKeys over the runs of a block: the same chains without the keys that nobody sees, whose weights
// would be zero. before(keys, weights) comes before the first use of these keys.
template <End kOnly, End kLast, class Before>
HWY_INLINE void SumOverRuns(const RunSum& sum, bool in_place, const Before& before) {
  alignas(64) float partial[kTileRows * kPartialColumns], rows[kKeyChain * kPartialColumns],
      weights[kKeyChain * kTileRows];
  ChainPieces chains[attention_key_block / kKeyChain];
  const int count = PiecesOfRuns(sum.runs, sum.spread, chains);
  ProductArgs args{};
  args.a_row = 1;
  int64_t column = 0;
  do {
    const int64_t columns = std::min<int64_t>(sum.columns - column, kPartialColumns);
    float* const out = sum.out + column;
    for (int i = 0; i < count; ++i) {
      const ChainPieces& chain = chains[i];
      for (int n = 0; column == 0 && n < chain.count; ++n) before(chain.piece[n], chain.weights[n]);
      PlaceChain(sum, chain, column, columns, rows, weights, args);
      const bool first = i == 0, last = i + 1 == count;
      args.c = last || in_place ? out : partial;
      args.c_stride = last || in_place ? sum.columns : kPartialColumns;
      args.partial = partial, args.alpha = sum.alpha, args.beta = sum.beta;
      if (first && last) {
        ChainProduct<kOnly>(args, sum.count, columns);
      } else if (last) {
        ChainProduct<kLast>(args, sum.count, columns);
      } else if (first) {
        ChainProduct<End::store>(args, sum.count, columns);
      } else {
        ChainProduct<End::add>(args, sum.count, columns);
      }
    }
    column += kPartialColumns;
  } while (column < sum.columns);
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
