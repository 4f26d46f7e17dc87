// Relative keys: the vectors per distance that meet the queries, a band of distances at a time.
//
// Sixteen queries in a row and n keys are n + 15 distances apart, so one product of that many rows of the
// table with the queries holds all their terms (blocks of 256 keys: 6 % more than they need):
//   band[d][q] = ⟨relative_key[d], query[q]⟩,   score[k][q] = band[k - q][q]
// Reading the band along its diagonals is a shift of each lane by its own number: log2(lanes) blends. A term
// is summed in the order of the score products, whatever the band it is made in.

#if defined(MULTIHEAD_KERNELS_ATTENTION_BLOCK_RELATIVE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_BLOCK_RELATIVE_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_BLOCK_RELATIVE_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_BLOCK_RELATIVE_INL_H_
#endif

#include "multihead/kernels/attention/block/scores-inl.h"

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

// s[k - k0][q] <- the relative keys' part of the scores, wherever needed. `product`: (r.k1 - r.k0 + 15) · 16
// floats. In tile_steps.cc.
void RelativeScores(const RelativeKey& table, int64_t dim, const RowTile& t, const BlockRange& r,
                    const float* qt, float* product, float* s);

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
