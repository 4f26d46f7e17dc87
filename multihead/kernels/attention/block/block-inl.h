// One tile of queries against one key block, whatever the engine: probabilities, and how blocks are merged.
//
// An engine is a type. It packs a tile's queries, stages a block's keys and values, and multiplies both; what
// lies between its products is here and the same for all. F32Engine shows what one has to offer.

#if defined(MULTIHEAD_KERNELS_ATTENTION_BLOCK_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_BLOCK_BLOCK_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_BLOCK_BLOCK_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_BLOCK_BLOCK_INL_H_
#endif

#include "multihead/kernels/attention/block/forward_call-inl.h"
#include "multihead/kernels/attention/block/rows-inl.h"
#include "multihead/kernels/attention/block/terms-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

inline constexpr int kBlock = static_cast<int>(attention_key_block);

// Key rows whose scores are made and finished while they are in L1: a multiple of the tiles' 6 rows and
// of 16.
inline constexpr int kChunk = 48;

// The factor of the scores: with terms they stay natural, else they become exponents of two.
HWY_INLINE float ScoreScale(const ForwardCall& c) {
  return static_cast<float>(c.has_terms ? c.p->scale : c.p->scale * 1.4426950408889634);
}

// Scratch of one block.
struct BlockBuffers {
  float* s = nullptr;       // [kBlock][kTileRows] scores, then probabilities
  float* bias = nullptr;    // likewise: transposed bias
  float* shadow = nullptr;  // likewise: scores kept for safe mode
  uint8_t* keep = nullptr;  // [kBlock][kTileRows]
};

// Softmax state of a tile after some blocks, or of one block: per lane maximum (of natural scores, else
// of scores times log2(e)) and sum.
struct LaneState {
  alignas(64) float max[kTileRows];
  alignas(64) float sum[kTileRows];
};

HWY_INLINE void ResetState(LaneState& state) {
  std::fill_n(state.max, kTileRows, -kInfinity);
  std::fill_n(state.sum, kTileRows, 0.0f);
}

// A tile of queries while its task runs.
struct QueryTile {
  RowTile rows;
  LaneTerms lanes;
  LaneState state;
  float* query = nullptr;  // packed by the engine
  float* out = nullptr;
  bool first = true;        // no block merged yet
  bool non_finite = false;  // a query is not, and the engine packed it otherwise
};

// Where in its task a tile meets a block: what an engine prefetches by.
struct BlockPlace {
  const AttentionTask* task = nullptr;  // null: nothing is prefetched
  const AttentionTask* next = nullptr;  // probably this thread's next one
  int tile = 0;                         // number in the task
  int turn = 0;                         // the first, second … tile that reads the staged block
  int k0 = 0;                           // the tile's first key of the block
};

// Defaults that most engines share.
struct EngineDefaults {
  static constexpr int kKeyStep = 1;       // products start at multiples of this many keys
  static constexpr bool kDecodes = false;  // few rows have a way of their own: decode-inl.h
  // Whether the product with the values makes the exponentials, in ScoreValues, unless it is to be safe.
  static constexpr bool kMakesExponentials = false;
  // Whether keys that no query of a tile sees are left out of its products: RunValues.
  static constexpr bool kSkipsKeys = false;
  // Whether Scores adds the terms of this call by itself.
  bool FusesTerms(bool) const { return false; }
  // Whether numbers that are not finite are missing from the packed operands.
  template <class Block>
  bool HasNonFinite(const QueryTile&, const Block&) const {
    return false;
  }
};

// Scores with all terms, of one chunk, become weights, 0 where they are -inf. `shadow`, if any, keeps the scores.
HWY_NOINLINE inline void ChunkWeights(const ScoreTerms& terms, const RowTile& t, const BlockRange& r,
                                      float* s, float* shadow) {
  const F d;
  alignas(64) float raw[kChunk * kTileRows];
  const int64_t count = int64_t{r.k1 - r.k0} * kTileRows;
  std::copy_n(s, count, raw);
  if (shadow != nullptr) std::copy_n(s, count, shadow);
  if (terms.score_function) ApplyScoreFunction(terms.score_function, t, r, s, nullptr);
  const Vec none = hn::Set(d, -kInfinity);
  for (int64_t i = 0; i < count; i += kN) {
    hn::StoreU(hn::IfThenZeroElse(hn::Eq(hn::Load(d, raw + i), none), hn::LoadU(d, s + i)), d, s + i);
  }
}

