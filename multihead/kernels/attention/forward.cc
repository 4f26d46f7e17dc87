// Fused forward attention, f32 arithmetic.
//
// A tile is 64 queries of one head, one per lane. Per key block of 256 (at absolute positions):
//   S[k][q] = K · Qᵀ        K broadcast straight from row-major memory, Qᵀ packed once with scale · log2(e)
//   m[q] = max_k S; P = 2^(S - m); l[q] = Σ_k P        vertical, m relative to this block alone
//   O[q][:] = O · 2^(m_old - m_new) + 2^(m_block - m_new) · Σ_k P[k][q] V[k][:]      V in place, d in lanes
// A block's part starts from zero and is merged in order, so that whole prefills, chunks, single tokens and
// splits over keys do the same arithmetic. Excluded keys contribute exact zeros, so leaving them out changes
// no bit: blocks nobody sees are skipped, diagonal blocks drop groups of 16 queries.
//
// Zero times NaN is NaN: if a tile's output is not finite and anything was masked, the tile is done again
// without touching the values of excluded keys. Finite outputs prove that nothing leaked, so the check is
// free.
#include "multihead/kernels/attention/forward-inl.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/attention/forward.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#if HWY_TARGET == HWY_SCALAR  // without vectors the specification itself runs: attention.cc never comes here
namespace multihead::kernels::HWY_NAMESPACE {
void ForwardTask(const ForwardTaskArgs&) {}
void ForwardPartial(const ForwardTaskArgs&) {}
void ForwardMerge(const ForwardTaskArgs&) {}
int64_t ForwardScratch(const ForwardCall&, int64_t) { return 0; }
}  // namespace multihead::kernels::HWY_NAMESPACE
#else
#include "hwy/contrib/math/math-inl.h"
#include "multihead/kernels/attention/block-inl.h"
#include "multihead/kernels/attention/decode-inl.h"
#include "multihead/kernels/attention/output-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace {

// How a task's scratch memory is cut.
struct ForwardLayout {
  int64_t block = 0, key = 0, value = 0, qt = 0, out = 0, weights = 0, sums = 0;  // floats
  explicit ForwardLayout(const ForwardCall& c) {
    block = int64_t{kBlock} * kTileRows;
    key = c.copy_key ? kBlock * c.p->head_dim : 0;
    value = c.copy_value ? kBlock * c.value_columns : 0;
    qt = std::max<int64_t>(c.p->head_dim, 1) * kTileRows;
    out = kTileRows * c.value_columns;
    if (!UsesTiles(c)) return;
    const AmxLayout packed(c);
    key = packed.key / 2, value = packed.value / 2, qt = packed.query / 2, weights = packed.weights / 2;
    sums = out;
  }
};

struct ForwardMemory {
  BlockBuffers buffers;
  float *key, *value;  // a staged block
  float* tiles;        // packed queries and output, tile after tile

  ForwardMemory(const ForwardLayout& layout, float* scratch) {
    buffers.s = scratch;
    buffers.bias = buffers.s + layout.block;
    buffers.shadow = buffers.bias + layout.block;
    buffers.keep = reinterpret_cast<uint8_t*>(buffers.shadow + layout.block);
    buffers.weights = reinterpret_cast<uint16_t*>(buffers.shadow + layout.block + layout.block / 4);
    buffers.sums = buffers.shadow + layout.block + layout.block / 4 + layout.weights;
    key = buffers.sums + layout.sums;
    value = key + layout.key;
    tiles = value + layout.value;
  }
};

struct TileWork {
  RowTile rows;
  LaneTerms lanes;
  LaneState state;
  float* qt = nullptr;
  float* out = nullptr;
  bool first = true;     // no block merged yet
  bool strange = false;  // on tiles: not all queries are finite
  RowsAhead ahead;       // what the score product asks for
};

void StartTile(const ForwardCall& c, const AttentionTask& task, int64_t row, const BlockBuffers& buffers,
               TileWork& w) {
  make_row_tile_again(*c.p, c.number, task.b, task.kv, row, std::min(task.row_end, row + kTileRows), w.rows);
  if (c.has_terms || c.has_keep) w.lanes = MakeLaneTerms(*c.terms, w.rows);
  ResetState(w.state);
  w.first = true;
  if (w.rows.empty()) return;
  if (UsesTiles(c)) {
    w.strange = PackTileQueries(c, w.rows, w.qt, buffers.s);
    return;
  }
  if (UsesDots(c)) return PackQueryPairs(c, w.rows, w.qt);
  PackQuery(c, w.rows, ScoreScale(c), w.qt);
}

