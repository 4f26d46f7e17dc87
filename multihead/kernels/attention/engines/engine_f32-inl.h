// Attention on f32 FMAs; bf16 is widened block by block.
//   S[k][q] = K · Qᵀ       keys are broadcast from where they lie, Qᵀ packed as [dim][lane] with the scale
//   O[q][:] += P · V       P is broadcast from the scores, V lies in place with its columns in lanes
// and the products of the backward pass, which read the same memory with other strides. While a product runs
// it prefetches what the next one reads.

#if defined(MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_F32_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_F32_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_F32_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_F32_INL_H_
#endif

#include "multihead/kernels/attention/block/backward_call-inl.h"
#include "multihead/kernels/attention/block/block-inl.h"
#include "multihead/kernels/attention/block/key_sums-inl.h"
#include "multihead/kernels/attention/block/relative-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// to[c][lane] = 0 for the lanes of the last group of 16 that have no row. In tile_steps.cc.
void ZeroPaddingLanes(const RowTile& t, int64_t columns, float* to);

// qt[c][lane] = scale · query, zero in padding lanes. In tile_steps.cc.
void PackQuery(const ForwardCall& call, const RowTile& t, float scale, float* qt);

// A score term that the product adds at the end of its tiles.
struct ProductTerm {
  End end = End::store_max;  // or bias_max: s holds the bias; or alibi_max
  const float* slope = nullptr;
  const float* place = nullptr;
};

// s[k - k0][q] = ⟨key[k], query[q]⟩ with `dim` terms wherever needed. `max` (null only without a term)
// receives the maximum over the rows [full_begin, full_end), which nothing has to mask. In tile_steps.cc.
void ScoreProduct(const RowTile& t, const BlockRange& r, const Rows& key, const float* qt, int64_t dim,
                  float* s, float* max, const PrefetchRows& prefetch, const ProductTerm& term = {});

// ScoreProduct without maximum, added to what RelativeScores wrote if `added`.
HWY_INLINE void AddScoreProduct(bool added, const RowTile& t, const BlockRange& r, const Rows& key,
                                const float* qt, int64_t dim, float* s, const PrefetchRows& prefetch) {
  alignas(64) float unused[kTileRows] = {};
  ScoreProduct(t, r, key, qt, dim, s, added ? unused : nullptr, prefetch,
               {added ? End::bias_max : End::store_max, nullptr, nullptr});
}

// As BlockValues, but keys whose score is -inf are not touched: NaN and Inf in excluded values stay there.
HWY_NOINLINE inline void BlockValuesSafe(const RowTile& t, const BlockRange& r, const float* s,
                                         const float* shadow, const Rows& value, int64_t columns, bool first,
                                         const float* alpha, const float* beta, float* out) {
  const F d;
  for (int row = 0; row < t.rows; ++row) {
    const int a = std::clamp(t.lo[row], r.k0, r.k1), e = std::clamp(t.hi[row], a, r.k1);
    for (int64_t c = 0; c < columns; c += kN) {
      Vec sum = hn::Zero(d);
      for (int k = a; k < e;) {
        Vec chain = hn::Zero(d);
        for (const int end = std::min(e, k + KeyChainRest(k)); k < end; ++k) {
          const int64_t at = int64_t{k - r.k0} * kTileRows + row;
          if (shadow[at] == -kInfinity) continue;
          const Vec v = hn::LoadU(d, value.data + (k - r.k0) * value.stride + c);
          chain = hn::MulAdd(hn::Set(d, s[at]), v, chain);
        }
        sum = hn::Add(sum, chain);
      }
      float* o = out + row * columns + c;
      if (!first) {
        sum = hn::MulAdd(sum, hn::Set(d, beta[row]), hn::Mul(hn::LoadU(d, o), hn::Set(d, alpha[row])));
      }
      hn::StoreU(sum, d, o);
    }
  }
}