// Weights that go through no softmax are relative to nothing: of the maximum it stays whether there was a key.
HWY_INLINE void ForgetMaximum(const ScoreTerms& terms, LaneState& state) {
  if (!terms.weights()) return;
  for (float& max : state.max) max = max == -kInfinity ? max : 0.0f;
}

// s <- final scores of the block with terms and masks, chunk by chunk; their maximum joins `max`. Weights, if they go
// through no softmax.
template <class E>
HWY_INLINE void ScoreChunks(const ForwardCall& call, const E& engine, const QueryTile& w, const BlockRange& r,
                            const typename E::Block& block, const BlockPlace& place, const uint8_t* keep,
                            bool safe, const BlockBuffers& buffers, float* max) {
  const ScoreTerms& terms = *call.terms;
  const RowTile& t = w.rows;
  const float* bias = terms.bias ? buffers.bias : nullptr;
  if (bias) GatherBias(terms, t, r, buffers.bias);
  if (bias && safe) {  // -inf excludes even where the score is NaN
    const int count = (r.k1 - r.k0) * kTileRows;
    if (keep == nullptr) std::fill_n(buffers.keep, count, uint8_t{1}), keep = buffers.keep;
    for (int i = 0; i < count; ++i) buffers.keep[i] &= bias[i] != -kInfinity;
  }
  engine.StartChunks(w, r, block, buffers);
  for (int k = r.k0; k < r.k1; k += kChunk) {
    const int64_t by = int64_t{k - r.k0} * kTileRows;
    const BlockRange chunk = MakeBlockRange(t, k, std::min(k + kChunk, r.k1));
    float* s = buffers.s + by;
    engine.ChunkScores(w, chunk, block, place, s);
    if (terms.score_function && !terms.weights())
      ApplyScoreFunction(terms.score_function, t, chunk, s, nullptr);
    TermRows({&terms, &t, &w.lanes, bias ? bias + by : nullptr, keep ? keep + by : nullptr, s, nullptr},
             chunk, max);
    if (terms.weights()) ChunkWeights(terms, t, chunk, s, safe ? buffers.shadow + by : nullptr);
  }
}

// The shift subtracted from a block's scores before the exponential.
HWY_INLINE void ShiftOf(const LaneState& state, float* shift) {
  for (int i = 0; i < kTileRows; ++i) shift[i] = state.max[i] == -kInfinity ? 0.0f : state.max[i];
}

// s <- probabilities of the block relative to its own maximum, state <- that maximum and the sum; only scores
// and the maximum if the engine makes the exponentials later. False if no query sees any of it.
template <class E>
HWY_INLINE bool BlockProbabilities(const ForwardCall& call, const E& engine, const QueryTile& w,
                                   const BlockRange& r, const typename E::Block& block,
                                   const BlockPlace& place, bool safe, const BlockBuffers& buffers,
                                   LaneState& state) {
  const AttentionProblem& p = *call.p;
  const RowTile& t = w.rows;
  BlockClass mask = BlockClass::full;
  if (call.has_keep) mask = mask_class(p, t, r.k0, r.k1);
  if (mask == BlockClass::empty) return false;
  const uint8_t* keep = mask == BlockClass::partial ? buffers.keep : nullptr;
  if (keep != nullptr && !fill_keep(p, t, r.k0, r.k1, buffers.keep)) return false;
  ResetState(state);
  if (keep != nullptr || (call.has_terms && !engine.FusesTerms(safe))) {
    ScoreChunks(call, engine, w, r, block, place, keep, safe, buffers, state.max);
  } else {
    engine.Scores(w, r, block, place, safe, buffers.s, state.max);
    MaskRows(t, r, buffers.s, state.max);
  }
  ForgetMaximum(*call.terms, state);
  if (E::kMakesExponentials && !safe) return true;
  if (safe && !call.terms->weights()) std::copy_n(buffers.s, (r.k1 - r.k0) * kTileRows, buffers.shadow);
  alignas(64) float shift[kTileRows];
  ShiftOf(state, shift);
  engine.Probabilities(t, r, buffers.s, shift, state.sum);
  return true;
}