// Claims the cache lines of a tile's output while the products run.
void FetchOutput(const ForwardCall& c, const RowTile& t) {
  const int64_t line = c.bf16 ? 32 : 16;
  for (int r = 0; r < t.rows; ++r) {
    const int64_t token = c.p->query_begin(t.b) + t.query[r];
    const int64_t row =
        t.b * c.out_strides.batch + t.head[r] * c.out_strides.head + token * c.out_strides.token;
    for (int64_t v = 0; v < c.p->value_dim; v += line) __builtin_prefetch(At(c.out, row + v, c.bf16), 1, 2);
  }
}

// Where tile `n` of the next task finds its queries.
RowsAhead NextQueries(const ForwardCall& c, const AttentionTask* next, int n) {
  const int64_t row = next ? next->row_begin + n * kTileRows : 0;
  if (!next || row + kTileRows > next->row_end) return {};
  const Strides3& s = c.query_strides;
  const int64_t queries = c.p->query_count(next->b), head = next->kv * c.p->group() + row / queries;
  const int64_t token = c.p->query_begin(next->b) + row % queries;
  if (row % queries + kTileRows > queries) return {};
  const int64_t numbers = c.bf16 ? 2 : 1;  // in a float
  const void* from = At(c.query, next->b * s.batch + head * s.head + token * s.token, c.bf16);
  return {{static_cast<const float*>(from), s.token / numbers}, c.p->head_dim / numbers};
}

// The bias rows of a tile for the key block from k0 on.
Rows NextBias(const ForwardCall& c, const RowTile& t, int k0) {
  const Strides4& s = c.terms->bias_strides;
  if (!c.terms->bias || s.key != 1 || s.query == 0 || t.head[0] != t.head[t.rows - 1]) return {};
  return {c.terms->bias + t.b * s.batch + t.head[0] * s.head + t.query[0] * s.query + k0, s.query};
}

struct BlockRows {
  Rows key, value;
  AmxStage stage;  // on tiles: both
};

// What the score product of the n-th tile that uses a staged block asks for. While the first and the second
// read the copies of block `base`, the keys and the values that are copied next: short rows of bf16 .03-.05
// faster. Where nothing is copied, only the keys themselves: the values as well cost .02 (dense 96x128x64).
RowsAhead RowsOfScores(const ForwardCall& c, const AttentionTask& task, const AttentionTask* next,
                       int64_t base, int n, const BlockRows& staged) {
  const bool keys = n == 0;
  if (!(keys ? c.copy_key : c.copy_value)) return {staged.value, 0};
  const AttentionTask* at = base + kBlock < task.key_end ? &task : next;
  if (n > 1 || at == nullptr) return {};
  const int64_t token = c.p->key_begin_row(at->b) + (at == next ? next->key_begin : base + kBlock);
  const Strides3& s = keys ? c.key_strides : c.value_strides;
  const void* from = At(keys ? c.key : c.value, at->b * s.batch + at->kv * s.head + token * s.token, c.bf16);
  const int64_t dim = keys ? c.p->head_dim : c.p->value_dim, numbers = c.bf16 ? 2 : 1;  // in a float
  return {{static_cast<const float*>(from), s.token / numbers}, dim / numbers};
}

// out = out · alpha + block · beta, row by row; `first`: out = block.
void MergeRows(const RowTile& t, int64_t columns, const float* block, bool first, const float* alpha,
               const float* beta, float* out) {
  const F d;
  for (int r = 0; r < t.rows; ++r) {
    const Vec a = hn::Set(d, alpha[r]), b = hn::Set(d, beta[r]);
    for (int64_t c = r * columns; c < (r + 1) * columns; c += kN) {
      const Vec x = hn::LoadU(d, block + c);
      hn::StoreU(first ? x : hn::MulAdd(x, b, hn::Mul(hn::LoadU(d, out + c), a)), d, out + c);
    }
  }
}

// Takes over a block's maxima and sums: out · alpha + block's part · beta is the tile's from then on.
void JoinState(const LaneState& block, bool has_terms, float* alpha, float* beta, TileWork& w) {
  if (w.first) {  // the same as merging with nothing
    w.state = block;
  } else {
    MergeState(w.rows.groups * kGroupRows, has_terms, w.state, block, alpha, beta);
  }
}

