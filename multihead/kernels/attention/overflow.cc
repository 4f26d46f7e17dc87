// Rows whose weighted mean is finite although the sum on the way to it is not: values near the largest float,
// times weights that are divided by their sum only at the end. Ordinary calls never come here.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "multihead/core/parallel.h"
#include "multihead/kernels/attention/driver-inl.h"
#include "multihead/kernels/attention/reference-inl.h"

namespace multihead::kernels {
namespace {

// Rows [0, count) of one head, contiguous in f32.
struct HeadRows {
  std::vector<float> data;
  int64_t dim = 0;

  HeadRows(const void* x, bool bf16, const Strides3& s, int64_t b, int64_t h, int64_t begin, int64_t count,
           int64_t row_dim)
      : data(static_cast<size_t>(count * row_dim)), dim(row_dim) {
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t c = 0; c < dim; ++c) {
        const int64_t at = b * s.batch + h * s.head + (begin + r) * s.token + c;
        data[static_cast<size_t>(r * dim + c)] =
            bf16 ? static_cast<float>(static_cast<const BFloat16*>(x)[at]) : static_cast<const float*>(x)[at];
      }
    }
  }
  Strides3 strides() const { return {0, 0, dim}; }
};

// Whether a sum of `count` of them can be too large; NaN and Inf are what they are, with any sum.
bool can_overflow(const HeadRows& values, int64_t count, double dropout_p) {
  constexpr float kMost = std::numeric_limits<float>::max();
  float largest = 0;
  for (const float x : values.data) {
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

template <class T>
void mend_head(const ForwardCall& call, int64_t b, int64_t kv) {
  AttentionProblem p = *call.p;
  const int64_t queries = p.query_count(b), keys = p.key_count(b), q0 = p.query_begin(b),
                k0 = p.key_begin_row(b);
  const HeadRows value(call.value, call.bf16, call.value_strides, b, kv, k0, keys, p.value_dim);
  if (!can_overflow(value, keys, p.dropout_p)) return;
  const HeadRows key(call.key, call.bf16, call.key_strides, b, kv, k0, keys, p.head_dim);
  std::vector<AttentionSequence> sequences;
  if (p.sequences) {  // the copies start at the sequence's own first row
    sequences.assign(p.sequences, p.sequences + p.batch);
    sequences[static_cast<size_t>(b)].query_begin = sequences[static_cast<size_t>(b)].key_begin = 0;
    p.sequences = sequences.data();
  }
  ReferenceRow<float> row;
  std::vector<float> exact(static_cast<size_t>(p.value_dim));
  for (int64_t h = kv * p.group(); h < (kv + 1) * p.group(); ++h) {
    for (int64_t i = 0; i < queries; ++i) {
      T* out = row_of(static_cast<T*>(call.out), call.out_strides, b, h, q0 + i);
      if (is_finite(out, p.value_dim)) continue;
      const HeadRows query(call.query, call.bf16, call.query_strides, b, h, q0 + i, 1, p.head_dim);
      // With strides of 0 every row of the problem is this one.
      const AttentionInput<float> in{query.data.data(), key.data.data(), value.data.data(), {},
                                     key.strides(),     value.strides()};
      reference_forward_row<float>(p, *call.terms, in, {exact.data(), {}, nullptr, {}}, b, h, i, row);
      replace_not_finite(exact.data(), p.value_dim, out);
    }
  }
}

}  // namespace

void mend_overflow(const ForwardCall& call) {
  const AttentionProblem& p = *call.p;
  parallel_for(p.batch * p.kv_heads, [&](int64_t task, int) {
    const FloatEnvironment environment;
    const int64_t b = task / p.kv_heads, kv = task % p.kv_heads;
    call.bf16 ? mend_head<BFloat16>(call, b, kv) : mend_head<float>(call, b, kv);
  });
}

}  // namespace multihead::kernels