// The scores of the runs of a block, one behind the other from buffers.s on, with terms and masks; their maximum joins
// `max`.
template <class E>
HWY_INLINE void RunScores(const ForwardCall& call, const E& engine, const QueryTile& w, const KeyRuns& runs,
                          const typename E::Block& block, const BlockPlace& place, BlockBuffers buffers,
                          float* max) {
  for (int i = 0; i < runs.count; ++i) {
    const KeyRun& run = runs.run[i];
    const BlockRange r = MakeBlockRange(w.rows, run.begin, run.end);
    const uint8_t* keep = run.partial ? buffers.keep + int64_t{run.begin - runs.first} * kTileRows : nullptr;
    if (keep != nullptr || (call.has_terms && !engine.FusesTerms(false))) {
      ScoreChunks(call, engine, w, r, block, place, keep, false, buffers, max);
    } else {
      engine.Scores(w, r, block, place, false, buffers.s, max);
      MaskRows(w.rows, r, buffers.s, max);
    }
    buffers.s += int64_t{run.end - run.begin} * kTileRows,
        buffers.bias += int64_t{run.end - run.begin} * kTileRows;
  }
}

// s <- probabilities (or weights as they are) after dropout; those before it join `sum`.
HWY_NOINLINE inline void Exponentials(const ForwardCall& c, const RowTile& t, const BlockRange& r, float* s,
                                      const float* shift, float* sum) {
  if (c.terms->weights()) {
    SumWeights(t, r, c.terms->normalise == Normalise::abs_sum, s, sum);
  } else if (c.has_terms) {
    ExpBlock<true>(t, r, s, shift, sum);
  } else {
    ExpBlock<false>(t, r, s, shift, sum);
  }
  if (c.p->dropout_p > 0) DropRows(*c.p, t, r, s);
}

// total.max <- that of total and block together; alpha and beta are the factors of their sums and outputs.
HWY_NOINLINE inline void MergeMax(int lanes, bool natural, LaneState& total, const LaneState& block,
                                  float* alpha, float* beta) {
  const F d;
  const Vec unit = hn::Set(d, natural ? kLog2e : 1.0f);
  for (int i = 0; i < lanes; i += kN) {
    const Vec m0 = hn::Load(d, total.max + i), m1 = hn::Load(d, block.max + i), m = hn::Max(m0, m1);
    const Vec none = hn::Set(d, -kInfinity);
    const Vec shift = hn::IfThenElse(hn::Eq(m, none), hn::Zero(d), m);
    hn::Store(m, d, total.max + i);
    hn::StoreU(Exp2(d, hn::Mul(unit, hn::Sub(m0, shift))), d, alpha + i);
    hn::StoreU(Exp2(d, hn::Mul(unit, hn::Sub(m1, shift))), d, beta + i);
  }
}

// total.sum <- that of total and block together, by those factors.
HWY_INLINE void MergeSum(int lanes, LaneState& total, const LaneState& block, const float* alpha,
                         const float* beta) {
  const F d;
  for (int i = 0; i < lanes; i += kN) {
    const Vec a = hn::LoadU(d, alpha + i), b = hn::LoadU(d, beta + i);
    const Vec sum = hn::MulAdd(hn::Load(d, block.sum + i), b, hn::Mul(hn::Load(d, total.sum + i), a));
    hn::Store(sum, d, total.sum + i);
  }
}

// total <- total and block together.
HWY_INLINE void MergeState(int lanes, bool natural, LaneState& total, const LaneState& block, float* alpha,
                           float* beta) {
  MergeMax(lanes, natural, total, block, alpha, beta);
  MergeSum(lanes, total, block, alpha, beta);
}

// out = out · alpha + block · beta, row by row; `first`: out = block.
HWY_NOINLINE inline void MergeRows(const RowTile& t, int64_t columns, const float* block, bool first,
                                   const float* alpha, const float* beta, float* out) {
  const F d;
  for (int r = 0; r < t.rows; ++r) {
    const Vec a = hn::Set(d, alpha[r]), b = hn::Set(d, beta[r]);
    for (int64_t c = r * columns; c < (r + 1) * columns; c += kN) {
      const Vec x = hn::LoadU(d, block + c);
      hn::StoreU(first ? x : hn::MulAdd(x, b, hn::Mul(hn::LoadU(d, out + c), a)), d, out + c);
    }
  }
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