// As AddBlock, on tiles.
void AddTileBlock(const ForwardCall& c, int k0, int k1, const AmxStage& stage, BlockBuffers buffers,
                  bool safe, TileWork& w) {
  const BlockRange r = MakeBlockRange(w.rows, k0, k1);
  buffers.s += k0 % 32 * kTileRows;  // products start at a multiple of 32
  buffers.tile = {&stage, reinterpret_cast<const uint16_t*>(w.qt), w.strange};
  safe = safe || stage.key_strange || stage.value_strange || w.strange;
  LaneState block;
  if (!BlockProbabilities(c, w.rows, r, w.lanes, {}, {}, w.qt, buffers, safe, block)) return;
  TileValues(c, w.rows, r, buffers.tile, buffers.s, buffers.shadow, buffers.weights, buffers.sums);
  alignas(64) float alpha[kTileRows], beta[kTileRows];
  JoinState(block, c.has_terms, alpha, beta, w);
  MergeRows(w.rows, c.value_columns, buffers.sums, w.first, alpha, beta, w.out);
  w.first = false;
}

// One block of keys into one tile.
void AddBlock(const ForwardCall& c, int k0, int k1, const Rows& key, const Rows& value,
              const BlockBuffers& buffers, bool safe, const RowsAhead& next_queries, TileWork& w) {
  const BlockRange r = MakeBlockRange(w.rows, k0, k1);
  LaneState block;
  if (!BlockProbabilities(c, w.rows, r, w.lanes, key, w.ahead, w.qt, buffers, safe, block)) return;
  alignas(64) float alpha[kTileRows], beta[kTileRows];
  JoinState(block, c.has_terms, alpha, beta, w);
  if (UsesDots(c)) {
    if (safe) {
      DotValuesSafe(w.rows, r, buffers.s, buffers.shadow, value.data, c.value_columns, w.first, alpha, beta,
                    w.out);
    } else {
      DotValues(w.rows, r, buffers.s, value.data, c.value_columns, w.first, alpha, beta, w.out);
    }
  } else if (safe) {
    BlockValuesSafe(w.rows, r, buffers.s, buffers.shadow, value, c.value_columns, w.first, alpha, beta,
                    w.out);
  } else {
    const Rows next_bias = k1 < w.rows.end ? NextBias(c, w.rows, k1) : Rows{};
    // A row that starts within a cache line ends in one more: without it .04 of a call's time (T = 1024).
    const int64_t columns = next_bias.data ? std::min(kBlock, w.rows.end - k1) + 15 : next_queries.columns;
    BlockValues(w.rows, r, buffers.s, value, c.value_columns, w.first, alpha, beta, w.out,
                next_bias.data ? next_bias : next_queries.rows, columns);
  }
  w.first = false;
}

// As AddBlock for a tile of few rows.
void AddFewBlock(const ForwardCall& c, int k0, int k1, const BlockBuffers& buffers, TileWork& w) {
  const BlockRange r = MakeBlockRange(w.rows, k0, k1);
  LaneState block;
  float* sum = buffers.bias;  // free: there are no terms
  FewBlock(c, w.rows, r, w.qt, buffers, block, sum);
  alignas(64) float alpha[kTileRows], beta[kTileRows];
  JoinState(block, false, alpha, beta, w);
  MergeRows(w.rows, c.value_columns, sum, w.first, alpha, beta, w.out);
  w.first = false;
}

// Key block [base, base + kBlock) clipped to what a tile sees.
bool ClipBlock(const RowTile& t, int64_t base, int* k0, int* k1) {
  *k0 = static_cast<int>(std::max<int64_t>(base, t.begin));
  *k1 = static_cast<int>(std::min<int64_t>(base + kBlock, t.end));
  return *k0 < *k1;
}

