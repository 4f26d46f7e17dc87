// Relative keys and values: vectors per distance that meet the queries or join the values, a band of distances at a
// time.
//
// Sixteen queries in a row and n keys are n + 15 distances apart, so one product of that many rows of the
// table with the queries holds all their terms (blocks of 256 keys: 6 % more than they need):
//   band[d][q] = ⟨relative_key[d], query[q]⟩,   score[k][q] = band[k - q][q]
// Reading the band along its diagonals is a shift of each lane by its own number: log2(lanes) blends. A term
// is summed in the order of the score products, whatever the band it is made in.
//
// Relative values go the other way: the probabilities of 16 queries, laid out by distance, times the rows of the table.
// Half a block at a time, so that a band of 128 keys serves forward and backward.

#if defined(MULTIHEAD_KERNELS_ATTENTION_BLOCK_RELATIVE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_BLOCK_RELATIVE_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_BLOCK_RELATIVE_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_BLOCK_RELATIVE_INL_H_
#endif

#include "multihead/kernels/attention/block/backward_call-inl.h"
#include "multihead/kernels/attention/block/block-inl.h"
#include "multihead/kernels/attention/block/scores-inl.h"
#include "multihead/kernels/attention/block/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Rows [first, first + count) of a table: all that lanes [start, start + 16) of a tile and a range of keys
// meet. Lane start + l and key k meet row k + offset - l, or the table's first or last.
struct DistanceBand {
  const float* rows = nullptr;  // the first
  int64_t first = 0, count = 0, offset = 0;
};

HWY_INLINE DistanceBand BandOf(const RelativeTable& table, const RowTile& t, int start, KeyRange keys) {
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

// Rows that a group does not need become zero, so that the products may run over them.
inline void ZeroUnneeded(const RowTile& t, const BlockRange& r, float* s) {
  for (int g = 0; g < t.groups; ++g) {
    ZeroRows(s + g * kGroupRows, r.need_begin[g] - r.k0);
    ZeroRows(s + (r.need_end[g] - r.k0) * kTileRows + g * kGroupRows, r.k1 - r.need_end[g]);
  }
}

// Numbers of sixteen queries by distance, one query a row: 16 distances of margin on either side.
inline constexpr int kBandRow = kBackwardBlock + 4 * kGroupRows;

// band[lane][16 + row - first] = the lane's number at that row of the table, zeros elsewhere. The first and last row
// take what lies beyond. `ds` begins with key keys.begin. `kAscending`: keys beyond the last row are added in order,
// whichever queries are neighbours.
template <bool kAscending>
HWY_INLINE void GatherBand(const float* ds, const DistanceBand& d, int64_t span, int count, KeyRange keys,
                           float* band) {
  std::fill_n(band, kGroupRows * kBandRow, 0.0f);
  // Keys that lie beyond for all sixteen lanes are summed first.
  const int64_t low = std::clamp<int64_t>(1 - d.offset, keys.begin, keys.end);
  const int64_t high = std::clamp<int64_t>(span - 1 + kGroupRows - 1 - d.offset, low, keys.end);
  float before[kGroupRows] = {}, behind[kGroupRows] = {};
  const auto sum = [&](int64_t from, int64_t to, float* sums) {
    for (int64_t k = from; k < to; ++k) {
      for (int i = 0; i < count; ++i) sums[i] += ds[(k - keys.begin) * kTileRows + i];
    }
  };
  sum(keys.begin, low, before);
  if (!kAscending) sum(high, keys.end, behind);
  // A row's length less one from lane to lane: each is shifted by its own number.
  const int64_t margin = kGroupRows;
  TransposeTo(ds + (low - keys.begin) * kTileRows, kTileRows, high - low, count,
              band + (low + d.offset - d.first + margin), kBandRow - 1, 1.0f);
  const bool starts = d.first == 0, ends = d.first + d.count == span;
  for (int i = 0; i < count; ++i) {
    float* row = band + i * kBandRow;
    for (int64_t c = 0; starts && c < margin; ++c) before[i] += row[c];
    for (int64_t c = margin + d.count; ends && c < kBandRow; ++c) behind[i] += row[c];
  }
  if (kAscending) sum(high, keys.end, behind);
  for (int i = 0; i < count; ++i) {
    float* row = band + i * kBandRow;
    row[margin] += before[i];
    row[margin + d.count - 1] += behind[i];
  }
}

// Weights of a tile with the keys of a block, and where their part of the output goes.
struct RelativeValueSum {
  const RowTile& tile;
  BlockRange range;
  const RelativeTable& table;
  int64_t columns;      // of a row of the output
  float* weights;       // [key][kTileRows]
  const float* shadow;  // scores: -inf where a key is not to be touched; null: products may touch it
  const float* beta;    // factor per row; null: 1
  float* scratch;       // kRelativeValueFloats
  float* out;
};
inline constexpr int kRelativeValueColumns = 512;
inline constexpr int kRelativeValueFloats = kGroupRows * (kBandRow + kRelativeValueColumns);

// out[q] += beta · Σ_k weights[k][q] · relative_value[k - q]. In tile_steps.cc.
void AddRelativeValues(const RelativeValueSum& sum);

// s[k - k0][q] <- the relative keys' part of the scores, wherever needed. `product`: (r.k1 - r.k0 + 15) · 16
// floats. In tile_steps.cc.
void RelativeScores(const RelativeTable& table, int64_t dim, const RowTile& t, const BlockRange& r,
                    const float* qt, float* product, float* s);

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
