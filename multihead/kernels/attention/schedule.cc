#include "multihead/kernels/attention/schedule-inl.h"

#include <algorithm>
#include <cstring>

#include "multihead/kernels/attention/driver-inl.h"

namespace multihead::kernels {
namespace {

constexpr int32_t kNever = KeyInterval::kNever;

void summarise(RowTile& t) {
  t.begin = kNever;
  t.end = 0;
  t.full_begin = 0;
  t.full_end = kNever;
  for (int g = 0; g < t.groups; ++g) {
    t.lo_min[g] = kNever, t.lo_max[g] = 0, t.hi_min[g] = kNever, t.hi_max[g] = 0;
    for (int r = g * kGroupRows; r < std::min(t.rows, (g + 1) * kGroupRows); ++r) {
      t.lo_min[g] = std::min(t.lo_min[g], t.lo[r]);
      t.lo_max[g] = std::max(t.lo_max[g], t.lo[r]);
      t.hi_min[g] = std::min(t.hi_min[g], t.hi[r]);
      t.hi_max[g] = std::max(t.hi_max[g], t.hi[r]);
    }
    t.begin = std::min(t.begin, t.lo_min[g]);
    t.end = std::max(t.end, t.hi_max[g]);
    t.full_begin = std::max(t.full_begin, t.lo_max[g]);
    t.full_end = std::min(t.full_end, t.hi_min[g]);
  }
}

}  // namespace

bool samples_are_alike(const AttentionProblem& p) {
  return !p.sequences && !p.diagonals && !p.key_lengths && !p.query_lengths &&
         !((p.key_begin || p.key_end) && p.interval_stride != 0);
}

IntervalRule::IntervalRule(const AttentionProblem& p, int64_t sample)
    : queries(p.first_query() + p.query_count(sample)),
      begin(p.first_key()),
      end(begin + p.key_count(sample)) {
  const int64_t diagonal = p.diagonal_of(sample);
  if (p.query_lengths) queries = std::min(queries, p.query_lengths[sample]);
  if (p.key_lengths) end = std::clamp<int64_t>(p.key_lengths[sample], begin, end);
  // With these bounds no sum below overflows; a diagonal or window beyond them masks all or nothing.
  static constexpr int64_t kFar = int64_t{1} << 40;
  const auto bounded = [](int64_t x) { return std::clamp(x, -kFar, kFar); };
  if (p.window_left >= 0) left = bounded(diagonal) - bounded(p.window_left);
  if (p.causal) right = bounded(diagonal) + 1;
  if (p.window_right >= 0) right = std::min(right, bounded(diagonal) + bounded(p.window_right) + 1);
  if (p.key_begin) key_begin = p.key_begin + sample * p.interval_stride;
  if (p.key_end) key_end = p.key_end + sample * p.interval_stride;
}

void make_row_tile(const AttentionProblem& p, int64_t b, int64_t kv, int64_t row_begin, int64_t row_end,
                   RowTile& t) {
  const int64_t queries = p.query_count(b), first = p.first_query();
  const IntervalRule rule(p, b);
  t.b = b;
  t.kv = kv;
  t.rows = static_cast<int>(row_end - row_begin);
  t.groups = (t.rows + kGroupRows - 1) / kGroupRows;
  t.diagonal = static_cast<int32_t>(std::clamp<int64_t>(p.diagonal_of(b), -(1 << 30), 1 << 30));
  int64_t head = kv * p.group() + row_begin / queries, i = first + row_begin % queries;
  if (p.one_head()) head += p.slice->head;
  for (int r = 0; r < t.groups * kGroupRows; ++r) {
    if (r >= t.rows) {
      t.query[r] = t.query[t.rows - 1], t.head[r] = t.head[t.rows - 1], t.lo[r] = 0, t.hi[r] = kNever;
      continue;
    }
    const KeyInterval keys = rule(i);
    t.query[r] = static_cast<int32_t>(i), t.head[r] = static_cast<int32_t>(head);
    t.lo[r] = keys.lo, t.hi[r] = keys.hi;
    if (++i == first + queries) i = first, ++head;
  }
  summarise(t);
}

void make_row_tile_again(const AttentionProblem& p, uint64_t number, int64_t b, int64_t kv, int64_t row_begin,
                         int64_t row_end, RowTile& t) {
  struct Last {
    uint64_t number = 0;
    int64_t row = 0, end = 0;
    RowTile tile;
  };
  constexpr int64_t kKept = 32, kStep = 32;  // tiles of a head; rows of the smallest ones
  static thread_local Last kept[kKept];
  if (!samples_are_alike(p) || number == 0) return make_row_tile(p, b, kv, row_begin, row_end, t);
  const int64_t queries = p.queries, row = row_begin % queries, end = row_end - row_begin + row;
  Last& last = kept[row / kStep % kKept];
  if (last.number != number || last.row != row || last.end != end) {
    make_row_tile(p, b, kv, row_begin, row_end, last.tile);
    last.number = number, last.row = row, last.end = end;
  }
  t = last.tile;
  t.b = b, t.kv = kv;
  const auto by = static_cast<int32_t>(kv * p.group() + row_begin / queries - t.head[0]);
  for (int r = 0; r < kTileRows; ++r) t.head[r] += by;
}

namespace {

// Tasks for rows [begin, end) of key head 0.
void add_tasks(const AttentionProblem& p, int64_t b, int64_t begin, int64_t end, int64_t most_tiles,
               bool unequal, const IntervalRule& rule, std::vector<AttentionTask>& tasks) {
  for (int64_t r = begin; r < end; r += most_tiles * kTileRows) {
    AttentionTask task{b, 0, r, std::min(end, r + most_tiles * kTileRows), 0, 0, 0};
    int64_t lo = kNever, hi = 0;
    double pairs = 0;
    for (int64_t i = task.row_begin; i < task.row_end; i += unequal ? 1 : task.row_end - task.row_begin) {
      const KeyInterval keys = rule(p.first_query() + i % p.query_count(b));
      lo = std::min<int64_t>(lo, keys.lo);
      hi = std::max<int64_t>(hi, keys.hi);
      pairs += std::max(0, keys.hi - keys.lo);
    }
    if (!unequal) pairs *= static_cast<double>(task.row_end - task.row_begin);
    task.key_begin = std::min(lo, hi), task.key_end = hi, task.pairs = pairs;
    tasks.push_back(task);
  }
}

// The tasks from `first` on again for index 1, 2, … count - 1.
void repeat_tasks(size_t first, int64_t count, int64_t AttentionTask::*index,
                  std::vector<AttentionTask>& tasks) {
  const size_t last = tasks.size();
  for (int64_t i = 1; i < count; ++i) {
    for (size_t n = first; n < last; ++n) {
      tasks.push_back(tasks[n]);
      tasks.back().*index = i;
    }
  }
}

}  // namespace

void make_tasks(const AttentionProblem& p, int64_t most_tiles, std::vector<AttentionTask>& tasks) {
  tasks.clear();
  bool unequal = p.causal || p.sequences || p.key_lengths || p.query_lengths || p.key_begin || p.key_end ||
                 p.window_left >= 0 || p.window_right >= 0;
  for (int64_t b = 0; b < (samples_are_alike(p) ? std::min<int64_t>(p.batch, 1) : p.batch); ++b) {
    const int64_t queries = p.query_count(b), rows = queries * p.group();
    if (rows == 0) continue;
    const IntervalRule rule(p, b);
    // Tiles of one head where a head fills them, else heads are packed into a tile.
    const int64_t span = queries >= kTileRows ? queries : rows;
    const size_t first = tasks.size();
    // Rows past the query length have tasks of their own, so that the others' tiles are free of them.
    const int64_t seeing = rule.queries - p.first_query();
    const int64_t valid = span == queries ? std::clamp<int64_t>(seeing, 0, queries) : span;
    for (int64_t start = 0; start < rows; start += span) {
      add_tasks(p, b, start, start + valid, most_tiles, unequal, rule, tasks);
      add_tasks(p, b, start + valid, start + span, most_tiles, unequal, rule, tasks);
    }
    repeat_tasks(first, p.kv_heads, &AttentionTask::kv, tasks);
  }
  if (samples_are_alike(p)) repeat_tasks(0, p.batch, &AttentionTask::b, tasks);
  if (!unequal) return;
  std::sort(tasks.begin(), tasks.end(), [](const AttentionTask& x, const AttentionTask& y) {
    if (x.pairs != y.pairs) return x.pairs > y.pairs;
    if (x.b != y.b) return x.b < y.b;
    return x.kv != y.kv ? x.kv < y.kv : x.row_begin < y.row_begin;
  });
}

AttentionReach attention_reach(const AttentionProblem& p, int64_t query_begin, int64_t query_end) {
  AttentionReach reach{p.keys, 0};
  for (int64_t b = 0; b < p.batch; ++b) {
    const IntervalRule rule(p, b);
    for (int64_t i = query_begin; i < query_end; ++i) {
      const KeyInterval keys = rule(i);
      reach.begin = std::min<int64_t>(reach.begin, keys.lo),
      reach.end = std::max<int64_t>(reach.end, keys.hi);
    }
  }
  return {std::min(reach.begin, reach.end), reach.end};
}

BlockClass mask_class(const AttentionProblem& p, const RowTile& t, int row_begin, int row_end, int64_t k0,
                      int64_t k1) {
  bool full = true, empty = true;
  const auto join = [&](BlockClass c) {
    full = full && c == BlockClass::full;
    empty = empty && c == BlockClass::empty;
  };
  const Strides4& s = p.keep_strides;
  const int64_t columns = (p.all_keys() + attention_keep_columns - 1) / attention_keep_columns;
  const int64_t rows = (p.all_queries() + attention_keep_rows - 1) / attention_keep_rows;
  const int64_t heads = s.head == 0 ? std::min<int64_t>(p.heads, 1) : p.heads;
  each_head_run(t, row_begin, row_end, [&](int first, int count) {
    BlockClass dense = BlockClass::full, code = BlockClass::full;
    const int64_t head = t.head[first], q0 = t.query[first];
    if (p.keep) {
      const int64_t plane = (s.batch == 0 ? 0 : t.b) * heads + (s.head == 0 ? 0 : head);
      bool all_full = true, all_empty = true;
      for (int64_t r = q0 / attention_keep_rows; r <= (q0 + count - 1) / attention_keep_rows; ++r) {
        for (int64_t c = k0 / attention_keep_columns; c <= (k1 - 1) / attention_keep_columns; ++c) {
          const auto cls = static_cast<BlockClass>(p.keep_classes[(plane * rows + r) * columns + c]);
          all_full = all_full && cls == BlockClass::full;
          all_empty = all_empty && cls == BlockClass::empty;
        }
      }
      dense = all_full ? BlockClass::full : all_empty ? BlockClass::empty : BlockClass::partial;
    }
    if (p.mask_function) {
      code = BlockClass::partial;
      if (p.mask_function.classify) {
        code = p.mask_function.classify(p.mask_function.context,
                                        {nullptr, 0, t.b, head, q0, count, k0, k1 - k0});
      }
    }
    join(dense == BlockClass::empty || code == BlockClass::empty ? BlockClass::empty
         : dense == BlockClass::full                             ? code
                                                                 : BlockClass::partial);
  });
  return empty ? BlockClass::empty : full ? BlockClass::full : BlockClass::partial;
}

bool fill_keep(const AttentionProblem& p, const RowTile& t, int64_t k0, int64_t k1, uint8_t* keep) {
  const Strides4& s = p.keep_strides;
  each_head_run(t, [&](int first, int count) {
    const int64_t head = t.head[first], q0 = t.query[first];
    if (p.mask_function) {
      p.mask_function.fill(p.mask_function.context,
                           {keep + first, kTileRows, t.b, head, q0, count, k0, k1 - k0});
    } else {
      for (int64_t k = 0; k < k1 - k0; ++k) std::memset(keep + k * kTileRows + first, 1, count);
    }
    if (!p.keep) return;
    const uint8_t* base = p.keep + t.b * s.batch + head * s.head + k0 * s.key;
    for (int r = 0; r < count; ++r) {
      const uint8_t* row = base + (q0 + r) * s.query;
      uint8_t* to = keep + first + r;
      for (int64_t k = 0; k < k1 - k0; ++k) to[k * kTileRows] &= static_cast<uint8_t>(row[k * s.key] != 0);
    }
  });
  bool any = false;
  for (int64_t k = 0; k < k1 - k0; ++k) {
    uint8_t* row = keep + k * kTileRows;
    any = any || std::memchr(row, 1, static_cast<size_t>(t.rows)) != nullptr;
    std::memset(row + t.rows, 1, static_cast<size_t>(t.groups * kGroupRows - t.rows));  // padding lanes
  }
  return any;
}

void KeyRuns::add(const KeyRun& more) {
  if (count > 0) {
    KeyRun longer = run[count - 1];
    longer.begin = longer.end, longer.end = more.end;
    if (longer == more) {
      run[count - 1].end = more.end;
      return;
    }
  }
  run[count++] = more;
}

KeyRuns KeyRuns::of_group(int group) const {
  KeyRuns seen{.first = first, .last = last};
  for (int i = 0; i < count; ++i) {
    if (run[i].groups >> group & 1) seen.add({run[i].begin, run[i].end, run[i].partial});
  }
  return seen;
}

namespace {

// Halves what is partial, at multiples of `grain`, down to so many keys.
void classify_keys(const AttentionProblem& p, const RowTile& t, int k0, int k1, int grain, KeyRuns& runs) {
  const BlockClass known = mask_class(p, t, k0, k1);
  const int middle = (k0 / grain + (k1 - 1) / grain + 1) / 2 * grain;
  if (known == BlockClass::partial && middle > k0 && middle < k1) {
    classify_keys(p, t, k0, middle, grain, runs);
    classify_keys(p, t, middle, k1, grain, runs);
  } else if (known != BlockClass::empty) {
    runs.add({k0, k1, known == BlockClass::partial});
  }
}

bool any_kept(const RowTile& t, const uint8_t* keep, int keys) {
  if (t.rows == kTileRows) return std::memchr(keep, 1, static_cast<size_t>(keys) * kTileRows) != nullptr;
  for (int k = 0; k < keys; ++k) {
    if (std::memchr(keep + k * kTileRows, 1, static_cast<size_t>(t.rows)) != nullptr) return true;
  }
  return false;
}

KeyRuns known_keys(const AttentionProblem& p, const RowTile& t, int k0, int k1, bool skips) {
  int grain = attention_key_block;
  if (skips && p.keep) grain = attention_keep_columns;
  if (skips && p.mask_function.classify) grain = kRunGrain;
  KeyRuns known{.first = k0, .last = k1};
  classify_keys(p, t, k0, k1, grain, known);
  return known;
}

// f(begin, end) for the parts of a run between multiples of kRunGrain.
template <class F>
void each_grain(const KeyRun& run, const F& f) {
  for (int k = run.begin, end = 0; k < run.end; k = end) {
    end = std::min(run.end, (k / kRunGrain + 1) * kRunGrain);
    f(k, end);
  }
}

// A run of keys [begin, end); seen(first row, rows) is what a group of 16 rows sees of them.
template <class F>
KeyRun run_of_groups(const RowTile& t, int begin, int end, const F& seen) {
  KeyRun run{begin, end, false, 0};
  for (int g = 0; g < t.groups; ++g) {
    const int row = g * kGroupRows;
    const BlockClass known = seen(row, std::min(kGroupRows, t.rows - row));
    if (known != BlockClass::empty) run.groups |= 1u << g;
    run.partial = run.partial || known == BlockClass::partial;
  }
  if (run.groups == (1u << t.groups) - 1) run.groups = kAllGroups;
  return run;
}

// By what is known of their blocks.
KeyRun classified_groups(const AttentionProblem& p, const RowTile& t, int begin, int end) {
  return run_of_groups(t, begin, end,
                       [&](int row, int rows) { return mask_class(p, t, row, row + rows, begin, end); });
}

// By flags of each row and key.
KeyRun kept_groups(const RowTile& t, int begin, int end, const uint8_t* keep) {
  uint8_t some[kTileRows] = {}, every[kTileRows];
  std::memset(every, 1, sizeof(every));
  for (int k = begin; k < end; ++k, keep += kTileRows) {
    for (int row = 0; row < kTileRows; ++row) some[row] |= keep[row], every[row] &= keep[row];
  }
  return run_of_groups(t, begin, end, [&](int row, int rows) {
    if (!std::memchr(some + row, 1, static_cast<size_t>(rows))) return BlockClass::empty;
    return std::memchr(every + row, 0, static_cast<size_t>(rows)) ? BlockClass::partial : BlockClass::full;
  });
}

}  // namespace

KeyRuns seen_keys(const AttentionProblem& p, const RowTile& t, int k0, int k1, bool skips, uint8_t* keep) {
  KeyRuns seen{.first = k0, .last = k1};
  const KeyRuns known = known_keys(p, t, k0, k1, skips);
  for (int i = 0; i < known.count; ++i) {
    const KeyRun& run = known.run[i];
    uint8_t* flags = keep + (run.begin - k0) * kTileRows;
    if (!run.partial) {
      seen.add(run);
    } else if (!fill_keep(p, t, run.begin, run.end, flags)) {
      continue;
    } else if (!skips) {
      seen.add(run);
    } else {
      each_grain(run, [&](int k, int end) {
        if (any_kept(t, flags + (k - run.begin) * kTileRows, end - k)) seen.add({k, end, true});
      });
    }
  }
  return seen;
}

KeyRuns seen_by_groups(const AttentionProblem& p, const RowTile& t, int k0, int k1, uint8_t* keep) {
  KeyRuns seen{.first = k0, .last = k1};
  const KeyRuns known = known_keys(p, t, k0, k1, true);
  const auto look = [&](int begin, int end) {
    const KeyRun run = classified_groups(p, t, begin, end);
    if (!run.partial) return seen.add(run);
    if (!fill_keep(p, t, begin, end, keep + (begin - k0) * kTileRows)) return;
    each_grain(run, [&](int k, int last) {
      const KeyRun kept = kept_groups(t, k, last, keep + (k - k0) * kTileRows);
      if (kept.groups) seen.add(kept);
    });
  };
  for (int i = 0; i < known.count; ++i) {
    const KeyRun& run = known.run[i];
    if (!run.partial) {
      seen.add(run);
    } else if (p.mask_function.classify) {
      each_grain(run, look);
    } else {
      look(run.begin, run.end);
    }
  }
  return seen;
}

}  // namespace multihead::kernels
