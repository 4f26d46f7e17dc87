// The specification on copies of one key head in f32: all of bf16 and int8 on a CPU without vectors, and what
// the SIMD kernels leave to it. Forward: rows whose weighted mean is finite although the sum on the way to it
// is not, that is values near the largest float times weights that are divided by their sum only at the end.
// Backward: heads whose gradients are not finite. Ordinary calls never come here.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/attention/decode/int8_rows.h"
#include "multihead/kernels/attention/driver-inl.h"
#include "multihead/kernels/attention/reference-inl.h"

namespace multihead::kernels {
namespace {

// Rows [begin, begin + count) of one head, of T or int8, contiguous in f32.
std::vector<float> copy_rows(const Operand& x, int64_t b, int64_t h, int64_t begin, int64_t count,
                             int64_t dim) {
  std::vector<float> rows(static_cast<size_t>(count * dim));
  for (int64_t r = 0; r < count; ++r) {
    if (x.dtype == Dtype::i32) {
      widen_int8_row(row_of<int32_t>(x, b, h, begin + r), dim, rows.data() + r * dim);
      continue;
    }
    const auto widen = [&](const auto* from) {
      std::transform(from, from + dim, rows.data() + r * dim, [](auto v) { return static_cast<float>(v); });
    };
    x.dtype == Dtype::bf16 ? widen(row_of<BFloat16>(x, b, h, begin + r))
                           : widen(row_of<float>(x, b, h, begin + r));
  }
  return rows;
}

void write_rows(const std::vector<float>& rows, const Operand& x, int64_t b, int64_t h, int64_t begin,
                int64_t count, int64_t dim) {
  for (int64_t r = 0; x && r < count; ++r) {
    const float* from = rows.data() + r * dim;
    if (x.dtype == Dtype::bf16) {
      std::transform(from, from + dim, row_of<BFloat16>(x, b, h, begin + r),
                     [](float v) { return BFloat16(v); });
    } else {
      std::copy_n(from, dim, row_of<float>(x, b, h, begin + r));
    }
  }
}

// One key head of a call: its problem, keys and values as contiguous f32 rows that start at 0.
struct HeadCopy {
  AttentionProblem p;
  std::vector<AttentionSequence> sequences;
  int64_t b, kv, q0, queries, k0, keys;
  std::vector<float> key, value;

