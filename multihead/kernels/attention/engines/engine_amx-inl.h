// f32 attention on AMX tiles of bf16 (amx/amx-inl.h), or on plain loops that follow the instructions:
//   S[k][q] = scale · K · Qᵀ     keys are rows of A, queries columns of B
//   O[q][:] += P · V             P rows of A, packed for each tile; V columns of B, packed for each block
// Operands are split in two or three parts, as float32_matmul_precision says; those of one part take another way
// (passes/forward_tiles-inl.h, engine_tile_gradients-inl.h).
// Steps of 32 lie at absolute positions of keys, and a step of excluded keys adds exact zeros: the promises
// of equal bits (threads, batch, padding, chunks, single tokens) hold among CPUs with tiles.
//
// K, Q and V that are not finite are packed as zeros. Scores of such keys and queries are computed again by
// plain loops; a value that is not finite is added for the queries that see it, so that nothing excluded
// leaks.

#if defined(MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_AMX_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_AMX_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_AMX_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "multihead/kernels/attention/block/backward_call-inl.h"
#include "multihead/kernels/attention/block/block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Scores of keys and queries with numbers that are not finite, by plain loops.
HWY_INLINE void NonFiniteScores(const ForwardCall& c, const RowTile& t, const BlockRange& r, float* s) {
  const int64_t dim = c.p->head_dim;
  const auto finite = [&](const float* row) {
    return std::all_of(row, row + dim, [](float x) { return std::isfinite(x); });
  };
  bool row_finite[kTileRows];
  for (int row = 0; row < t.rows; ++row) row_finite[row] = finite(as_floats(TileRow(c, c.query, t, row)));
  for (int k = r.k0; k < r.k1; ++k) {
    const float* key = as_floats(KeyRow(c, c.key, t.b, t.kv, k));
    const bool key_finite = finite(key);
    for (int row = 0; row < t.rows; ++row) {
      if (key_finite && row_finite[row]) continue;
      const float* query = as_floats(TileRow(c, c.query, t, row));
      float sum = 0;
      for (int64_t i = 0; i < dim; ++i) sum += key[i] * query[i];
      s[(k - r.k0) * kTileRows + row] = sum;
    }
  }
}

// Scales the rows that each group needs; the maximum of rows that nothing masks joins `max` if wanted.
HWY_INLINE void ScaleRows(const RowTile& t, const BlockRange& r, float scale, float* s, float* max) {
  const F d;
  const Vec factor = hn::Set(d, scale);
  for (int lane = 0; lane < t.groups * kGroupRows; lane += kN) {
    const int g = lane / kGroupRows;
    Vec top = hn::Set(d, -kInfinity);
    for (int k = r.need_begin[g]; k < r.need_end[g]; ++k) {
      float* at = s + (k - r.k0) * kTileRows + lane;
      const Vec x = hn::Mul(hn::LoadU(d, at), factor);
      hn::StoreU(x, d, at);
      if (k >= r.full_begin && k < r.full_end) top = hn::Max(top, x);
    }
    if (max) hn::StoreU(hn::Max(hn::LoadU(d, max + lane), top), d, max + lane);
  }
}

// Rows of keys from `first` (a multiple of 32) to `end`, columns of queries, `dim` numbers each.
struct AmxScores {
  const uint16_t* keys = nullptr;
  const uint16_t* queries = nullptr;
  int first = 0, end = 0;
  int64_t dim = 0;
};

// s[k - r.k0][q] = ⟨key[k], query[q]⟩ wherever needed. Rows before s down to a multiple of 32 keys are
// overwritten.
HWY_INLINE void AmxScoreProduct(const ForwardCall& c, const RowTile& t, const BlockRange& r,
                                const AmxScores& of, float* s) {
  AmxProduct p;
  p.a_strip = p.b_strip = std::max<int64_t>(amx_steps(of.dim), 1) * c.scheme.parts * kAmxWords;
  p.steps = amx_steps(of.dim), p.scheme = c.scheme, p.c_stride = kTileRows;
  for (int k = r.k0 / 32 * 32; k < r.k1; k += 32) {
    int from, to;
    NeededGroups(t, r, std::max(k, r.k0), std::min(k + 32, r.k1), &from, &to);
    if (from >= to) continue;
    p.a = of.keys + (k - of.first) / kAmxLines * p.a_strip;
    p.a_strips = std::min<int64_t>(2, amx_strips(of.end - k));
    p.b = of.queries + from * p.b_strip, p.b_strips = to - from;
    p.c = s + (k - r.k0) * kTileRows + from * kGroupRows;
    amx_multiply(p, c.unit);
  }
}

