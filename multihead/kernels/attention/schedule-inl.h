// Cuts attention into work: tiles of 64 rows (queries of one key head), the keys each row may see as an
// interval, and tasks. Plain C++, shared by the forward and backward kernels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "multihead/kernels/attention/attention.h"

namespace multihead::kernels {

inline constexpr int kTileRows = 64;   // four AVX-512 vectors of queries
inline constexpr int kGroupRows = 16;  // unit in which a tile drops excluded queries, on every target
inline constexpr int kTileGroups = kTileRows / kGroupRows;

/// Rows [begin, begin + rows) of one key head. With grouped heads row r of a key head is query r % Tq of its
/// head r / Tq, so that a short query block shares one pass over the keys among all heads of the group.
struct RowTile {
  int64_t b = 0, kv = 0;
  int rows = 0, groups = 0;
  int32_t diagonal = 0;
  alignas(64) int32_t query[kTileRows];
  alignas(64) int32_t head[kTileRows];
  alignas(64) int32_t lo[kTileRows];  // keys [lo, hi) by the analytic masks; padding lanes see everything
  alignas(64) int32_t hi[kTileRows];
  // Over the rows of a group: hull [lo_min, hi_max), and [lo_max, hi_min) that all of them see.
  int32_t lo_min[kTileGroups], lo_max[kTileGroups], hi_min[kTileGroups], hi_max[kTileGroups];
  int32_t begin = 0, end = 0;            // hull of the tile
  int32_t full_begin = 0, full_end = 0;  // what all rows see

  bool empty() const { return begin >= end; }
};

/// The interval [lo, hi) of keys that a query sees by the analytic masks; {kNever, 0} if it sees none.
struct KeyInterval {
  static constexpr int32_t kNever = std::numeric_limits<int32_t>::max();
  int32_t lo = kNever, hi = 0;
};

/// The analytic masks of one sample, digested: rule(i) is the interval of query i.
struct IntervalRule {
  IntervalRule(const AttentionProblem& p, int64_t sample);

  KeyInterval operator()(int64_t i) const {
    if (i >= queries) return {};
    int64_t lo = std::max<int64_t>(begin, i + left), hi = std::min(end, i + right);
    if (key_begin) lo = std::max(lo, key_begin[i]);
    if (key_end) hi = std::min(hi, key_end[i]);
    if (lo >= hi) return {};
    return {static_cast<int32_t>(lo), static_cast<int32_t>(hi)};
  }

  static constexpr int64_t kOpen = int64_t{1} << 42;
  int64_t queries = 0, begin = 0, end = 0, left = -kOpen, right = kOpen;
  const int64_t* key_begin = nullptr;
  const int64_t* key_end = nullptr;
};

void make_row_tile(const AttentionProblem& p, int64_t b, int64_t kv, int64_t row_begin, int64_t row_end,
                   RowTile& tile);

/// As make_row_tile, but where samples and heads have the same masks the thread's last tiles of call
/// `number` are reused (a third of the time of a 64x64 head's set-up).
void make_row_tile_again(const AttentionProblem& p, uint64_t number, int64_t b, int64_t kv, int64_t row_begin,
                         int64_t row_end, RowTile& tile);

/// Rows [row_begin, row_end) of key head (b, kv), at most `tiles` tiles.
struct AttentionTask {
  int64_t b = 0, kv = 0, row_begin = 0, row_end = 0;
  int64_t key_begin = 0, key_end = 0;  // hull over the rows
  double pairs = 0;                    // cost
};

/// All tasks, longest first where lengths differ. `most_tiles` bounds a task's rows.
void make_tasks(const AttentionProblem& p, int64_t most_tiles, std::vector<AttentionTask>& tasks);

/// Class of key block [k0, k1) for rows [row_begin, row_end) of a tile by dense mask and mask function (analytic masks
/// aside).
BlockClass mask_class(const AttentionProblem& p, const RowTile& tile, int row_begin, int row_end, int64_t k0,
                      int64_t k1);
inline BlockClass mask_class(const AttentionProblem& p, const RowTile& tile, int64_t k0, int64_t k1) {
  return mask_class(p, tile, 0, tile.rows, k0, k1);
}

/// Writes keep[k][q] (stride kTileRows) for keys [k0, k1) of a tile: dense mask and mask function. False if
/// no query may see any of them.
bool fill_keep(const AttentionProblem& p, const RowTile& tile, int64_t k0, int64_t k1, uint8_t* keep);

/// Keys [begin, end) of which a tile's queries see some; `partial`: not all of them do, of those in `groups`.
inline constexpr unsigned kAllGroups = (1u << kTileGroups) - 1;
struct KeyRun {
  int begin = 0, end = 0;
  bool partial = false;
  unsigned groups = kAllGroups;  // a bit for each 16 rows; the others see none of the keys

  bool operator==(const KeyRun&) const = default;
};
inline constexpr int kRunGrain = 16;  // runs begin and end at its multiples, or where the block does
struct KeyRuns {
  int first = 0, last = 0;  // the keys that were looked at
  int count = 0;
  KeyRun run[attention_key_block / kRunGrain];

  void add(const KeyRun& more);
  bool whole() const {
    return count == 1 && run[0].begin == first && run[0].end == last && run[0].groups == kAllGroups;
  }
  bool all() const { return whole() && !run[0].partial; }
  bool by_group() const {
    return std::any_of(run, run + count, [](const KeyRun& r) { return r.groups != kAllGroups; });
  }
  KeyRuns of_group(int group) const;
};

/// The keys of [k0, k1), which lie in one key block, that a tile sees by dense mask and mask function; keep[k - k0][q]
/// is written where a run is partial. `skips`: in runs, else all of them or none.
KeyRuns seen_keys(const AttentionProblem& p, const RowTile& tile, int k0, int k1, bool skips, uint8_t* keep);

/// As seen_keys with `skips`, where groups of 16 rows see other keys in runs of their own.
KeyRuns seen_by_groups(const AttentionProblem& p, const RowTile& tile, int k0, int k1, uint8_t* keep);

/// Runs of equal head in rows [begin, end) of a tile: f(first_row, count).
template <class F>
void each_head_run(const RowTile& tile, int begin, int end, F&& f) {
  for (int first = begin; first < end;) {
    int last = first + 1;
    while (last < end && tile.head[last] == tile.head[first]) ++last;
    f(first, last - first);
    first = last;
  }
}
template <class F>
void each_head_run(const RowTile& tile, F&& f) {
  each_head_run(tile, 0, tile.rows, f);
}

/// Rounds up to whole groups of 16 floats.
inline int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

}  // namespace multihead::kernels
