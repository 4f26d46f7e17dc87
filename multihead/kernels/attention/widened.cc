// bf16 attention by widening whole tensors to f32: what runs on a CPU without vectors. The SIMD kernels widen
// block by block instead.
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
  AttentionGradient<float> f{{g}, o.data.data(), d_o.data.data()};
  f.out_strides = o.strides, f.d_out_strides = d_o.strides;
  if (g.d_query) f.d_query = dq.data.data(), f.d_query_strides = dq.strides;
  if (g.d_key) f.d_key = dk.data.data(), f.d_key_strides = dk.strides;
  if (g.d_value) f.d_value = dv.data.data(), f.d_value_strides = dv.strides;
  attention_backward(p, t, w.input(), f);
  if (g.d_query) narrow(p, false, p.heads, p.head_dim, dq, g.d_query, g.d_query_strides);
  if (g.d_key) narrow(p, true, p.kv_heads, p.head_dim, dk, g.d_key, g.d_key_strides);
  if (g.d_value) narrow(p, true, p.kv_heads, p.value_dim, dv, g.d_value, g.d_value_strides);
}

}  // namespace multihead::kernels
