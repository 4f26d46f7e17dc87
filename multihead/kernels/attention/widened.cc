// bf16 attention by widening whole tensors to f32: what runs on a CPU without vectors. The SIMD kernels widen
// block by block instead. Also the backward pass of one key head by the specification.
#include <algorithm>
#include <vector>

#include "multihead/kernels/attention/driver-inl.h"
#include "multihead/kernels/attention/reference-inl.h"

namespace multihead::kernels {
namespace {

// Contiguous f32 copies of [B, H, T, D] operands in bf16 and the way back.
struct Widened {
  std::vector<float> data;
  Strides3 strides;
};

int64_t rows_of(const AttentionProblem& p, bool keys) {
  int64_t rows = keys ? p.keys : p.queries;
  for (int64_t b = 0; p.sequences && b < p.batch; ++b) {
    rows = std::max(rows, keys ? p.key_begin_row(b) + p.key_count(b) : p.query_begin(b) + p.query_count(b));
  }
  return rows;
}

Widened widened(const AttentionProblem& p, bool keys, int64_t heads, int64_t dim) {
  const int64_t rows = rows_of(p, keys), batch = p.sequences ? 1 : p.batch;
  Widened w;
  w.data.resize(static_cast<size_t>(batch * heads * rows * dim));
  w.strides = {p.sequences ? 0 : heads * rows * dim, rows * dim, dim};
  return w;
}

template <class F>
void each_row(const AttentionProblem& p, bool keys, int64_t heads, F&& f) {
  const int64_t rows = rows_of(p, keys);
  for (int64_t b = 0; b < (p.sequences ? std::min<int64_t>(p.batch, 1) : p.batch); ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t r = 0; r < rows; ++r) f(b, h, r);
    }
  }
}

Widened widen(const AttentionProblem& p, bool keys, int64_t heads, int64_t dim, const BFloat16* x,
              const Strides3& s) {
  Widened w = widened(p, keys, heads, dim);
  each_row(p, keys, heads, [&](int64_t b, int64_t h, int64_t r) {
    const BFloat16* from = row_of(x, s, b, h, r);
    float* to = row_of(w.data.data(), w.strides, b, h, r);
    for (int64_t c = 0; c < dim; ++c) to[c] = static_cast<float>(from[c]);
  });
  return w;
}

void narrow(const AttentionProblem& p, bool keys, int64_t heads, int64_t dim, const Widened& w, BFloat16* x,
            const Strides3& s) {
  each_row(p, keys, heads, [&](int64_t b, int64_t h, int64_t r) {
    const float* from = row_of(w.data.data(), w.strides, b, h, r);
    BFloat16* to = row_of(x, s, b, h, r);
    for (int64_t c = 0; c < dim; ++c) to[c] = BFloat16(from[c]);
  });
}

struct WidenedInput {
  Widened q, k, v;
  AttentionInput<float> input() const {
    return {q.data.data(), k.data.data(), v.data.data(), q.strides, k.strides, v.strides};
  }
};

WidenedInput widen(const AttentionProblem& p, const AttentionInput<BFloat16>& in) {
  return {widen(p, false, p.heads, p.head_dim, in.query, in.query_strides),
          widen(p, true, p.kv_heads, p.head_dim, in.key, in.key_strides),
          widen(p, true, p.kv_heads, p.value_dim, in.value, in.value_strides)};
}

}  // namespace

void widened_forward(const AttentionProblem& p, const ScoreTerms<float>& t,
                     const AttentionInput<BFloat16>& in, const AttentionOutput<BFloat16, float>& out) {
  const WidenedInput w = widen(p, in);
  Widened o = widened(p, false, p.heads, p.value_dim);
  attention_forward(p, t, w.input(), {o.data.data(), o.strides, out.lse, out.lse_strides});
  narrow(p, false, p.heads, p.value_dim, o, out.out, out.out_strides);
}

void widened_backward(const AttentionProblem& p, const ScoreTerms<float>& t,
                      const AttentionInput<BFloat16>& in, const AttentionGradient<BFloat16, float>& g) {
  const WidenedInput w = widen(p, in);
  const Widened o = widen(p, false, p.heads, p.value_dim, g.out, g.out_strides);
  const Widened d_o = widen(p, false, p.heads, p.value_dim, g.d_out, g.d_out_strides);
  Widened dq = widened(p, false, p.heads, p.head_dim), dk = widened(p, true, p.kv_heads, p.head_dim);
  Widened dv = widened(p, true, p.kv_heads, p.value_dim);
  AttentionGradient<float> f;
  f.out = o.data.data(), f.out_strides = o.strides;
  f.lse = g.lse, f.d_lse = g.d_lse, f.lse_strides = g.lse_strides;
  f.d_out = d_o.data.data(), f.d_out_strides = d_o.strides;
  if (g.d_query) f.d_query = dq.data.data(), f.d_query_strides = dq.strides;
  if (g.d_key) f.d_key = dk.data.data(), f.d_key_strides = dk.strides;
  if (g.d_value) f.d_value = dv.data.data(), f.d_value_strides = dv.strides;
  f.d_bias = g.d_bias, f.d_relative_bias = g.d_relative_bias, f.d_alibi_slopes = g.d_alibi_slopes;
  f.d_relative_key = g.d_relative_key, f.d_captured = g.d_captured;
  f.accumulate = g.accumulate;
  attention_backward(p, t, w.input(), f);
  if (g.d_query) narrow(p, false, p.heads, p.head_dim, dq, g.d_query, g.d_query_strides);
  if (g.d_key) narrow(p, true, p.kv_heads, p.head_dim, dk, g.d_key, g.d_key_strides);
  if (g.d_value) narrow(p, true, p.kv_heads, p.value_dim, dv, g.d_value, g.d_value_strides);
}