// to[k] += Σ_q p[k][q] from[q] over the queries that need key k, head after head.
inline void AddKeyRows(const RowTile& t, const BlockRange& r, const float* p, const Rows& from,
                       int64_t columns, float* to) {
  ProductArgs args{};
  args.a_row = kTileRows, args.a_step = 1, args.b_stride = from.stride, args.c_stride = columns;
  const int step = r.full() ? r.k1 - r.k0 : kGroupRows;
  for (int k = r.k0; k < r.k1; k += step) {
    const int end = std::min(k + step, r.k1);
    int first = 0, last = t.groups;
    if (!r.full()) NeededGroups(t, r, k, end, &first, &last);
    each_head_run(t, [&](int run, int count) HWY_ATTR {
      const int begin = std::max(run, first * kGroupRows), stop = std::min(run + count, last * kGroupRows);
      if (begin >= stop) return;
      args.a = p + (k - r.k0) * kTileRows + begin;
      args.b = from.data + begin * from.stride, args.c = to + (k - r.k0) * columns;
      args.k = stop - begin;
      args.first_chain = QueryChainRest(t.query[begin]), args.chain = kQueryChain;
      Product<End::add, true>(args, end - k, columns);
    });
  }
}

// Where tile `n` of the next task finds its queries.
HWY_INLINE PrefetchRows NextQueries(const ForwardCall& c, const AttentionTask* next, int n) {
  const int64_t row = next ? next->row_begin + n * kTileRows : 0;
  if (!next || row + kTileRows > next->row_end) return {};
  const Strides3& s = c.query.strides;
  const int64_t queries = c.p->query_count(next->b), head = next->kv * c.p->group() + row / queries;
  const int64_t token = c.p->query_begin(next->b) + c.p->first_query() + row % queries;
  if (row % queries + kTileRows > queries) return {};
  const int64_t numbers = c.bf16 ? 2 : 1;  // in a float
  const void* from = At(c.query.data, next->b * s.batch + head * s.head + token * s.token, c.bf16);
  return {{static_cast<const float*>(from), s.token / numbers}, c.p->head_dim / numbers};
}

// The bias rows of a tile for the key block from k0 on.
HWY_INLINE Rows NextBias(const ForwardCall& c, const RowTile& t, int k0) {
  const Strides4& s = c.terms->bias_strides;
  if (!c.terms->bias || s.key != 1 || s.query == 0 || t.head[0] != t.head[t.rows - 1]) return {};
  const int64_t at = t.b * s.batch + t.head[0] * s.head + t.query[0] * s.query + k0;
  return {as_floats(c.terms->bias) + at, s.query};
}

// The bias rows of the next task's first key block, if it has one whole tile of one head.
HWY_INLINE Rows FirstBias(const ForwardCall& c, const AttentionTask* next) {
  const Strides4& s = c.terms->bias_strides;
  if (!next || !c.terms->bias || s.key != 1 || s.query == 0) return {};
  const int64_t queries = c.p->query_count(next->b), row = next->row_begin % queries;
  if (next->row_begin + kTileRows > next->row_end || row + kTileRows > queries) return {};
  const int64_t head = next->kv * c.p->group() + next->row_begin / queries;
  const int64_t at = next->b * s.batch + head * s.head + (c.p->first_query() + row) * s.query;
  return {as_floats(c.terms->bias) + at + next->key_begin, s.query};
}

class F32Engine : public EngineDefaults {
 public:
  static constexpr bool kMakesExponentials = true;
  static constexpr bool kSkipsKeys = true;
  static constexpr bool kDecodes = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2;

  // Keys and values from key `first` on.
  struct Block {
    Rows key, value;
    int first = 0;
  };

  // Memory: of a staged block, and of a tile's packed queries.
  static int64_t StageFloats(const ForwardCall& c) {
    return KeyFloats(c) + (c.copy_value ? kBlock * c.value_columns : 0);
  }
  static int64_t QueryFloats(const ForwardCall& c) { return std::max<int64_t>(c.p->head_dim, 1) * kTileRows; }

  F32Engine(const ForwardCall& c, float* memory) : c_(c), key_(memory), value_(memory + KeyFloats(c)) {}

