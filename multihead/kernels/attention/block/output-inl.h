// Writes a finished tile: divided by its sums, with its log-sum-exps; rows without any key by policy.

#if defined(MULTIHEAD_KERNELS_ATTENTION_BLOCK_OUTPUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_BLOCK_OUTPUT_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_BLOCK_OUTPUT_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_BLOCK_OUTPUT_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "hwy/cache_control.h"
#include "multihead/kernels/attention/block/block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// out = Σ weights · value for a row without any allowed key, by policy.
HWY_NOINLINE inline void EmptyRowOutput(const ForwardCall& c, const RowTile& t, int row, float* out) {
  const AttentionProblem& p = *c.p;
  std::fill_n(out, c.value_columns, p.empty_row == EmptyRow::nan ? std::nanf("") : 0.0f);
  if (p.empty_row != EmptyRow::uniform) return;
  const int64_t n = p.key_count(t.b);
  for (int64_t k = 0; k < n; ++k) {
    float weight = 1.0f / static_cast<float>(n);
    if (p.dropout_p > 0) {
      const bool kept = attention_dropout_keep(p.dropout_key, t.b, t.head[row], t.query[row], k, p.dropout_p);
      weight = kept ? weight / static_cast<float>(1 - p.dropout_p) : 0.0f;
    }
    const void* value = KeyRow(c, c.value, t.b, t.kv, k);
    for (int64_t v = 0; v < p.value_dim; ++v) out[v] += weight * NumberOf(c, value, p.value_dim, v);
  }
}

// Outputs that no cache keeps until they are read are written past the caches, without being fetched first:
// 1.06 where half of the rows are padding (8x12x512x64, Sapphire Rapids, November 2026); .96 where L2 or L3
// holds all of them (32x12x128x32).
HWY_INLINE bool StreamsOutput(const ForwardCall& c) {
  constexpr int64_t kLeastBytes = int64_t{8} << 20;
  const AttentionProblem& p = *c.p;
  return !c.bf16 && p.batch * p.heads * p.queries * p.value_dim * 4 >= kLeastBytes;
}

// Claims the cache lines of a tile's output while the products run.
inline void PrefetchOutput(const ForwardCall& c, const RowTile& t) {
  if (!c.out || StreamsOutput(c)) return;
  const int64_t line = c.bf16 ? 32 : 16;
  for (int r = 0; r < t.rows; ++r) {
    const void* row = TileRow(c, c.out, t, r);
    for (int64_t v = 0; v < c.p->value_dim; v += line) __builtin_prefetch(At(row, v, c.bf16), 1, 2);
  }
}

HWY_NOINLINE inline void WriteLogSumExp(const ForwardCall& c, const RowTile& t, const LaneState& state) {
  const F d;
  const Vec unit = hn::Set(d, c.has_terms ? 1.0f : 0.693147180559945f);
  alignas(64) float lse[kTileRows];
  const Normalise rule = c.terms->normalise;
  for (int i = 0; i < t.groups * kGroupRows; i += kN) {
    const Vec sum = hn::Load(d, state.sum + i);
    if (rule != Normalise::softmax) {
      const auto empty = hn::Eq(hn::Load(d, state.max + i), hn::Set(d, -kInfinity));
      hn::Store(hn::IfThenZeroElse(empty, rule == Normalise::none ? hn::Set(d, 1.0f) : sum), d, lse + i);
      continue;
    }
    const Vec log = hn::MulAdd(hn::Load(d, state.max + i), unit, hn::Log(d, sum));
    const Vec known = hn::IfThenElse(hn::IsNaN(sum), sum, log);  // Log() gives NaN a number
    hn::Store(hn::IfThenElse(hn::Eq(sum, hn::Zero(d)), hn::Set(d, -kInfinity), known), d, lse + i);
  }
  float* to = as_floats(c.lse.data);
  if (t.head[0] == t.head[t.rows - 1]) {
    std::copy_n(lse, t.rows, to + LaneIndex(c, c.lse.strides, t, 0));
    return;
  }
  for (int r = 0; r < t.rows; ++r) to[LaneIndex(c, c.lse.strides, t, r)] = lse[r];
}

// Writes log-sum-exps and the outputs of rows without any key, and says what the rows of `out` are multiplied by.
inline void RowFactors(const ForwardCall& c, const RowTile& t, const LaneState& state, float* out,
                       float* factors) {
  const F d;
  const AttentionProblem& p = *c.p;
  const float keep_scale = p.dropout_p < 1 ? static_cast<float>(1 / (1 - p.dropout_p)) : 0.0f;
  const bool divides = c.terms->normalise != Normalise::none;
  for (int i = 0; i < t.groups * kGroupRows; i += kN) {
    const Vec by = divides ? hn::Load(d, state.sum + i) : hn::Set(d, 1.0f);
    hn::Store(hn::Div(hn::Set(d, keep_scale), by), d, factors + i);
  }
  if (c.lse) WriteLogSumExp(c, t, state);
  for (int r = 0; r < t.rows; ++r) {
    if (divides ? state.sum[r] != 0 : state.max[r] != -kInfinity) continue;
    EmptyRowOutput(c, t, r, out + r * c.value_columns);
    factors[r] = 1.0f;
  }
}

// Divides by the sums and writes the tile's rows and log-sum-exps. False if anything is not finite.
inline bool WriteTile(const ForwardCall& c, const RowTile& t, const LaneState& state, float* out) {
  const F d;
  alignas(64) float factors[kTileRows];
  RowFactors(c, t, state, out, factors);
  Vec check = hn::Zero(d);
  const bool streams = StreamsOutput(c);
  const Strides3& strides = c.out.strides;
  const int64_t dim = c.p->value_dim, columns = c.value_columns;
  const int64_t start = t.b * strides.batch + c.p->query_begin(t.b) * strides.token;
  for (int r = 0; r < t.rows; ++r) {
    const float* row = out + r * columns;
    const Vec factor = hn::Set(d, factors[r]);
    const int64_t at = start + t.head[r] * strides.head + t.query[r] * strides.token;
    void* to = At(c.out.data, at, c.bf16);
    check = streams ? StreamFloatRow(row, factor, dim, static_cast<float*>(to), check)
                    : StoreRow(row, factor, dim, c.bf16, to, check);
  }
  if (streams) hwy::FlushStream();
  return hn::AllTrue(d, hn::Eq(check, hn::Zero(d)));
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