namespace {

// Rows [begin, begin + count) of one head, contiguous in f32.
std::vector<float> widen_head(const BFloat16* x, const Strides3& s, int64_t b, int64_t h, int64_t begin,
                              int64_t count, int64_t dim) {
  std::vector<float> rows(static_cast<size_t>(count * dim));
  for (int64_t r = 0; r < count; ++r) {
    const BFloat16* from = row_of(x, s, b, h, begin + r);
    std::transform(from, from + dim, rows.data() + r * dim, [](BFloat16 v) { return static_cast<float>(v); });
  }
  return rows;
}

void narrow_head(const std::vector<float>& rows, BFloat16* x, const Strides3& s, int64_t b, int64_t h,
                 int64_t begin, int64_t count, int64_t dim) {
  for (int64_t r = 0; x && r < count; ++r) {
    BFloat16* to = row_of(x, s, b, h, begin + r);
    std::transform(rows.data() + r * dim, rows.data() + (r + 1) * dim, to,
                   [](float v) { return BFloat16(v); });
  }
}

}  // namespace

void specified_backward_head(const AttentionProblem& problem, const ScoreTerms<float>& t,
                             const AttentionInput<BFloat16>& in, const AttentionGradient<BFloat16, float>& g,
                             int64_t b, int64_t kv) {
  const int64_t queries = problem.query_count(b), keys = problem.key_count(b);
  const int64_t q0 = problem.query_begin(b), k0 = problem.key_begin_row(b);
  AttentionProblem p = problem;
  std::vector<AttentionSequence> sequences;
  if (p.sequences) {  // the copies below start at the sequence's own first row
    sequences.assign(p.sequences, p.sequences + p.batch);
    sequences[static_cast<size_t>(b)].query_begin = sequences[static_cast<size_t>(b)].key_begin = 0;
    p.sequences = sequences.data();
  }
  const auto key = widen_head(in.key, in.key_strides, b, kv, k0, keys, p.head_dim);
  const auto value = widen_head(in.value, in.value_strides, b, kv, k0, keys, p.value_dim);
  std::vector<float> d_key(key.size(), 0.0f), d_value(value.size(), 0.0f), d_query;
  ReferenceRow<float> row;
  for (int64_t h = kv * p.group(); h < (kv + 1) * p.group(); ++h) {
    const auto query = widen_head(in.query, in.query_strides, b, h, q0, queries, p.head_dim);
    const auto d_out = widen_head(g.d_out, g.d_out_strides, b, h, q0, queries, p.value_dim);
    d_query.assign(query.size(), 0.0f);
    const AttentionInput<float> wide{query.data(),       key.data(),         value.data(),
                                     {0, 0, p.head_dim}, {0, 0, p.head_dim}, {0, 0, p.value_dim}};
    AttentionGradient<float> f;
    const int64_t lse = b * g.lse_strides.batch + h * g.lse_strides.head + q0;
    f.lse = g.lse + lse;
    if (g.d_lse) f.d_lse = g.d_lse + lse;
    f.d_out = d_out.data(), f.d_out_strides = {0, 0, p.value_dim};
    f.d_query = d_query.data(), f.d_query_strides = {0, 0, p.head_dim};
    f.d_key = d_key.data(), f.d_key_strides = {0, 0, p.head_dim};
    f.d_value = d_value.data(), f.d_value_strides = {0, 0, p.value_dim};
    f.d_relative_key = g.d_relative_key;
    for (int64_t i = 0; i < queries; ++i) reference_backward_row(p, t, wide, f, b, h, i, row);
    narrow_head(d_query, g.d_query, g.d_query_strides, b, h, q0, queries, p.head_dim);
  }
  narrow_head(d_key, g.d_key, g.d_key_strides, b, kv, k0, keys, p.head_dim);
  narrow_head(d_value, g.d_value, g.d_value_strides, b, kv, k0, keys, p.value_dim);
}

}  // namespace multihead::kernels
