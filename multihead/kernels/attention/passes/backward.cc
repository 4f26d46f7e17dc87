// Backward attention by recomputation, written once over an engine, which makes the products: nothing of size
// [Tq, Tk] is kept from the forward.
//
// Per key block of 128 (at absolute positions) and tile of 64 queries, everything [key][query]:
//   S = K · Qᵀ,  P = e^(S - lse),  dP = V · dOᵀ,  dS = P · (dP - ⟨O, dO⟩)
//   dV[k] += P · dO,  dK[k] += dS · Q       rows are keys, A runs along queries
//   dQ[q] += dSᵀ · K                        rows are queries, A runs along keys: the same memory, other
//   stride
// Qᵀ and dOᵀ are packed once per head. Each element of a gradient is a sum of chains in order: those of dV
// and dK lie within a tile, those of dQ are the forward pass's. Key blocks of one head may run on several
// threads: a block waits for its turn at each tile's dQ, which follows the block before it like a wave.
//
// Relative keys (score_gradients-inl.h) add two products of dS laid out by distance: with the table's
// rows to dQ, in turn after the keys' share, and with the queries to the table's gradient. A block sums its
// own rows of that, Tq + 128 at most, and the blocks' sums are added in order.
//
// As in the forward pass, zero times NaN is caught at the end: the caller repeats the head by the
// specification if a gradient is not finite and something was excluded.
#include "multihead/kernels/attention/block/backward_call-inl.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/attention/passes/backward.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#if HWY_TARGET == HWY_SCALAR  // without vectors the specification itself runs: the driver never comes here
namespace multihead::kernels::HWY_NAMESPACE {
BackwardOperands BackwardOperandsOf(const BackwardCall&) { return {}; }
void BackwardPrepare(const BackwardTaskArgs&) {}
bool BackwardBlock(const BackwardTaskArgs&) { return true; }
bool BackwardFinish(const BackwardTaskArgs&) { return true; }
}  // namespace multihead::kernels::HWY_NAMESPACE
#else
#include "multihead/kernels/attention/block/score_gradients-inl.h"
#include "multihead/kernels/attention/engines/engine-inl.h"
#include "multihead/kernels/attention/engines/engine_tile_gradients-inl.h"
#include "multihead/kernels/attention/passes/backward_buffers-inl.h"
#include "multihead/kernels/attention/passes/backward_prepare-inl.h"
#include "multihead/kernels/attention/passes/large_scores-inl.h"
#include "multihead/kernels/attention/passes/table_sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace {

// ChunkGradients from the scores on for weights that go through no softmax.
template <class G>
HWY_NOINLINE void ChunkWeightGradients(const BackwardCall& call, const BackwardJob& job, int64_t n,
                                       const BlockRange& r, const LaneTerms& lanes, const uint8_t* keep,
                                       const BackwardBuffers& b) {
  const ForwardCall& c = call.forward;
  const ScoreTerms& terms = *c.terms;
  const RowTile& t = job.row_tiles[n];
  const int64_t count = int64_t{r.k1 - r.k0} * kTileRows;
  alignas(64) float raw[G::kChunkKeys * kTileRows], slope[G::kChunkKeys * kTileRows], unused[kTileRows];
  std::fill_n(unused, kTileRows, 0.0f);
  float* derivative = terms.curved() ? b.derivative : nullptr;
  if (derivative) std::fill_n(derivative, count, 1.0f);
  TermRows({&terms, &t, &lanes, terms.bias ? b.extra : nullptr, keep, b.p, derivative}, r, unused);
  std::copy_n(b.p, count, raw);
  if (b.raw) std::copy_n(b.p, count, b.raw);
  const bool now = terms.score_function && !b.raw;  // else in TermGradients
  if (terms.score_function) ApplyScoreFunction(terms.score_function, t, r, b.p, now ? slope : nullptr);
  float* weights = c.p->dropout_p > 0 ? b.extra : b.p;
  WeightGradientRows(
      *c.p, t, r,
      {terms.normalise, raw, now ? slope : nullptr, job.lse + n * kTileRows, job.delta + n * kTileRows}, b.p,
      b.ds, weights);
  ZeroUnneeded(t, r, weights);
  ZeroUnneeded(t, r, b.ds);
}

