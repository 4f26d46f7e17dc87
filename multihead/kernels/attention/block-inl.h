// One tile of queries against one key block: operands (packed queries, staged keys and values),
// probabilities. Forward and capture of the state; the backward pass uses the operand part.

#if defined(MULTIHEAD_KERNELS_ATTENTION_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_BLOCK_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_BLOCK_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_BLOCK_INL_H_
#endif

#include "multihead/kernels/attention/amx-inl.h"
#include "multihead/kernels/attention/forward-inl.h"
#include "multihead/kernels/attention/pairs_softmax-inl.h"
#include "multihead/kernels/attention/relative-inl.h"
#include "multihead/kernels/attention/rows-inl.h"
#include "multihead/kernels/attention/terms-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

inline constexpr int kBlock = static_cast<int>(attention_key_block);

// Key or value rows as the products want them: f32 with some stride.
struct Rows {
  const float* data = nullptr;
  int64_t stride = 0;
};

HWY_INLINE Rows Shifted(const Rows& rows, int64_t by) { return {rows.data + by * rows.stride, rows.stride}; }

// Rows that a product asks for meanwhile, `columns` floats of each; there may be none.
struct RowsAhead {
  Rows rows;
  int64_t columns = 0;
};
HWY_INLINE RowsAhead Shifted(const RowsAhead& ahead, int64_t by) {
  return ahead.rows.data ? RowsAhead{Shifted(ahead.rows, by), ahead.columns} : ahead;
}

// Rows [k0, k1) of a key head, in place or copied to `copy` with `columns` floats a row.
HWY_INLINE Rows StageRows(const ForwardCall& call, const void* base, const Strides3& s, int64_t b, int64_t kv,
                          int k0, int k1, int64_t dim, bool copy, int64_t columns, float* buffer) {
  const int64_t token = call.p->key_begin_row(b) + k0;
  const void* from = At(base, b * s.batch + kv * s.head + token * s.token, call.bf16);
  if (!copy) return {static_cast<const float*>(from), s.token};
  const bool dense = s.token == dim && columns == dim;  // one long row
  const int64_t rows = dense ? 1 : k1 - k0, length = dense ? (k1 - k0) * dim : dim;
  for (int64_t k = 0; k < rows; ++k) {
    float* to = buffer + k * columns;
    LoadRow(At(from, k * s.token, call.bf16), length, call.bf16, to);
    for (int64_t c = dim; c < columns; ++c) to[c] = 0.0f;
  }
  return {buffer, columns};
}

// qt[c][lane] = scale · query: one head run at a time, so that padding lanes are zero.
HWY_INLINE void PackQuery(const ForwardCall& call, const RowTile& t, float scale, float* qt) {
  const int64_t dim = call.p->head_dim;
  const Strides3& s = call.query_strides;
  each_head_run(t, [&](int first, int count) {
    const int64_t token = call.p->query_begin(t.b) + t.query[first];
    const void* from = At(call.query, t.b * s.batch + t.head[first] * s.head + token * s.token, call.bf16);
    if (call.bf16) {
      TransposeTo(static_cast<const uint16_t*>(from), s.token, count, dim, qt + first, kTileRows, scale);
    } else {
      TransposeTo(static_cast<const float*>(from), s.token, count, dim, qt + first, kTileRows, scale);
    }
  });
  for (int64_t c = 0; c < dim && t.rows < t.groups * kGroupRows; ++c) {
    std::fill(qt + c * kTileRows + t.rows, qt + c * kTileRows + t.groups * kGroupRows, 0.0f);
  }
}