// sums[q][:] += weight · value where the value is not finite and q sees its key.
HWY_INLINE void AddNonFiniteValues(const ForwardCall& c, const RowTile& t, const BlockRange& r,
                                   const float* s, const float* shadow, float* sums) {
  for (int k = r.k0; k < r.k1; ++k) {
    const float* value = as_floats(KeyRow(c, c.value, t.b, t.kv, k));
    for (int64_t column = 0; column < c.p->value_dim; ++column) {
      const float v = value[column];
      if (std::isfinite(v)) continue;
      for (int row = 0; row < t.rows; ++row) {
        const int64_t place = int64_t{k - r.k0} * kTileRows + row;
        const bool seen = k >= t.lo[row] && k < t.hi[row] && shadow[place] != -kInfinity;
        if (seen) sums[row * c.value_columns + column] += s[place] * v;
      }
    }
  }
}

// sums[q][:] = Σ_k weights[k][q] rows[k][:] [+ sums] over the keys that q sees.
struct AmxSum {
  const float* weights = nullptr;  // from key r.k0 on
  const uint16_t* rows = nullptr;  // packed columns of keys from `first` (a multiple of 32) to `end`
  int first = 0, end = 0;
  int64_t columns = 0;
  bool add = false;
  uint16_t* packed = nullptr;  // memory for the weights
  float* sums = nullptr;
};

HWY_INLINE void AmxBlockSums(const ForwardCall& c, const RowTile& t, const BlockRange& r, const AmxSum& of) {
  const int first = r.k0 / 32 * 32;
  const int64_t step = c.scheme.parts * kAmxWords;
  const AmxOperand from{of.weights, false, 1, kTileRows, t.groups * kGroupRows, r.k1 - r.k0, r.k0 - first};
  amx_pack(from, AmxSide::rows, c.scheme.parts, NotFinite::keep, of.packed);
  AmxProduct p{.a_strip = amx_steps(r.k1 - first) * step, .b_strip = amx_steps(of.end - of.first) * step};
  p.b_strips = of.columns / kAmxLines, p.scheme = c.scheme, p.c_stride = of.columns, p.add = of.add;
  for (int g = 0; g < t.groups; g += 2) {
    int a = r.k1, e = r.k0;
    for (int i = g; i < std::min(g + 2, t.groups); ++i) {
      if (r.need_begin[i] < r.need_end[i]) a = std::min(a, r.need_begin[i]), e = std::max(e, r.need_end[i]);
    }
    const int64_t begin = (a - first) / 32;
    p.steps = std::max<int64_t>(0, amx_steps(e - first) - begin);
    p.a = of.packed + g * p.a_strip + begin * step;
    p.b = of.rows + ((first - of.first) / 32 + begin) * step;
    p.a_strips = std::min(2, t.groups - g);
    p.c = of.sums + g * kGroupRows * of.columns;
    amx_multiply(p, c.unit);
  }
}

class AmxEngine : public EngineDefaults {
 public:
  static constexpr int kKeyStep = kAmxStep;

  // Packed keys [first, end) and their values; `first` is a multiple of 32.
  struct Block {
    const uint16_t *key = nullptr, *value = nullptr;
    int first = 0, end = 0;
    bool key_non_finite = false, value_non_finite = false;
  };

  // Memory in floats, of two words each: packed keys, values and probabilities, and sums; packed queries.
  static int64_t StageFloats(const ForwardCall& c) {
    const Layout packed(c);
    return (packed.key + packed.value + packed.weights) / 2 + kTileRows * c.value_columns;
  }
  static int64_t QueryFloats(const ForwardCall& c) { return Layout(c).query / 2; }

  AmxEngine(const ForwardCall& c, float* memory) : c_(c), registers_(c.unit == TileUnit::amx) {
    const Layout packed(c);
    weights_ = reinterpret_cast<uint16_t*>(memory);
    sums_ = memory + packed.weights / 2;
    key_ = reinterpret_cast<uint16_t*>(sums_ + kTileRows * c.value_columns);
    value_ = key_ + packed.key;
  }

