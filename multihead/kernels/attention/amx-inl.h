// The products of attention on bf16 tiles (matmul/amx-inl.h), between the same softmax and masks as
// everywhere:
//   S[k][q] = scale · K · Qᵀ     keys are rows of A, queries columns of B
//   O[q][:] += P · V             P rows of A, packed for each tile; V columns of B, packed for each block
// bf16 operands are one part, P is rounded to bf16; f32 operands are split as float32_matmul_precision says.
// Steps of 32 lie at absolute positions of keys, and a step of excluded keys adds exact zeros: the promises
// of equal bits (threads, batch, padding, chunks, single tokens) hold among CPUs with tiles.
//
// K, Q and V that are not finite are packed as zeros. Scores of such keys and queries are computed again by
// plain loops; a value that is not finite is added for the queries that see it, so that nothing excluded
// leaks.

#if defined(MULTIHEAD_KERNELS_ATTENTION_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_AMX_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_AMX_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_AMX_INL_H_
#endif

#include <cmath>

#include "multihead/kernels/attention/forward-inl.h"
#include "multihead/kernels/attention/pairs-inl.h"
#include "multihead/kernels/attention/rows-inl.h"
#include "multihead/kernels/attention/scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

HWY_INLINE bool UsesTiles(const ForwardCall& c) { return c.tiles; }

// Words of the packed operands.
struct AmxLayout {
  int64_t parts, head_steps, key, value, query, weights;
  explicit AmxLayout(const ForwardCall& c)
      : parts(c.scheme.parts),
        head_steps(std::max<int64_t>(amx_steps(c.p->head_dim), 1)),
        key(attention_key_block / kAmxLines * head_steps * parts * kAmxWords),
        value(c.value_columns / kAmxLines * (attention_key_block / kAmxStep) * parts * kAmxWords),
        query(kTileGroups * head_steps * parts * kAmxWords),
        weights(kTileGroups * (attention_key_block / kAmxStep) * parts * kAmxWords) {}
};

// Keys and values of one block, packed from a multiple of 32 on.
struct AmxStage {
  const uint16_t* key = nullptr;
  const uint16_t* value = nullptr;
  int first = 0, end = 0;
  bool key_strange = false, value_strange = false;  // not all finite
};

// What a tile brings along.
struct AmxTile {
  const AmxStage* stage = nullptr;
  const uint16_t* query = nullptr;
  bool query_strange = false;
};

HWY_INLINE int64_t KeyIndex(const ForwardCall& c, const Strides3& s, int64_t b, int64_t kv, int k) {
  return b * s.batch + kv * s.head + (c.p->key_begin_row(b) + k) * s.token;
}

HWY_INLINE int64_t QueryIndex(const ForwardCall& c, const RowTile& t, int row) {
  const Strides3& s = c.query_strides;
  return t.b * s.batch + t.head[row] * s.head + (c.p->query_begin(t.b) + t.query[row]) * s.token;
}

HWY_INLINE AmxStage StageForTiles(const ForwardCall& c, int64_t b, int64_t kv, int k0, int k1, float* key,
                                  float* value) {
  AmxStage stage;
  stage.first = k0 / 32 * 32, stage.end = k1;
  auto* keys = reinterpret_cast<uint16_t*>(key);
  auto* values = reinterpret_cast<uint16_t*>(value);
  const int64_t count = k1 - stage.first;
  const Strides3 &ks = c.key_strides, &vs = c.value_strides;
  const AmxOperand k{
      At(c.key, KeyIndex(c, ks, b, kv, stage.first), c.bf16), c.bf16, ks.token, 1, count, c.p->head_dim};
  const AmxOperand v{
      At(c.value, KeyIndex(c, vs, b, kv, stage.first), c.bf16), c.bf16, 1, vs.token, c.p->value_dim, count};
  stage.key_strange = amx_pack(k, AmxSide::rows, c.scheme.parts, NotFinite::zero, keys);
  stage.value_strange = amx_pack(v, AmxSide::columns, c.scheme.parts, NotFinite::zero, values);
  stage.key = keys, stage.value = values;
  return stage;
}