  // `buffer`: kTileRows rows of head_dim.
  void PackQueries(QueryTile& w, float* /*buffer*/) const { PackQuery(c_, w.rows, ScoreScale(c_), w.query); }

  Block Stage(const AttentionTask& task, int k0, int k1) const {
    const int64_t dim = c_.p->head_dim;
    return {StageRows(c_, c_.key, task.b, task.kv, k0, k1, dim, c_.copy_key, dim, key_),
            StageRows(c_, c_.value, task.b, task.kv, k0, k1, c_.p->value_dim, c_.copy_value, c_.value_columns,
                      value_),
            k0};
  }

  // A bias or ALiBi alone needs no pass of its own over the scores.
  HWY_INLINE bool FusesTerms(bool safe) const {
    const unsigned kinds = c_.terms->kinds();
    return kinds == ScoreTerms::kAlibi || (kinds == ScoreTerms::kBias && !safe);
  }

  // s <- scores of the block wherever needed; the maximum of the rows that nothing masks joins `max`.
  HWY_INLINE void Scores(const QueryTile& w, const BlockRange& r, const Block& block, const BlockPlace& place,
                         bool safe, float* s, float* max) const {
    const ScoreTerms& terms = *c_.terms;
    ProductTerm term;
    if (c_.has_terms && FusesTerms(safe)) {
      term.end = terms.bias ? End::bias_max : End::alibi_max;
      term.slope = w.lanes.slope, term.place = w.lanes.place;
    }
    // A bias goes chunk by chunk: the product finds it, transposed, in L1.
    const int step = term.end == End::bias_max ? kChunk : r.k1 - r.k0;
    for (int k = r.k0; k < r.k1; k += step) {
      const BlockRange part = step == kChunk ? MakeBlockRange(w.rows, k, std::min(k + kChunk, r.k1)) : r;
      float* to = s + int64_t{k - r.k0} * kTileRows;
      if (term.end == End::bias_max) GatherBias(terms, w.rows, part, to);
      ScoreProduct(w.rows, part, Shifted(block.key, k - block.first), w.query, c_.p->head_dim, to, max,
                   Shifted(ScorePrefetch(block, place), k - place.k0), term);
    }
  }

  // The same in chunks, without maximum: what goes before them, and one of them.
  HWY_INLINE void StartChunks(const QueryTile& w, const BlockRange& r, const Block&,
                              const BlockBuffers& b) const {
    const RelativeTable& table = c_.terms->relative_key;
    if (table) RelativeScores(table, c_.p->head_dim, w.rows, r, w.query, b.shadow, b.s);
  }
  HWY_INLINE void ChunkScores(const QueryTile& w, const BlockRange& r, const Block& block,
                              const BlockPlace& place, float* s) const {
    AddScoreProduct(static_cast<bool>(c_.terms->relative_key), w.rows, r,
                    Shifted(block.key, r.k0 - block.first), w.query, c_.p->head_dim, s,
                    Shifted(ScorePrefetch(block, place), r.k0 - place.k0));
  }

  // s <- probabilities as Values takes them.
  HWY_INLINE void Probabilities(const RowTile& t, const BlockRange& r, float* s, const float* shift,
                                float* sum) const {
    Exponentials(c_, t, r, s, shift, sum);
  }

  // w.out <- w.out · alpha + block's part · beta, from probabilities, without touching excluded values.
  HWY_INLINE void Values(const QueryTile& w, const BlockRange& r, const Block& block, const BlockPlace&,
                         bool /*safe*/, const BlockBuffers& b, const float* alpha, const float* beta) const {
    BlockValuesSafe(w.rows, r, b.s, b.shadow, Shifted(block.value, r.k0 - block.first), c_.value_columns,
                    w.first, alpha, beta, w.out);
    if (c_.terms->relative_value) AddRelative(w, r, b, b.shadow, b.bias, beta);
  }