// From products to scores, with all terms; the buffers start at r.k0.
void ChunkScores(const BackwardCall& call, const RowTile& t, const BlockRange& r, const LaneTerms& lanes,
                 const uint8_t* keep, bool rows, const BackwardBuffers& b) {
  const ForwardCall& c = call.forward;
  alignas(64) float unused[kTileRows];
  std::fill_n(unused, kTileRows, 0.0f);
  if (rows) {
    float* derivative = c.terms->nonlinear() ? b.derivative : nullptr;
    if (c.terms->score_function) {
      if (b.raw) std::copy_n(b.p, (r.k1 - r.k0) * kTileRows, b.raw);
      ApplyScoreFunction(c.terms->score_function, t, r, b.p, b.raw ? nullptr : derivative);
    }
    if (derivative && (b.raw || !c.terms->score_function)) {
      std::fill_n(derivative, (r.k1 - r.k0) * kTileRows, 1.0f);
    }
    TermRows({c.terms, &t, &lanes, c.terms->bias ? b.extra : nullptr, keep, b.p, derivative}, r, unused);
  } else {
    MaskRows(t, r, b.p, unused);
  }
}

// P and dS of keys [r.k0, r.k1), a chunk that stays in L1; the buffers start at r.k0.
template <class G>
void ChunkGradients(const BackwardCall& call, const BackwardJob& job, const G& engine, int64_t n,
                    const BlockRange& r, const LaneTerms& lanes, const uint8_t* keep, bool rows,
                    const BackwardBuffers& b) {
  const ForwardCall& c = call.forward;
  const AttentionProblem& p = *c.p;
  const RowTile& t = job.row_tiles[n];
  if constexpr (G::kMakesGradients) {
    if (G::MakesGradients(c, job, n)) return engine.MakeGradients(n, r, b.p, b.ds);
  }
  engine.Scores(n, r, b.p, b.ds);
  if constexpr (requires { G::kSkipsKeys; }) {  // the engine that takes every option
    if (c.terms->weights()) return ChunkWeightGradients<G>(call, job, n, r, lanes, keep, b);
  }
  ChunkScores(call, t, r, lanes, keep, rows, b);
  const float* lse = job.lse + n * kTileRows;
  const float* delta = job.delta + n * kTileRows;
  if (job.has_top[n]) CountFrom(job.top + n * kTileRows, t, r, b.p);
  if (p.dropout_p > 0) {
    c.has_terms ? DropGradientRows<true>(p, t, r, lse, delta, b.p, b.ds, b.extra)
                : DropGradientRows<false>(p, t, r, lse, delta, b.p, b.ds, b.extra);
  } else {
    c.has_terms ? GradientRows<true>(t, r, lse, delta, b.p, b.ds)
                : GradientRows<false>(t, r, lse, delta, b.p, b.ds);
  }
  ZeroUnneeded(t, r, p.dropout_p > 0 ? b.extra : b.p);
  ZeroUnneeded(t, r, b.ds);
}

// Whether the products leave out keys that no query of a tile sees. Bands of distances take all.
template <class G>
bool SkipsKeys(const ForwardCall& c) {
  if constexpr (requires { G::kSkipsKeys; }) {
    return G::kSkipsKeys && c.has_keep && !c.terms->relative_key && !c.terms->relative_value;
  }
  return false;
}

// The keys from `a` to `e` that a tile sees.
template <class G>
KeyRuns RunsOfTile(const ForwardCall& c, const RowTile& t, int a, int e, uint8_t* keep) {
  if (SkipsKeys<G>(c)) return seen_by_groups(*c.p, t, a, e, keep);
  if (c.has_keep) return seen_keys(*c.p, t, a, e, false, keep);
  return {.first = a, .last = e, .count = 1, .run = {{a, e, false}}};
}