BlockRows StageBlock(const ForwardCall& c, const AttentionTask& task, int k0, int k1, float* key,
                     float* value) {
  if (UsesTiles(c)) return {{}, {}, StageForTiles(c, task.b, task.kv, k0, k1, key, value)};
  if (UsesDots(c)) {
    BlockRows rows;
    rows.key.data = StageKeyPairs(c, task.b, task.kv, k0, k1, &rows.key.stride, key);
    InterleaveValues(c, task.b, task.kv, k0, k1, value);
    rows.value = {value, c.value_columns};
    return rows;
  }
  return {StageRows(c, c.key, c.key_strides, task.b, task.kv, k0, k1, c.p->head_dim, c.copy_key,
                    c.p->head_dim, key),
          StageRows(c, c.value, c.value_strides, task.b, task.kv, k0, k1, c.p->value_dim, c.copy_value,
                    c.value_columns, value),
          {}};
}

// Writes a tile; if it is not finite although something was excluded, computes it again safely. Says so if it
// stays that way.
void FinishTile(const ForwardCall& c, const AttentionTask& task, const BlockBuffers& buffers, float* key,
                float* value, TileWork& w) {
  if (w.first) std::fill_n(w.out, w.rows.rows * c.value_columns, 0.0f);
  const bool finite = WriteTile(c, w.rows, w.state, w.out);
  const bool masked =
      c.has_keep || c.terms->bias || w.rows.full_begin > w.rows.begin || w.rows.full_end < w.rows.end;
  if (finite) return;
  if (!masked) return c.not_finite->store(true, std::memory_order_relaxed);
  ResetState(w.state);
  w.first = true;
  for (int64_t base = w.rows.begin / kBlock * kBlock; base < w.rows.end; base += kBlock) {
    int k0, k1;
    if (!ClipBlock(w.rows, base, &k0, &k1)) continue;
    const BlockRows rows = StageBlock(c, task, k0, k1, key, value);
    if (UsesTiles(c)) {
      AddTileBlock(c, k0, k1, rows.stage, buffers, true, w);
    } else {
      AddBlock(c, k0, k1, rows.key, rows.value, buffers, true, {}, w);
    }
  }
  if (w.first) std::fill_n(w.out, w.rows.rows * c.value_columns, 0.0f);
  if (!WriteTile(c, w.rows, w.state, w.out)) c.not_finite->store(true, std::memory_order_relaxed);
}

void ForwardTask(const ForwardTaskArgs& args) {
  const ForwardCall& c = *args.call;
  const AmxRegisters registers(UsesTiles(c) && c.unit == TileUnit::amx);
  const AttentionTask& task = *args.task;
  const ForwardLayout layout(c);
  const auto [buffers, key, value, free] = ForwardMemory(layout, args.scratch);
  float* scratch = free;
  TileWork tiles[kMostTiles];
  int count = 0;
  for (int64_t row = task.row_begin; row < task.row_end; row += kTileRows) {
    TileWork& w = tiles[count++];
    w.qt = scratch, scratch += layout.qt;
    w.out = scratch, scratch += layout.out;
    StartTile(c, task, row, buffers, w);
  }
  for (int64_t base = task.key_begin / kBlock * kBlock; base < task.key_end; base += kBlock) {
    if (count == 1 && DecodesFew(c, tiles[0].rows)) {
      int k0, k1;
      if (ClipBlock(tiles[0].rows, base, &k0, &k1)) {
        AddFewBlock(c, k0, k1, buffers, tiles[0]);
      }
      continue;
    }
    // Rows are staged for the hull of the task and shared by its tiles.
    const int stage = static_cast<int>(std::max(base, task.key_begin));
    const int end = static_cast<int>(std::min<int64_t>(base + kBlock, task.key_end));
    const BlockRows rows = StageBlock(c, task, stage, end, key, value);
    for (int i = 0, n = 0; i < count; ++i) {
      int k0, k1;
      if (!ClipBlock(tiles[i].rows, base, &k0, &k1)) continue;
      if (UsesTiles(c)) {
        AddTileBlock(c, k0, k1, rows.stage, buffers, false, tiles[i]);
        continue;
      }
      const bool last = base + kBlock >= tiles[i].rows.end;
      tiles[i].ahead = RowsOfScores(c, task, args.next, base, n++, rows);
      if (last) FetchOutput(c, tiles[i].rows);
      const int values = UsesDots(c) ? k0 / 2 - stage / 2 : k0 - stage;  // rows of pairs
      AddBlock(c, k0, k1, Shifted(rows.key, k0 - stage), Shifted(rows.value, values), buffers, false,
               last ? NextQueries(c, args.next, i) : RowsAhead{}, tiles[i]);
    }
  }
  for (int i = 0; i < count; ++i) FinishTile(c, task, buffers, key, value, tiles[i]);
}