  // The same from scores, whose exponentials are made where the values need them, chain by chain in L1 (dense
  // 1.017, causal 1.027; Sapphire Rapids, November 2026). Their sums join state.sum.
  HWY_NOINLINE void ScoreValues(const QueryTile& w, const BlockRange& r, const Block& block,
                                const BlockPlace& place, const BlockBuffers& b, const float* alpha,
                                const float* beta, LaneState& state) const {
    alignas(64) float shift[kTileRows];
    ShiftOf(state, shift);
    BlockValues(
        {w.rows, r, b.s, Shifted(block.value, r.k0 - block.first), c_.value_columns, w.out, alpha, beta},
        w.first, ValuePrefetch(w.rows, r.k1, place), [&](KeyRange keys) HWY_ATTR {
          float* s = b.s + int64_t{keys.begin - r.k0} * kTileRows;
          Exponentials(c_, w.rows, MakeBlockRange(w.rows, keys.begin, keys.end), s, shift, state.sum);
        });
    if (c_.terms->relative_value) AddRelative(w, r, b, nullptr, b.shadow, beta);
  }

  // ScoreValues for the runs of a block, whose scores lie one behind the other.
  HWY_NOINLINE void RunValues(const QueryTile& w, const KeyRuns& runs, const Block& block,
                              const BlockBuffers& b, const float* alpha, const float* beta,
                              LaneState& state) const {
    alignas(64) float shift[kTileRows];
    ShiftOf(state, shift);
    const RunSum sum{w.rows.rows,      runs,  b.s,   false, Shifted(block.value, runs.first - block.first),
                     c_.value_columns, w.out, alpha, beta};
    const auto before = [&](KeyRange keys, int64_t at) HWY_ATTR {
      Exponentials(c_, w.rows, MakeBlockRange(w.rows, keys.begin, keys.end), b.s + at, shift, state.sum);
    };
    if (w.first) {
      SumOverRuns<End::store, End::add>(sum, true, before);
    } else {
      SumOverRuns<End::merge, End::add_merge>(sum, false, before);
    }
  }

  class Gradients;

 private:
  // The relative values' part of a block, whose probabilities are in b.s.
  void AddRelative(const QueryTile& w, const BlockRange& r, const BlockBuffers& b, const float* shadow,
                   float* scratch, const float* beta) const {
    AddRelativeValues({w.rows, r, c_.terms->relative_value, c_.value_columns, b.s, shadow,
                       w.first ? nullptr : beta, scratch, w.out});
  }
  static int64_t KeyFloats(const ForwardCall& c) { return c.copy_key ? kBlock * c.p->head_dim : 0; }

  // While the first and the second tile read the copies of a block, the keys and the values that are copied
  // next: short rows of bf16 .03-.05 faster. Where nothing is copied, only the keys themselves: the values as
  // well cost .02 (dense 96x128x64).
  PrefetchRows ScorePrefetch(const Block& block, const BlockPlace& place) const {
    if (place.task == nullptr) return {};
    const bool keys = place.turn == 0;
    if (!(keys ? c_.copy_key : c_.copy_value)) return InPlacePrefetch(block, place);
    const int64_t base = (place.k0 / kBlock + 1) * kBlock;
    const AttentionTask* at = base < place.task->key_end ? place.task : place.next;
    if (place.turn > 1 || at == nullptr) return {};
    const Operand& x = keys ? c_.key : c_.value;
    const void* from = KeyRow(c_, x, at->b, at->kv, at == place.next ? at->key_begin : base);
    const int64_t dim = keys ? c_.p->head_dim : c_.p->value_dim;
    const int64_t numbers = c_.int8 ? 4 : c_.bf16 ? 2 : 1;  // in a float
    return {{static_cast<const float*>(from), x.strides.token / (c_.bf16 ? 2 : 1)}, dim / numbers};
  }