// f(range, kept keys, whether rows have terms or masks, buffers) for chunks of the keys of a block that a tile sees. dS
// of the others is 0 where terms look at it.
template <class G, class Body>
void EachChunk(const BackwardCall& call, const BackwardJob& job, int64_t n, const BlockRange& r,
               const KeyRuns& runs, const BackwardBuffers& b, const Body& f) {
  const ForwardCall& c = call.forward;
  const RowTile& t = job.row_tiles[n];
  if (c.terms->relative_key) {
    RelativeScores(c.terms->relative_key, c.p->head_dim, t, r, job.qt + n * call.operands.qt, b.derivative,
                   b.p);
  }
  if (c.has_terms && !runs.whole()) std::fill_n(b.ds, int64_t{r.k1 - r.k0} * kTileRows, 0.0f);
  if (c.terms->relative_value) {
    RelativeScores(c.terms->relative_value, c.p->value_dim, t, r, job.d_out_t + n * call.operands.d_out_t,
                   b.derivative, b.ds);
  }
  for (int i = 0; i < runs.count; ++i) {
    const KeyRun& run = runs.run[i];
    if (c.terms->bias) {
      GatherBias(*c.terms, t, MakeBlockRange(t, run, run.begin, run.end),
                 b.extra + int64_t{run.begin - r.k0} * kTileRows);
    }
    for (int k = run.begin; k < run.end; k += G::kChunkKeys) {
      const int64_t by = int64_t{k - r.k0} * kTileRows;
      BackwardBuffers chunk = b;
      chunk.p += by, chunk.ds += by, chunk.derivative += by, chunk.extra += by;
      if (b.raw) chunk.raw += by;
      f(MakeBlockRange(t, run, k, std::min(k + G::kChunkKeys, run.end)), run.partial ? b.keep + by : nullptr,
        c.has_terms || run.partial, chunk);
    }
  }
}

// What lse of a tile's large rows has lost (large_scores-inl.h). Of parts of the keys no sum is whole.
template <class G>
void FindLargeScores(const BackwardTaskArgs& args) {
  const BackwardCall& call = *args.call;
  const ForwardCall& c = call.forward;
  const AttentionProblem& p = *c.p;
  const BackwardJob& job = *args.job;
  const int64_t n = args.index;
  const RowTile& t = job.row_tiles[n];
  float *const lse = job.lse + n * kTileRows, *const top = job.top + n * kTileRows;
  job.has_top[n] = !t.empty() && !c.terms->weights() && !call.gradient.partial &&
                   std::any_of(lse, lse + kTileRows, IsLarge);
  if (!job.has_top[n]) return;
  const BackwardBuffers b = MakeBackwardBuffers(call, args.scratch);
  const int first = static_cast<int>(p.first_key()), last = static_cast<int>(first + p.key_count(job.b));
  LaneTerms lanes;
  if (c.has_terms || c.has_keep) lanes = MakeLaneTerms(*c.terms, t);
  RowSums sums;
  for (int k0 = first; k0 < last; k0 += static_cast<int>(kBackwardBlock)) {
    const int k1 = std::min(k0 + static_cast<int>(kBackwardBlock), last), e = std::min(k1, t.end);
    const int a = std::max(k0, t.begin) / G::kKeyStep * G::kKeyStep;
    if (std::max(k0, t.begin) >= e) continue;
    G engine(call, job, k0, k1, b.engine);
    if constexpr (G::kMakesGradients) engine.Start(n);
    const BlockRange r = MakeBlockRange(t, a, e);
    const KeyRuns runs = RunsOfTile<G>(c, t, a, e, b.keep);
    EachChunk<G>(call, job, n, r, runs, b,
                 [&](const BlockRange& part, const uint8_t* keep, bool rows, const BackwardBuffers& chunk) {
                   engine.Scores(n, part, chunk.p, chunk.ds);
                   ChunkScores(call, t, part, lanes, keep, rows, chunk);
                   c.has_terms ? AddToRowSums<true>(t, part, chunk.p, sums)
                               : AddToRowSums<false>(t, part, chunk.p, sums);
                 });
    if constexpr (G::kMakesGradients) engine.Finish();
  }
  std::fill_n(top, kTileRows, 0.0f);
  KeepRowSums(sums, c.has_terms ? 1.0f : 1 / kLog2e, lse, top);
}

// f(range, first number of its rows in the buffers) for the keys that a tile sees.
template <class Body>
void EachRun(const RowTile& t, const BlockRange& r, const KeyRuns& runs, const Body& f) {
  if (runs.whole()) return f(r, 0);
  for (int i = 0; i < runs.count; ++i) {
    const KeyRun& run = runs.run[i];
    f(MakeBlockRange(t, run, run.begin, run.end), int64_t{run.begin - r.k0} * kTileRows);
  }
}