void ForwardPartial(const ForwardTaskArgs& args) {
  const ForwardCall& c = *args.call;
  const AmxRegisters registers(UsesTiles(c) && c.unit == TileUnit::amx);
  const AttentionTask& task = *args.task;
  const ForwardPartials& partials = *args.partials;
  const ForwardLayout layout(c);
  const auto [buffers, key, value, free] = ForwardMemory(layout, args.scratch);
  TileWork w;
  w.qt = free;
  StartTile(c, task, task.row_begin, buffers, w);
  for (int64_t n = args.block_begin; n < args.block_end; ++n) {
    const int64_t slot = args.tile * partials.blocks + n;
    w.out = partials.out + slot * kTileRows * c.value_columns;
    ResetState(w.state);
    w.first = true;
    int k0, k1;
    if (!ClipBlock(w.rows, n * kBlock, &k0, &k1)) {
      // a block that nobody sees: its sums stay zero
    } else if (DecodesFew(c, w.rows)) {
      AddFewBlock(c, k0, k1, buffers, w);
    } else {
      const BlockRows rows = StageBlock(c, task, k0, k1, key, value);
      if (UsesTiles(c)) {
        AddTileBlock(c, k0, k1, rows.stage, buffers, false, w);
      } else {
        w.ahead = RowsOfScores(c, task, nullptr, n * kBlock, 0, rows);
        AddBlock(c, k0, k1, rows.key, rows.value, buffers, false, {}, w);
      }
    }
    // A block without keys is recognised by its sum.
    std::copy_n(w.state.max, kTileRows, partials.max + slot * kTileRows);
    std::copy_n(w.state.sum, kTileRows, partials.sum + slot * kTileRows);
  }
}

void ForwardMerge(const ForwardTaskArgs& args) {
  const ForwardCall& c = *args.call;
  const AmxRegisters registers(UsesTiles(c) && c.unit == TileUnit::amx);
  const AttentionTask& task = *args.task;
  const ForwardPartials& partials = *args.partials;
  const ForwardLayout layout(c);
  const auto [buffers, key, value, free] = ForwardMemory(layout, args.scratch);
  TileWork w;
  w.qt = free;
  w.out = w.qt + layout.qt;
  StartTile(c, task, task.row_begin, buffers, w);
  for (int64_t n = args.block_begin; n < args.block_end; ++n) {
    const int64_t slot = args.tile * partials.blocks + n;
    LaneState block;
    std::copy_n(partials.max + slot * kTileRows, kTileRows, block.max);
    std::copy_n(partials.sum + slot * kTileRows, kTileRows, block.sum);
    if (std::all_of(block.sum, block.sum + w.rows.rows, [](float x) { return x == 0; })) continue;
    alignas(64) float alpha[kTileRows], beta[kTileRows];
    MergeState(w.rows.groups * kGroupRows, c.has_terms, w.state, block, alpha, beta);
    MergeRows(w.rows, c.value_columns, partials.out + slot * kTileRows * c.value_columns, w.first, alpha,
              beta, w.out);
    w.first = false;
  }
  FinishTile(c, task, buffers, key, value, w);
}

int64_t ForwardScratch(const ForwardCall& c, int64_t tiles) {
  const ForwardLayout l(c);
  return 3 * l.block + l.block / 4 + l.weights + l.sums + l.key + l.value + tiles * (l.qt + l.out);
}

}  // namespace
}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_SCALAR

#if HWY_ONCE
namespace multihead::kernels {

HWY_EXPORT(ForwardTask);
HWY_EXPORT(ForwardPartial);
HWY_EXPORT(ForwardMerge);
HWY_EXPORT(ForwardScratch);

void forward_task(const ForwardTaskArgs& args) { HWY_DYNAMIC_DISPATCH(ForwardTask)(args); }
void forward_partial(const ForwardTaskArgs& args) { HWY_DYNAMIC_DISPATCH(ForwardPartial)(args); }
void forward_merge(const ForwardTaskArgs& args) { HWY_DYNAMIC_DISPATCH(ForwardMerge)(args); }
int64_t forward_scratch(const ForwardCall& call, int64_t tiles) {
  return HWY_DYNAMIC_DISPATCH(ForwardScratch)(call, tiles);
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