  // Where nothing is copied: the block's own keys and, during a task's last block, the first keys and values
  // of the next task, if it is of another head (ragged samples 1.02-1.03, 8x12x128 1.02-1.04; Sapphire
  // Rapids, November 2026).
  PrefetchRows InPlacePrefetch(const Block& block, const BlockPlace& place) const {
    const AttentionTask *task = place.task, *next = place.next;
    const bool last = (place.k0 / kBlock + 1) * kBlock >= task->key_end;
    const bool same = !next || (next->b == task->b && next->kv == task->kv);
    if (!last || same || place.turn > 1) {
      // Later tiles find the block's keys in L2, and lose .01 to looking for them again.
      return place.turn == 0 ? PrefetchRows{block.value, 0} : PrefetchRows{};
    }
    const bool keys = place.turn == 0;
    const Operand& x = keys ? c_.key : c_.value;
    const void* from = KeyRow(c_, x, next->b, next->kv, next->key_begin);
    return {{static_cast<const float*>(from), x.strides.token}, keys ? c_.p->head_dim : c_.p->value_dim};
  }

  // The bias of the next block, or the queries of the next task.
  PrefetchRows ValuePrefetch(const RowTile& t, int k1, const BlockPlace& place) const {
    const Rows bias = k1 < t.end ? NextBias(c_, t, k1) : Rows{};
    // A row that starts within a cache line ends in one more: without it .04 of a call's time (T = 1024).
    if (bias.data) return {bias, std::min(kBlock, t.end - k1) + 15};
    const bool last = (place.k0 / kBlock + 1) * kBlock >= t.end;
    const Rows first = last ? FirstBias(c_, place.next) : Rows{};
    if (first.data)
      return {first, std::min<int64_t>(kBlock, place.next->key_end - place.next->key_begin) + 15};
    return last ? NextQueries(c_, place.next, place.tile) : PrefetchRows{};
  }

  const ForwardCall& c_;
  float *key_, *value_;
};

// Rows of a tile as the products want them: staged, or in place.
HWY_INLINE Rows TileRowsOf(const ForwardCall& c, const RowTile& t, const float* staged, const Operand& x,
                           int64_t columns) {
  if (staged) return {staged, columns};
  return {static_cast<const float*>(TileRow(c, x, t, 0)), x.strides.token};
}

HWY_INLINE Rows QueriesOfTile(const BackwardCall& call, const BackwardJob& job, int64_t n) {
  const ForwardCall& c = call.forward;
  const float* staged = call.operands.stage_query ? job.query + n * call.operands.query : nullptr;
  return TileRowsOf(c, job.row_tiles[n], staged, c.query, call.head_columns);
}

HWY_INLINE Rows OutputGradientsOfTile(const BackwardCall& call, const BackwardJob& job, int64_t n) {
  const ForwardCall& c = call.forward;
  const float* staged = call.operands.stage_d_out ? job.d_out + n * call.operands.d_out : nullptr;
  return TileRowsOf(c, job.row_tiles[n], staged, call.gradient.d_out, c.value_columns);
}

// The products of the backward pass for one key block.
class F32Engine::Gradients {
 public:
  static constexpr int kKeyStep = F32Engine::kKeyStep;
  static constexpr int kChunkKeys = kChunk;       // keys whose S and dP are finished while they are in L1
  static constexpr bool kMakesGradients = false;  // P and dS at once, for some calls
  static constexpr bool kSkipsKeys = F32Engine::kSkipsKeys;

  static BackwardOperands Operands(const BackwardCall& call) {
    const ForwardCall& c = call.forward;
    const AttentionProblem& p = *c.p;
    const bool copied = c.bf16 || (p.queries < kTileRows && p.group() > 1) || p.sequences;
    const auto staged = [&](int64_t dim, int64_t columns, const Operand& x) {
      return copied || columns != dim || (x.strides.token != dim && p.queries >= 256);
    };
    BackwardOperands o;
    o.stage_query = staged(p.head_dim, call.head_columns, c.query);
    o.stage_d_out = staged(p.value_dim, c.value_columns, call.gradient.d_out);
    o.qt = kTileRows * p.head_dim, o.d_out_t = kTileRows * p.value_dim;
    if (o.stage_query) o.query = kTileRows * call.head_columns;
    if (o.stage_d_out) o.d_out = kTileRows * c.value_columns;
    o.block = kBackwardBlock * (call.head_columns + c.value_columns);
    return o;
  }