// Packs the queries of a tile; true if not all are finite. `buffer` holds kTileRows rows of head_dim.
HWY_INLINE bool PackTileQueries(const ForwardCall& c, const RowTile& t, float* to, float* buffer) {
  const int64_t dim = c.p->head_dim;
  AmxOperand from{nullptr, c.bf16, c.query_strides.token, 1, t.rows, dim};
  from.data = At(c.query, QueryIndex(c, t, 0), c.bf16);
  if (t.head[0] != t.head[t.rows - 1]) {  // rows of several heads
    for (int r = 0; r < t.rows; ++r) {
      const int64_t at = QueryIndex(c, t, r);
      for (int64_t i = 0; i < dim; ++i) buffer[r * dim + i] = ElementOf(c.query, at + i, c.bf16);
    }
    from.data = buffer, from.bf16 = false, from.line_stride = dim;
  }
  return amx_pack(from, AmxSide::columns, c.scheme.parts, NotFinite::zero, reinterpret_cast<uint16_t*>(to));
}

// Scores of keys and queries with numbers that are not finite, by plain loops.
HWY_INLINE void StrangeScores(const ForwardCall& c, const RowTile& t, const BlockRange& r, float* s) {
  const int64_t dim = c.p->head_dim;
  const auto finite = [&](const void* base, int64_t at) {
    for (int64_t i = 0; i < dim; ++i) {
      if (!std::isfinite(ElementOf(base, at + i, c.bf16))) return false;
    }
    return true;
  };
  bool row_finite[kTileRows];
  for (int row = 0; row < t.rows; ++row) row_finite[row] = finite(c.query, QueryIndex(c, t, row));
  for (int k = r.k0; k < r.k1; ++k) {
    const int64_t key = KeyIndex(c, c.key_strides, t.b, t.kv, k);
    const bool key_finite = finite(c.key, key);
    for (int row = 0; row < t.rows; ++row) {
      if (key_finite && row_finite[row]) continue;
      const int64_t query = QueryIndex(c, t, row);
      float sum = 0;
      for (int64_t i = 0; i < dim; ++i) {
        sum += ElementOf(c.key, key + i, c.bf16) * ElementOf(c.query, query + i, c.bf16);
      }
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
struct AmxPairs {
  const uint16_t* keys = nullptr;
  const uint16_t* queries = nullptr;
  int first = 0, end = 0;
  int64_t dim = 0;
};

// s[k - r.k0][q] = ⟨key[k], query[q]⟩ wherever needed. Rows before s down to a multiple of 32 keys are
// overwritten.
HWY_INLINE void TilePairs(const ForwardCall& c, const RowTile& t, const BlockRange& r, const AmxPairs& of,
                          float* s) {
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

// As ScoreProduct. Rows before s down to a multiple of 32 keys are overwritten.
HWY_INLINE void TileScores(const ForwardCall& c, const RowTile& t, const BlockRange& r, const AmxTile& tile,
                           float* s, float* max) {
  const AmxStage& stage = *tile.stage;
  TilePairs(c, t, r, {stage.key, tile.query, stage.first, stage.end, c.p->head_dim}, s);
  if (stage.key_strange || tile.query_strange) StrangeScores(c, t, r, s);
  ScaleRows(t, r, ScoreScale(c), s, max);
}

// sums[q][:] += weight · value where the value is not finite and q sees its key.
HWY_INLINE void AddStrangeValues(const ForwardCall& c, const RowTile& t, const BlockRange& r, const float* s,
                                 const float* shadow, float* sums) {
  for (int k = r.k0; k < r.k1; ++k) {
    const int64_t at = KeyIndex(c, c.value_strides, t.b, t.kv, k);
    for (int64_t column = 0; column < c.p->value_dim; ++column) {
      const float v = ElementOf(c.value, at + column, c.bf16);
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

HWY_INLINE void TileSums(const ForwardCall& c, const RowTile& t, const BlockRange& r, const AmxSum& of) {
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

// sums[q][:] = Σ_k P[k][q] V[k][:] over the keys that q sees; `shadow` is read only if some value is not
// finite.
HWY_INLINE void TileValues(const ForwardCall& c, const RowTile& t, const BlockRange& r, const AmxTile& tile,
                           const float* s, const float* shadow, uint16_t* weights, float* sums) {
  const AmxStage& stage = *tile.stage;
  TileSums(c, t, r, {s, stage.value, stage.first, stage.end, c.value_columns, false, weights, sums});
  if (stage.value_strange) AddStrangeValues(c, t, r, s, shadow, sums);
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