// Gradients of the terms, then dS becomes the gradient of scale · ⟨query, key⟩ (without the scale).
void TermGradients(const BackwardCall& call, const BackwardJob& job, const RowTile& t, const BlockRange& r,
                   const LaneTerms& lanes, int64_t block, const BackwardBuffers& b) {
  const F d;
  const ScoreTerms& terms = *call.forward.terms;
  const auto behind_function = [&] {
    const ScoreFunction& f = terms.score_function;
    BackwardScoreFunction(f, t, r, b.raw, b.ds, job.captured + block % job.copies * f.captured);
  };
  if (b.raw && terms.weights()) behind_function();
  float* d_bias = as_floats(call.gradient.d_bias);
  if (d_bias && terms.bias) BiasGradient(terms, t, r, b.ds, d_bias, b.extra);
  AddToHeadSums(terms, lanes, call.forward.p->group(), t, r, b.ds, job.head_sums, block);
  if (terms.weights() ? !terms.curved() : !terms.nonlinear()) return;
  for (int lane = 0; lane < t.groups * kGroupRows; lane += kN) {
    const int g = lane / kGroupRows;
    for (int k = r.need_begin[g]; k < r.need_end[g]; ++k) {
      float* at = b.ds + (k - r.k0) * kTileRows + lane;
      const Vec x = hn::LoadU(d, at), factor = hn::LoadU(d, b.derivative + (k - r.k0) * kTileRows + lane);
      hn::StoreU(hn::IfThenZeroElse(hn::Eq(x, hn::Zero(d)), hn::Mul(x, factor)), d, at);
    }
  }
  if (b.raw && !terms.weights()) behind_function();
}

// The relative keys' share of d_query, and their own gradient's sums of this block; on f32 only.
void AddToRelativeKeys(const BackwardCall& call, const BackwardJob& job, int64_t n, const BlockRange& r,
                       const RelativeRange& range, const BackwardBuffers& b) {
  const ForwardCall& c = call.forward;
  const RowTile& t = job.row_tiles[n];
  RelativeKeyArgs args{};
  args.table = &c.terms->relative_key, args.dim = c.p->head_dim, args.group = c.p->group();
  args.query = QueriesOfTile(call, job, n);
  args.columns = call.head_columns;
  args.d_query = call.gradient.d_query ? job.d_query + n * kTileRows * call.head_columns : nullptr;
  args.sums = range.sums;
  args.sum_first = range.first, args.sum_rows = range.rows;
  args.band = b.p, args.padded_rows = b.table_rows;
  RelativeKeyGradient(args, t, r, b.ds);
}

// The relative values' gradient's sums of this block; on f32 only.
void AddToRelativeValues(const BackwardCall& call, const BackwardJob& job, int64_t n, const BlockRange& r,
                         const RelativeRange& range, const float* weights, const BackwardBuffers& b) {
  if (!range.sums) return;
  const ForwardCall& c = call.forward;
  RelativeKeyArgs args{};
  args.table = &c.terms->relative_value, args.dim = c.p->value_dim, args.group = c.p->group();
  args.query = OutputGradientsOfTile(call, job, n);
  args.columns = c.value_columns;
  args.sums = range.sums, args.sum_first = range.first, args.sum_rows = range.rows;
  args.band = b.table_rows;
  RelativeKeyGradient(args, job.row_tiles[n], r, weights);
}

// The share of a block in d_query.
template <class G>
void AddToQueries(const G& engine, int64_t n, const BlockRange& r, const KeyRuns& runs, const float* ds) {
  if constexpr (requires { G::kSkipsKeys; }) {
    if (!runs.whole()) return engine.AddToQueries(n, runs, ds);
  }
  engine.AddToQueries(n, r, ds);
}

// Writes `count` gradient rows into those from `to` on, scaled; false if anything is not finite.
bool WriteRows(const float* rows, int64_t count, int64_t dim, int64_t columns, float scale, void* first,
               const Operand& to) {
  const F d;
  const Vec factor = hn::Set(d, scale);
  Vec check = hn::Zero(d);
  for (int64_t r = 0; r < count; ++r) {
    const bool bf16 = to.dtype == Dtype::bf16;
    check = StoreRow(rows + r * columns, factor, dim, bf16, At(first, r * to.strides.token, bf16), check);
  }
  return hn::AllTrue(d, hn::Eq(check, hn::Zero(d)));
}

// The factor of a query or key gradient at the end.
float GradientScale(const BackwardCall& call) {
  return call.gradient.partial ? 1.0f : static_cast<float>(call.forward.p->scale);
}