// Scratch of one block.
struct BlockBuffers {
  float* s = nullptr;           // [kBlock][kTileRows] scores, then probabilities
  float* bias = nullptr;        // likewise: transposed bias
  float* shadow = nullptr;      // likewise: scores kept for safe mode
  uint8_t* keep = nullptr;      // [kBlock][kTileRows]
  uint16_t* weights = nullptr;  // on tiles: packed probabilities
  float* sums = nullptr;        // on tiles: [kTileRows][value_columns]
  AmxTile tile;                 // on tiles: the other operands
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

// Key rows whose scores are made and finished while they are in L1: a multiple of the tiles' 6 rows and
// of 16.
inline constexpr int kChunk = 48;

// s <- final scores of keys [r.k0, r.k1) with terms and masks; their maximum joins `max`.
HWY_INLINE void ScoreChunk(const ForwardCall& call, const RowTile& t, const BlockRange& r,
                           const LaneTerms& lanes, const Rows& key, const RowsAhead& ahead, const float* qt,
                           const float* bias, const BlockBuffers& b, const uint8_t* keep, float* max) {
  const ScoreTerms<float>& terms = *call.terms;
  if (UsesTiles(call)) {
    // made for the whole block
  } else if (UsesDots(call)) {
    DotScores(call, t, r, key.data, key.stride, qt, b.s, nullptr);
  } else {
    AddScoreProduct(static_cast<bool>(terms.relative_key), t, r, key.data, key.stride, qt, call.p->head_dim,
                    b.s, ahead.rows.data, ahead.rows.stride, ahead.columns);
  }
  if (terms.score_function) ApplyScoreFunction(terms.score_function, t, r, b.s, nullptr);
  TermRows({&terms, &t, &lanes, bias, keep, b.s, nullptr}, r, max);
}

// A bias or ALiBi alone needs no pass of its own over the scores.
HWY_INLINE ProductTerm TermOfProduct(const ForwardCall& call, const LaneTerms& lanes, bool safe) {
  const ScoreTerms<float>& terms = *call.terms;
  const bool alone = call.has_terms && !UsesDots(call) && !UsesTiles(call) && !(terms.softcap > 0) &&
                     !terms.relative_bias && !terms.score_function && !terms.relative_key &&
                     (terms.bias == nullptr) != (terms.alibi_slopes == nullptr);
  if (!alone) return {};
  if (terms.alibi_slopes) return {End::alibi_max, lanes.slope, lanes.place};
  return {safe ? End::store_max : End::bias_max, nullptr, nullptr};
}

// s <- probabilities of the block relative to its own maximum; state <- that maximum and the sum. False if no
// query sees any of it.
HWY_INLINE bool BlockProbabilities(const ForwardCall& call, const RowTile& t, const BlockRange& r,
                                   const LaneTerms& lanes, const Rows& key, const RowsAhead& ahead,
                                   const float* qt, const BlockBuffers& buffers, bool safe,
                                   LaneState& state) {
  const AttentionProblem& p = *call.p;
  BlockClass mask = BlockClass::full;
  if (call.has_keep) mask = mask_class(p, t, r.k0, r.k1);
  if (mask == BlockClass::empty) return false;
  const uint8_t* keep = mask == BlockClass::partial ? buffers.keep : nullptr;
  if (keep != nullptr && !fill_keep(p, t, r.k0, r.k1, buffers.keep)) return false;
  ResetState(state);
  const ProductTerm term = TermOfProduct(call, lanes, safe);
  const bool finish_chunks = mask == BlockClass::partial || (call.has_terms && term.end == End::store_max);
  if (UsesTiles(call)) {
    TileScores(call, t, r, buffers.tile, buffers.s, finish_chunks ? nullptr : state.max);
  }
  if (finish_chunks) {
    const float* bias = call.terms->bias ? buffers.bias : nullptr;
    if (bias) GatherBias(call.terms->bias, call.terms->bias_strides, t, r, buffers.bias);
    if (bias && safe) {  // -inf excludes even where the score is NaN
      const int count = (r.k1 - r.k0) * kTileRows;
      if (keep == nullptr) std::fill_n(buffers.keep, count, uint8_t{1}), keep = buffers.keep;
      for (int i = 0; i < count; ++i) buffers.keep[i] &= bias[i] != -kInfinity;
    }
    if (call.terms->relative_key) {
      RelativeScores(call.terms->relative_key, p.head_dim, t, r, qt, buffers.shadow, buffers.s);
    }
    for (int k = r.k0; k < r.k1; k += kChunk) {
      const int by = k - r.k0;
      BlockBuffers chunk = buffers;
      chunk.s += by * kTileRows;
      ScoreChunk(call, t, MakeBlockRange(t, k, std::min(k + kChunk, r.k1)), lanes, Shifted(key, by),
                 Shifted(ahead, by), qt, bias ? bias + by * kTileRows : nullptr, chunk,
                 keep ? keep + by * kTileRows : nullptr, state.max);
    }
  } else if (UsesTiles(call)) {
    MaskRows(t, r, buffers.s, state.max);
  } else if (UsesDots(call)) {
    DotScores(call, t, r, key.data, key.stride, qt, buffers.s, state.max);
    MaskRows(t, r, buffers.s, state.max);
  } else {
    if (term.end == End::bias_max) {
      GatherBias(call.terms->bias, call.terms->bias_strides, t, r, buffers.s);
    }
    ScoreProduct(t, r, key.data, key.stride, qt, p.head_dim, buffers.s, state.max, ahead.rows.data,
                 ahead.rows.stride, ahead.columns, term);
    MaskRows(t, r, buffers.s, state.max);
  }
  if (safe) std::copy_n(buffers.s, (r.k1 - r.k0) * kTileRows, buffers.shadow);
  alignas(64) float shift[kTileRows];
  for (int i = 0; i < kTileRows; ++i) shift[i] = state.max[i] == -kInfinity ? 0.0f : state.max[i];
  if (UsesDots(call) && p.dropout_p <= 0) {
    if (call.has_terms) {
      ExpPairBlock<true>(t, r, buffers.s, shift, state.sum);
    } else {
      ExpPairBlock<false>(t, r, buffers.s, shift, state.sum);
    }
    return true;
  }
  if (call.has_terms) {
    ExpBlock<true>(t, r, buffers.s, shift, state.sum);
  } else {
    ExpBlock<false>(t, r, buffers.s, shift, state.sum);
  }
  if (p.dropout_p > 0) DropRows(p, t, r, buffers.s);
  if (UsesDots(call)) PairProbabilities(t, r, r.k0, r.k1, buffers.s);
  return true;
}

// total <- total and block together; alpha and beta are the factors of their outputs.
HWY_INLINE void MergeState(int lanes, bool natural, LaneState& total, const LaneState& block, float* alpha,
                           float* beta) {
  const F d;
  const Vec unit = hn::Set(d, natural ? kLog2e : 1.0f);
  for (int i = 0; i < lanes; i += kN) {
    const Vec m0 = hn::Load(d, total.max + i), m1 = hn::Load(d, block.max + i), m = hn::Max(m0, m1);
    const Vec none = hn::Set(d, -kInfinity);
    const Vec shift = hn::IfThenElse(hn::Eq(m, none), hn::Zero(d), m);
    const Vec a = Exp2(d, hn::Mul(unit, hn::Sub(m0, shift))), b = Exp2(d, hn::Mul(unit, hn::Sub(m1, shift)));
    const Vec sum = hn::MulAdd(hn::Load(d, block.sum + i), b, hn::Mul(hn::Load(d, total.sum + i), a));
    hn::Store(m, d, total.max + i);
    hn::Store(sum, d, total.sum + i);
    hn::StoreU(a, d, alpha + i);
    hn::StoreU(b, d, beta + i);
  }
}

// out[q] = out[q] · alpha[q] + beta[q] · Σ_k p[k][q] value[k], the sum from zero over the keys that q sees.
// `first`: out[q] is not read. Meanwhile the rows `ahead`, one for each query, are fetched.
HWY_INLINE void BlockValues(const RowTile& t, const BlockRange& r, const float* s, const Rows& value,
                            int64_t columns, bool first, const float* alpha, const float* beta, float* out,
                            const Rows& ahead, int64_t ahead_columns) {
  TileArgs args{};
  args.ahead_stride = ahead.stride, args.ahead_columns = ahead_columns;
  args.a_row = 1, args.a_step = kTileRows, args.b_stride = value.stride, args.c_stride = columns;
  const int step = r.full() ? t.rows : RowStep(columns);
  for (int row = 0; row < t.rows; row += step) {
    const int count = std::min(step, t.rows - row);
    const auto [a, e] = KeysOfRows(t, r, row, count);
    args.a = s + (a - r.k0) * kTileRows + row;
    args.b = value.data + (a - r.k0) * value.stride;
    args.k = e - a, args.first_chain = KeyChainRest(a), args.chain = kKeyChain;
    args.c = out + row * columns;
    args.alpha = alpha + row, args.beta = beta + row;
    args.ahead = ahead.data ? ahead.data + row * ahead.stride : nullptr;
    if (first) {
      Product<End::store, false>(args, count, columns);
    } else {
      Product<End::merge, false>(args, count, columns);
    }
  }
}

// As BlockValues, but keys whose score is -inf are not touched: NaN and Inf in excluded values stay there.
HWY_INLINE void BlockValuesSafe(const RowTile& t, const BlockRange& r, const float* s, const float* shadow,
                                const Rows& value, int64_t columns, bool first, const float* alpha,
                                const float* beta, float* out) {
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

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