  void PackQueries(QueryTile& w, float* buffer) const {
    const RowTile& t = w.rows;
    const int64_t dim = c_.p->head_dim;
    AmxOperand from{TileRow(c_, c_.query, t, 0), false, c_.query.strides.token, 1, t.rows, dim};
    if (t.head[0] != t.head[t.rows - 1]) {  // rows of several heads
      CopyTileRows(c_, t, c_.query, dim, dim, buffer);
      from.data = buffer, from.line_stride = dim;
    }
    auto* to = reinterpret_cast<uint16_t*>(w.query);
    w.non_finite = amx_pack(from, AmxSide::columns, c_.scheme.parts, NotFinite::zero, to);
  }

  Block Stage(const AttentionTask& task, int k0, int k1) const {
    Block block{key_, value_, k0 / kKeyStep * kKeyStep, k1};
    const int64_t count = k1 - block.first;
    const auto at = [&](const Operand& x) { return KeyRow(c_, x, task.b, task.kv, block.first); };
    const AmxOperand k{at(c_.key), false, c_.key.strides.token, 1, count, c_.p->head_dim};
    const AmxOperand v{at(c_.value), false, 1, c_.value.strides.token, c_.p->value_dim, count};
    block.key_non_finite = amx_pack(k, AmxSide::rows, c_.scheme.parts, NotFinite::zero, key_);
    block.value_non_finite = amx_pack(v, AmxSide::columns, c_.scheme.parts, NotFinite::zero, value_);
    return block;
  }

  bool HasNonFinite(const QueryTile& w, const Block& block) const {
    return block.key_non_finite || block.value_non_finite || w.non_finite;
  }

  // Rows before s down to a multiple of 32 keys are overwritten.
  HWY_INLINE void Scores(const QueryTile& w, const BlockRange& r, const Block& block, const BlockPlace&, bool,
                         float* s, float* max) const {
    const auto* query = reinterpret_cast<const uint16_t*>(w.query);
    AmxScoreProduct(c_, w.rows, r, {block.key, query, block.first, block.end, c_.p->head_dim}, s);
    if (block.key_non_finite || w.non_finite) NonFiniteScores(c_, w.rows, r, s);
    ScaleRows(w.rows, r, ScoreScale(c_), s, max);
  }

  // A block's scores are made at once.
  HWY_INLINE void StartChunks(const QueryTile& w, const BlockRange& r, const Block& block,
                              const BlockBuffers& b) const {
    Scores(w, r, block, {}, false, b.s, nullptr);
  }
  HWY_INLINE void ChunkScores(const QueryTile&, const BlockRange&, const Block&, const BlockPlace&,
                              float*) const {}

  HWY_INLINE void Probabilities(const RowTile& t, const BlockRange& r, float* s, const float* shift,
                                float* sum) const {
    Exponentials(c_, t, r, s, shift, sum);
  }

  // The shadow is read only if some value is not finite.
  HWY_INLINE void Values(const QueryTile& w, const BlockRange& r, const Block& block, const BlockPlace&, bool,
                         const BlockBuffers& b, const float* alpha, const float* beta) const {
    AmxBlockSums(c_, w.rows, r,
                 {b.s, block.value, block.first, block.end, c_.value_columns, false, weights_, sums_});
    if (block.value_non_finite) AddNonFiniteValues(c_, w.rows, r, b.s, b.shadow, sums_);
    MergeRows(w.rows, c_.value_columns, sums_, w.first, alpha, beta, w.out);
  }

  class Gradients;

 private:
  // Words of the packed operands.
  struct Layout {
    int64_t key, value, query, weights;
    explicit Layout(const ForwardCall& c) {
      const int64_t step = c.scheme.parts * kAmxWords, key_steps = attention_key_block / kAmxStep;
      const int64_t head_steps = std::max<int64_t>(amx_steps(c.p->head_dim), 1);
      query = kTileGroups * head_steps * step;
      key = attention_key_block / kAmxLines * head_steps * step;
      value = c.value_columns / kAmxLines * key_steps * step;
      weights = kTileGroups * key_steps * step;
    }
  };

  const ForwardCall& c_;
  AmxRegisters registers_;
  uint16_t *weights_, *key_, *value_;
  float* sums_;
};

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