// Calls f(column, place) for the parts of a key's row that lie in tiles.
template <class Body>
void EachTileOfRow(int64_t row, int64_t columns, const Body& f) {
  for (int64_t c = 0; c < columns; c += kGroupRows) {
    f(c, (row / kGroupRows * (columns / kGroupRows) + c / kGroupRows) * 256 + row % kGroupRows * kGroupRows);
  }
}

// A block's sums so far: none, or those of earlier calls.
void StartBlock(const BackwardCall& call, const BackwardJob& job, int k0, int count,
                const BackwardBuffers& b) {
  const ForwardCall& c = call.forward;
  const auto start = [&](float* rows, int64_t dim, int64_t columns, const Operand& from) {
    std::fill_n(rows, padded(count) * columns, 0.0f);
    if (!call.gradient.partial || !from) return;
    for (int r = 0; r < count; ++r) {
      float* row = call.operands.tiled ? b.p : rows + r * columns;
      LoadRow(KeyRow(c, from, job.b, job.kv, k0 + r), dim, false, row);
      if (row != b.p) continue;
      std::fill(row + dim, row + columns, 0.0f);
      EachTileOfRow(r, columns,
                    [&](int64_t column, int64_t at) { std::copy_n(row + column, kGroupRows, rows + at); });
    }
  };
  start(b.d_key, c.p->head_dim, call.head_columns, call.gradient.d_key);
  start(b.d_value, c.p->value_dim, c.value_columns, call.gradient.d_value);
}

bool WriteBlock(const BackwardCall& call, const BackwardJob& job, int k0, int count,
                const BackwardBuffers& b) {
  const ForwardCall& c = call.forward;
  const auto write = [&](const float* rows, int64_t dim, int64_t columns, float scale, const Operand& to) {
    if (!to) return true;
    if (!call.operands.tiled)
      return WriteRows(rows, count, dim, columns, scale, KeyRow(c, to, job.b, job.kv, k0), to);
    bool finite = true;
    for (int r = 0; r < count; ++r) {
      EachTileOfRow(r, columns,
                    [&](int64_t column, int64_t at) { std::copy_n(rows + at, kGroupRows, b.p + column); });
      finite = WriteRows(b.p, 1, dim, columns, scale, KeyRow(c, to, job.b, job.kv, k0 + r), to) && finite;
    }
    return finite;
  };
  const bool keys =
      write(b.d_key, c.p->head_dim, call.head_columns, GradientScale(call), call.gradient.d_key);
  return write(b.d_value, c.p->value_dim, c.value_columns, 1.0f, call.gradient.d_value) && keys;
}

template <class G>
bool KeyBlock(const BackwardTaskArgs& args) {
  const BackwardCall& call = *args.call;
  const ForwardCall& c = call.forward;
  const AttentionProblem& p = *c.p;
  const BackwardJob& job = *args.job;
  const BackwardBuffers b = MakeBackwardBuffers(call, args.scratch);
  const int64_t first = p.first_key();
  const int k0 = static_cast<int>(first + args.index * kBackwardBlock);
  const int k1 = static_cast<int>(std::min(k0 + kBackwardBlock, first + p.key_count(job.b)));
  G engine(call, job, k0, k1, b.engine);
  if (job.copies > 0 && !Await(job, job.turns[args.index % job.copies], args.index / job.copies)) return true;
  StartBlock(call, job, k0, k1 - k0, b);
  const RelativeRange keys = RelativeRangeOf(call, job, c.terms->relative_key, call.head_columns,
                                             job.relative_key, b.key_sums, k0, k1);
  const RelativeRange values = RelativeRangeOf(call, job, c.terms->relative_value, c.value_columns,
                                               job.relative_value, b.value_sums, k0, k1);
  for (int64_t n = 0; n < job.tiles; ++n) {
    const RowTile& t = job.row_tiles[n];
    const int e = std::min(k1, t.end);
    int a = std::max(k0, t.begin);
    if (a >= e) continue;
    a = a / G::kKeyStep * G::kKeyStep;  // no row needs the keys before
    const BlockRange r = MakeBlockRange(t, a, e);
    LaneTerms lanes;
    if (c.has_terms || c.has_keep) lanes = MakeLaneTerms(*c.terms, t);
    if constexpr (G::kMakesGradients) engine.Start(n);
    const KeyRuns runs = RunsOfTile<G>(c, t, a, e, b.keep);
    const bool seen = runs.count > 0;
    if (seen) {
      EachChunk<G>(call, job, n, r, runs, b,
                   [&](const BlockRange& part, const uint8_t* keep, bool rows, const BackwardBuffers& chunk) {
                     ChunkGradients(call, job, engine, n, part, lanes, keep, rows, chunk);
                   });
      const float* weights = p.dropout_p > 0 ? b.extra : b.p;
      EachRun(t, r, runs, [&](const BlockRange& run, int64_t at) {
        if (call.gradient.d_value) engine.AddToValues(n, run, weights + at, b.d_value);
      });
      AddToRelativeValues(call, job, n, r, values, weights, b);
      if (c.has_terms) TermGradients(call, job, t, r, lanes, args.index, b);
      EachRun(t, r, runs, [&](const BlockRange& run, int64_t at) {
        if (call.gradient.d_key) engine.AddToKeys(n, run, b.ds + at, b.d_key);
      });
    }
    if (!Await(job, job.done[n], args.index - (t.begin - first) / kBackwardBlock)) return true;
    if (seen && call.gradient.d_query) AddToQueries(engine, n, r, runs, b.ds);
    if (seen && c.terms->relative_key) AddToRelativeKeys(call, job, n, r, keys, b);
    job.done[n].fetch_add(1, std::memory_order_release);
  }
  if constexpr (G::kMakesGradients) engine.Finish();
  const bool finite = SumTables(call, job, args.index, keys, values);
  if (job.copies > 0) job.turns[args.index % job.copies].fetch_add(1, std::memory_order_release);
  return WriteBlock(call, job, k0, k1 - k0, b) && finite;
}