  // Packs tile n of a job, whose output gradients are `d_out`.
  static void Pack(const BackwardCall& call, const BackwardJob& job, int64_t n, const Rows& d_out) {
    const ForwardCall& c = call.forward;
    const RowTile& t = job.row_tiles[n];
    PackQuery(c, t, ScoreScale(c), job.qt + n * call.operands.qt);
    if (call.operands.stage_query) {
      CopyTileRows(c, t, c.query, c.p->head_dim, call.head_columns, job.query + n * call.operands.query);
    }
    float* d_out_t = job.d_out_t + n * call.operands.d_out_t;
    TransposeTo(d_out.data, d_out.stride, t.rows, c.p->value_dim, d_out_t, kTileRows, 1.0f);
    ZeroPaddingLanes(t, c.p->value_dim, d_out_t);
  }

  // Stages keys [k0, k1) and their values.
  Gradients(const BackwardCall& call, const BackwardJob& job, int k0, int k1, float* memory)
      : call_(call), job_(job), first_(k0) {
    const ForwardCall& c = call.forward;
    key_ = StageRows(c, c.key, job.b, job.kv, k0, k1, c.p->head_dim, c.copy_key, call.head_columns, memory);
    value_ = StageRows(c, c.value, job.b, job.kv, k0, k1, c.p->value_dim, c.copy_value, c.value_columns,
                       memory + kBackwardBlock * call.head_columns);
  }

  // s <- S, dp <- dP of tile n wherever needed.
  void Scores(int64_t n, const BlockRange& r, float* s, float* dp) const {
    const AttentionProblem& p = *call_.forward.p;
    const RowTile& t = job_.row_tiles[n];
    AddScoreProduct(static_cast<bool>(call_.forward.terms->relative_key), t, r, Shifted(key_, r.k0 - first_),
                    job_.qt + n * call_.operands.qt, p.head_dim, s, {});
    AddScoreProduct(static_cast<bool>(call_.forward.terms->relative_value), t, r,
                    Shifted(value_, r.k0 - first_), job_.d_out_t + n * call_.operands.d_out_t, p.value_dim,
                    dp, {});
  }

  // d_value[k] += P · dO, d_key[k] += dS · Q, the block's; d_query[q] += dSᵀ · K, the job's.
  void AddToValues(int64_t n, const BlockRange& r, const float* weights, float* d_value) const {
    const int64_t columns = call_.forward.value_columns;
    AddKeyRows(job_.row_tiles[n], r, weights, OutputGradientsOfTile(call_, job_, n), columns,
               d_value + (r.k0 - first_) * columns);
  }
  void AddToKeys(int64_t n, const BlockRange& r, const float* ds, float* d_key) const {
    AddKeyRows(job_.row_tiles[n], r, ds, QueriesOfTile(call_, job_, n), call_.head_columns,
               d_key + (r.k0 - first_) * call_.head_columns);
  }
  void AddToQueries(int64_t n, const BlockRange& r, const float* ds) const {
    AddKeySums({job_.row_tiles[n], r, ds, Shifted(key_, r.k0 - first_), call_.head_columns,
                job_.d_query + n * kTileRows * call_.head_columns});
  }
  // The same over the keys that the tile sees, by groups where they see others.
  void AddToQueries(int64_t n, const KeyRuns& runs, const float* ds) const {
    const RowTile& t = job_.row_tiles[n];
    if (!runs.by_group()) return AddRuns(n, runs, 0, t.rows, ds);
    for (int row = 0; row < t.rows; row += kGroupRows) {
      AddRuns(n, runs.of_group(row / kGroupRows), row, std::min(kGroupRows, t.rows - row), ds);
    }
  }

 private:
  // Rows [row, row + count) of tile n.
  void AddRuns(int64_t n, const KeyRuns& runs, int row, int count, const float* ds) const {
    SumOverRuns<End::add, End::add_both>(
        {count, runs, ds + row, true, Shifted(key_, runs.first - first_), call_.head_columns,
         job_.d_query + (n * kTileRows + row) * call_.head_columns},
        false, [](KeyRange, int64_t) {});
  }

  const BackwardCall& call_;
  const BackwardJob& job_;
  Rows key_, value_;
  int first_;
};

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
