// The products of the f32 scores, compiled once for both directions.
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/attention/score_product.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#if HWY_TARGET != HWY_SCALAR
#include "multihead/kernels/attention/engine_f32-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

void ScoreProduct(const RowTile& t, const BlockRange& r, const Rows& key, const float* qt, int64_t dim,
                  float* s, float* max, const PrefetchRows& prefetch, const ProductTerm& term) {
  ProductArgs args{};
  alignas(64) float unused_max[kTileRows] = {};
  args.a_row = key.stride, args.a_step = 1, args.b_stride = kTileRows, args.c_stride = kTileRows;
  args.k = dim, args.first_chain = args.chain = ColumnChain(dim);
  args.prefetch_stride = prefetch.rows.stride, args.prefetch_columns = prefetch.columns;
  EachNeeded(t, r, [&](int k, int end, int first, int last, bool full) HWY_ATTR {
    const int rows = end - k, columns = (last - first) * kGroupRows;
    args.a = Shifted(key, k - r.k0).data;
    args.b = qt + first * kGroupRows;
    args.c = s + (k - r.k0) * kTileRows + first * kGroupRows;
    args.prefetch = Shifted(prefetch, k - r.k0).rows.data;
    args.max = full ? max : term.end == End::store_max ? nullptr : unused_max;
    switch (term.end) {
      case End::bias_max:
        return Product<End::bias_max, true>(args, rows, columns);
      case End::alibi_max:
        args.slope = term.slope + first * kGroupRows, args.place = term.place + first * kGroupRows;
        args.key = k;
        return Product<End::alibi_max, true>(args, rows, columns);
      default:
        return args.max ? Product<End::store_max, true>(args, rows, columns)
                        : Product<End::store, true>(args, rows, columns);
    }
  });
}

void BandProduct(const ProductArgs& args, int64_t rows) { Product<End::store, true>(args, rows, kGroupRows); }

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