// f(std::type_identity<G>()) for the type G of an engine's gradients.
template <class Body>
auto WithGradients(const ForwardCall& c, const Body& f) {
#if HWY_TARGET == HWY_AVX3
  if (c.on_tiles()) return f(std::type_identity<GradientsOnTiles>());
#endif
  return WithEngine(c.engine, [&](auto engine) {
    return f(std::type_identity<typename decltype(engine)::type::Gradients>());
  });
}

BackwardOperands BackwardOperandsOf(const BackwardCall& call) {
  return WithGradients(call.forward, [&](auto g) { return decltype(g)::type::Operands(call); });
}

void BackwardPrepare(const BackwardTaskArgs& args) {
  WithGradients(args.call->forward, [&](auto g) {
    PrepareTile<typename decltype(g)::type>(args);
    FindLargeScores<typename decltype(g)::type>(args);
  });
}

bool BackwardBlock(const BackwardTaskArgs& args) {
  return WithGradients(args.call->forward,
                       [&](auto g) { return KeyBlock<typename decltype(g)::type>(args); });
}

bool BackwardFinish(const BackwardTaskArgs& args) {
  const BackwardCall& call = *args.call;
  const ForwardCall& c = call.forward;
  const BackwardJob& job = *args.job;
  const RowTile& t = job.row_tiles[args.index];
  const Operand& d_query = call.gradient.d_query;
  if (!d_query) return true;
  bool finite = true;
  const float* all = job.d_query + args.index * kTileRows * call.head_columns;
  if (call.operands.tiled) {
    UntileQueries(all, t.groups, call.head_columns, args.scratch);
    all = args.scratch;
  }
  each_head_run(t, [&](int first, int count) {
    const float* rows = all + first * call.head_columns;
    finite = WriteRows(rows, count, c.p->head_dim, call.head_columns, GradientScale(call),
                       TileRow(c, d_query, t, first), d_query) &&
             finite;
  });
  return finite;
}

}  // namespace
}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_SCALAR

#if HWY_ONCE
namespace multihead::kernels {

HWY_EXPORT(BackwardOperandsOf);
HWY_EXPORT(BackwardPrepare);
HWY_EXPORT(BackwardBlock);
HWY_EXPORT(BackwardFinish);

BackwardOperands backward_operands(const BackwardCall& call) {
  return HWY_DYNAMIC_DISPATCH(BackwardOperandsOf)(call);
}
void backward_prepare(const BackwardTaskArgs& args) { HWY_DYNAMIC_DISPATCH(BackwardPrepare)(args); }
bool backward_block(const BackwardTaskArgs& args) { return HWY_DYNAMIC_DISPATCH(BackwardBlock)(args); }
bool backward_finish(const BackwardTaskArgs& args) { return HWY_DYNAMIC_DISPATCH(BackwardFinish)(args); }

}  // namespace multihead::kernels
#endif  // HWY_ONCE
