// Relative keys: the vectors per distance that meet the queries, a band of distances at a time.
//
// Sixteen queries in a row and n keys are n + 15 distances apart, so one product of that many rows of the
// table with the queries holds all their terms (blocks of 256 keys: 6 % more than they need):
//   band[d][q] = ⟨relative_key[d], query[q]⟩,   score[k][q] = band[k - q][q]
// Reading the band along its diagonals is a shift of each lane by its own number: log2(lanes) blends. A term
// is summed in the order of the score products, whatever the band it is made in.

#if defined(MULTIHEAD_KERNELS_ATTENTION_RELATIVE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_RELATIVE_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_RELATIVE_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_RELATIVE_INL_H_
#endif

#include "multihead/kernels/attention/scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Rows [first, first + count) of a table: all that lanes [start, start + 16) of a tile and a range of keys
// meet. Lane start + l and key k meet row k + offset - l, or the table's first or last.
struct DistanceBand {
  const float* rows = nullptr;  // the first
  int64_t first = 0, count = 0, offset = 0;
};

HWY_INLINE DistanceBand BandOf(const RelativeKey& table, const RowTile& t, int start, KeyRange keys) {
  DistanceBand band;
  const int64_t last = table.span - 1;
  band.offset = table.center - t.query[start] - t.diagonal;
  band.first = std::clamp<int64_t>(keys.begin + band.offset - (kGroupRows - 1), 0, last);
  band.count = std::clamp<int64_t>(keys.end - 1 + band.offset, 0, last) + 1 - band.first;
  band.rows = as_floats(table.data) + t.head[start] * table.head_stride + band.first * table.row_stride;
  return band;
}

// Calls f(start, count, keys) for up to 16 neighbouring queries of one head and the keys that they need.
template <class Body>
HWY_INLINE void EachSixteen(const RowTile& t, const BlockRange& r, Body&& f) {
  each_head_run(t, [&](int first, int run) HWY_ATTR {
    for (int start = first; start < first + run; start += kGroupRows) {
      const int count = std::min(kGroupRows, first + run - start);
      KeyRange keys{r.k1, r.k0};
      for (int g = start / kGroupRows; g <= (start + count - 1) / kGroupRows; ++g) {
        if (r.need_begin[g] == r.need_end[g]) continue;
        keys.begin = std::min(keys.begin, r.need_begin[g]);
        keys.end = std::max(keys.end, r.need_end[g]);
      }
      if (keys.begin < keys.end) f(start, count, keys);
    }
  });
}

// y[i] <- y[i - lane] in each lane, for i >= kN - 1.
HWY_INLINE void ShiftLanes(Vec (&y)[2 * kN - 1]) {
  const I di;
#pragma GCC unroll 4
  for (int step = 1; step < kN; step *= 2) {
    const auto moves = hn::RebindMask(F(), hn::TestBit(hn::Iota(di, 0), hn::Set(di, step)));
#pragma GCC unroll 32
    for (int i = 2 * kN - 2; i >= step; --i) y[i] = hn::IfThenElse(moves, y[i - step], y[i]);
  }
}

// to[k][lane] = band[row of key k for the lane][lane] for kN lanes from `lane` on (of the band's 16).
HWY_INLINE void SpreadLanes(const float* product, const DistanceBand& band, int lane, KeyRange keys,
                            float* to) {
  const F d;
  for (int k = keys.begin; k < keys.end; k += kN, to += kN * kTileRows) {
    Vec y[2 * kN - 1];
    const int64_t row = k + band.offset - lane - (kN - 1) - band.first;
#pragma GCC unroll 32
    for (int i = 0; i < 2 * kN - 1; ++i) {
      y[i] = hn::LoadU(d, product + std::clamp<int64_t>(row + i, 0, band.count - 1) * kGroupRows + lane);
    }
    ShiftLanes(y);
    const int count = std::min(kN, keys.end - k);
    if (count == kN) {
#pragma GCC unroll 16
      for (int j = 0; j < kN; ++j) hn::StoreU(y[kN - 1 + j], d, to + j * kTileRows + lane);
    } else {
      alignas(64) float rows[kN * kN];
#pragma GCC unroll 16
      for (int j = 0; j < kN; ++j) hn::Store(y[kN - 1 + j], d, rows + j * kN);
      for (int j = 0; j < count; ++j) std::copy_n(rows + j * kN, kN, to + j * kTileRows + lane);
    }
  }
}

// The rows of a band with sixteen queries. In score_product.cc.
void BandProduct(const ProductArgs& args, int64_t rows);

// s[k - k0][q] <- the relative keys' part of the scores, wherever needed. `product`: (r.k1 - r.k0 + 15) · 16
// floats.
HWY_INLINE void RelativeScores(const RelativeKey& table, int64_t dim, const RowTile& t, const BlockRange& r,
                               const float* qt, float* product, float* s) {
  ProductArgs args{};
  args.a_row = table.row_stride, args.a_step = 1, args.b_stride = kTileRows, args.c_stride = kGroupRows;
  args.k = dim, args.first_chain = args.chain = ColumnChain(dim), args.c = product;
  EachSixteen(t, r, [&](int start, int count, KeyRange keys) HWY_ATTR {
    const DistanceBand band = BandOf(table, t, start, keys);
    const int column =
        std::min(start, kTileRows - kGroupRows);  // sixteen lanes of the tile, these among them
    args.a = band.rows, args.b = qt + column;
    BandProduct(args, band.count);
    float* to = s + (keys.begin - r.k0) * kTileRows;
    if (start % kGroupRows == 0 && (count == kGroupRows || start + count == t.rows)) {  // else others' lanes
      for (int lane = 0; lane < kGroupRows; lane += kN) SpreadLanes(product, band, lane, keys, to + start);
      return;
    }
    for (int k = keys.begin; k < keys.end; ++k, to += kTileRows) {
      for (int lane = 0; lane < count; ++lane) {
        const int64_t row = std::clamp<int64_t>(k + band.offset - lane - band.first, 0, band.count - 1);
        to[start + lane] = product[row * kGroupRows + start - column + lane];
      }
    }
  });
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
