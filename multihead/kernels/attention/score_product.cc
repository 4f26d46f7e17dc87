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
  for (NeededPart part{.end = r.k0}; NextNeeded(t, r, part);) {
    const int rows = part.end - part.k, columns = (part.last - part.first) * kGroupRows;
    args.a = Shifted(key, part.k - r.k0).data;
    args.b = qt + part.first * kGroupRows;
    args.c = s + (part.k - r.k0) * kTileRows + part.first * kGroupRows;
    args.prefetch = Shifted(prefetch, part.k - r.k0).rows.data;
    args.max = part.full ? max : term.end == End::store_max ? nullptr : unused_max;
    switch (term.end) {
      case End::bias_max:
        Product<End::bias_max, true>(args, rows, columns);
        break;
      case End::alibi_max:
        args.slope = term.slope + part.first * kGroupRows, args.place = term.place + part.first * kGroupRows;
        args.key = part.k;
        Product<End::alibi_max, true>(args, rows, columns);
        break;
      default:
        args.max ? Product<End::store_max, true>(args, rows, columns)
                 : Product<End::store, true>(args, rows, columns);
    }
  }
}

void BandProduct(const ProductArgs& args, int64_t rows) { Product<End::store, true>(args, rows, kGroupRows); }

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