  HeadCopy(const ForwardCall& c, int64_t sample, int64_t head)
      : p(*c.p),
        b(sample),
        kv(head),
        q0(p.query_begin(b)),
        queries(p.query_count(b)),
        k0(p.key_begin_row(b)),
        keys(p.key_count(b)),
        key(copy_rows(c.key, b, kv, k0, keys, p.head_dim)),
        value(copy_rows(c.value, b, kv, k0, keys, p.value_dim)) {
    if (!p.sequences) return;
    sequences.assign(p.sequences, p.sequences + p.batch);
    sequences[static_cast<size_t>(b)].query_begin = sequences[static_cast<size_t>(b)].key_begin = 0;
    p.sequences = sequences.data();
  }
  AttentionInput input(const std::vector<float>& query, const Strides3& query_strides) const {
    return {
        {query.data(), query_strides}, {key.data(), {0, 0, p.head_dim}}, {value.data(), {0, 0, p.value_dim}}};
  }
};

// Whether a sum of `count` of them can be too large; NaN and Inf are what they are, with any sum.
bool can_overflow(const std::vector<float>& values, int64_t count, double dropout_p) {
  constexpr float kMost = std::numeric_limits<float>::max();
  float largest = 0;
  for (const float x : values) {
    const float size = std::abs(x);
    if (size <= kMost && size > largest) largest = size;
  }
  return dropout_p < 1 && double{largest} * static_cast<double>(count) / (1 - dropout_p) > kMost / 4;
}

// Replaces what is not finite in `count` numbers where `exact` is.
template <class T>
void replace_not_finite(const float* exact, int64_t count, T* out) {
  for (int64_t c = 0; c < count; ++c) {
    if (!std::isfinite(static_cast<float>(out[c])) && std::isfinite(exact[c])) out[c] = T(exact[c]);
  }
}

template <class T>
bool is_finite(const T* row, int64_t count) {
  return std::all_of(row, row + count, [](T x) { return std::isfinite(static_cast<float>(x)); });
}

void forward_row(const ForwardCall& c, const HeadCopy& head, int64_t h, int64_t i, const AttentionOutput& out,
                 ReferenceRow<float>& row) {
  const int64_t dim = head.p.head_dim;
  const auto query = copy_rows(c.query, head.b, h, head.q0 + i, 1, dim);
  // With strides of 0 every row of the problem is this one.
  reference_forward_row<float>(head.p, *c.terms, head.input(query, {}), out, head.b, h, i, row);
}

template <class T>
void replace_overflow(const ForwardCall& call, int64_t b, int64_t kv) {
  const HeadCopy head(call, b, kv);
  const AttentionProblem& p = head.p;
  if (!can_overflow(head.value, head.keys, p.dropout_p)) return;
  ReferenceRow<float> row;
  std::vector<float> exact(static_cast<size_t>(p.value_dim));
  for (int64_t h = kv * p.group(); h < (kv + 1) * p.group(); ++h) {
    for (int64_t i = 0; i < head.queries; ++i) {
      T* out = row_of<T>(call.out, b, h, head.q0 + i);
      if (is_finite(out, p.value_dim)) continue;
      forward_row(call, head, h, i, {{exact.data(), {}}, {}}, row);
      replace_not_finite(exact.data(), p.value_dim, out);
    }
  }
}

// The gradients of one key head and its query heads; adds to those of the score terms that `terms` names.
void backward_head(const BackwardCall& call, int64_t b, int64_t kv, const AttentionGradient& terms) {
  const ForwardCall& c = call.forward;
  const HeadCopy head(c, b, kv);
  const AttentionProblem& p = head.p;
  const AttentionGradient& g = call.gradient;
  const int64_t q0 = head.q0, queries = head.queries;
  std::vector<float> d_key(head.key.size(), 0.0f), d_value(head.value.size(), 0.0f), d_query;
  ReferenceRow<float> row;
  for (int64_t h = kv * p.group(); h < (kv + 1) * p.group(); ++h) {
    const auto query = copy_rows(c.query, b, h, q0, queries, p.head_dim);
    const auto d_out = copy_rows(g.d_out, b, h, q0, queries, p.value_dim);
    d_query.assign(query.size(), 0.0f);
    const Strides3 keys = {0, 0, p.head_dim}, values = {0, 0, p.value_dim};
    AttentionGradient f = terms;
    const int64_t lse = b * g.lse.strides.batch + h * g.lse.strides.head + q0;
    f.lse = {as_floats(g.lse.data) + lse, {}};
    if (g.d_lse) f.d_lse = as_floats(g.d_lse) + lse;
    f.d_out = {d_out.data(), values};
    f.d_query = {d_query.data(), keys}, f.d_key = {d_key.data(), keys}, f.d_value = {d_value.data(), values};
    const AttentionInput in = head.input(query, {0, 0, p.head_dim});
    for (int64_t i = 0; i < queries; ++i) reference_backward_row(p, *c.terms, in, f, b, h, i, row);
    write_rows(d_query, g.d_query, b, h, q0, queries, p.head_dim);
  }
  write_rows(d_key, g.d_key, b, kv, head.k0, head.keys, p.head_dim);
  write_rows(d_value, g.d_value, b, kv, head.k0, head.keys, p.value_dim);
}

template <class Body>
void each_head(const AttentionProblem& p, bool parallel, const Body& f) {
  const auto task = [&](int64_t index, int) {
    const FloatEnvironment environment;
    f(index / p.kv_heads, index % p.kv_heads);
  };
  if (parallel) return parallel_for(p.batch * p.kv_heads, task);
  for (int64_t index = 0; index < p.batch * p.kv_heads; ++index) task(index, 0);
}

}  // namespace

void recompute_overflow(const ForwardCall& c) {
  each_head(*c.p, true, [&](int64_t b, int64_t kv) {
    c.bf16 ? replace_overflow<BFloat16>(c, b, kv) : replace_overflow<float>(c, b, kv);
  });
}

void recompute_gradients(const BackwardCall& call, int64_t b, int64_t kv, float* d_relative_key,
                         float* d_relative_value) {
  AttentionGradient terms;
  terms.d_relative_key = d_relative_key, terms.d_relative_value = d_relative_value;
  backward_head(call, b, kv, terms);
}

void reference_f32_forward(const ForwardCall& c) {
  each_head(*c.p, true, [&](int64_t b, int64_t kv) {
    const HeadCopy head(c, b, kv);
    const AttentionProblem& p = head.p;
    ReferenceRow<float> row;
    std::vector<float> out(static_cast<size_t>(p.value_dim));
    for (int64_t h = kv * p.group(); h < (kv + 1) * p.group(); ++h) {
      Operand lse = c.lse;
      if (lse) lse = {row_of<float>(c.lse, b, h, 0) + head.q0, {}};
      for (int64_t i = 0; i < head.queries; ++i) {
        forward_row(c, head, h, i, {{out.data(), {}}, lse}, row);
        write_rows(out, c.out, b, h, head.q0 + i, 1, p.value_dim);
      }
    }
  });
}

void reference_f32_backward(const BackwardCall& call) {
  const AttentionGradient& g = call.gradient;
  zero_score_gradients<float>(*call.forward.p, *call.forward.terms, g);
  // Sums that heads share are added in one order, by one thread.
  each_head(*call.forward.p, !g.of_terms(), [&](int64_t b, int64_t kv) { backward_head(call, b, kv, g); });
}

}  // namespace multihead::kernels
