// Gradients of captured weights and summaries: rows are recomputed, one at a time.
//
// Whatever was captured is a function of a row's probabilities p (or scores s), so its gradient comes as dp,
// and the softmax turns that into ds = p · (dp - Σ p · dp):
//   weights      dp = dw, after dropout dw / (1 - dropout_p) where kept; scores: ds = dw
//   key mass     dp[j] = dmass[j] in every row
//   entropy      dp[j] = -dentropy · (log p[j] + 1), the sink's probability likewise
//   top weights  dp[top key] = dw
#include <cmath>
#include <vector>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/attention/block/probabilities-inl.h"
#include "multihead/kernels/attention/inspect.h"

namespace multihead::kernels {
namespace {

template <class T>
class CaptureBackward {
 public:
  CaptureBackward(const AttentionProblem& problem, const CaptureGradient& from)
      : p_(problem), from_(from), next_(static_cast<size_t>(from.count), -1) {
    if (!from.weights) return;
    first_.assign(static_cast<size_t>(p_.batch * p_.heads * p_.queries), -1);
    for (int64_t r = from.count; r-- > 0;) {
      const CaptureRow& row = from.rows[r];
      int64_t& first = first_[static_cast<size_t>(index(row.batch, row.head, row.query))];
      next_[static_cast<size_t>(r)] = first, first = r;
    }
  }

  bool reaches(int64_t b, int64_t h, int64_t i) const {
    return from_.summary.any() || (from_.weights && first_[static_cast<size_t>(index(b, h, i))] >= 0);
  }

  // row.d_probability becomes the gradients of the scores, row.score the probabilities. False: there are
  // none.
  bool scores(const T* sinks, int64_t b, int64_t h, int64_t i, ReferenceRow<T>& row, double& d_sink) const {
    if (!to_probabilities(p_, sinks, b, h, row)) return false;
    const int64_t n = p_.key_count(b);
    std::fill_n(row.d_probability.data(), n, T{0});
    if (from_.weights && from_.stage != CaptureStage::scores) add_weights(b, h, i, row);
    add_summaries((b * p_.heads + h) * p_.keys, index(b, h, i), n, row);
    const T of_sink = sink_gradient(index(b, h, i), row.sink);
    T delta = row.sink * of_sink;
    for (int64_t j = 0; j < n; ++j) delta += row.score[j] * row.d_probability[j];
    d_sink += double{row.sink} * double{of_sink - delta};
    for (int64_t j = 0; j < n; ++j) row.d_probability[j] = row.score[j] * (row.d_probability[j] - delta);
    if (from_.weights && from_.stage == CaptureStage::scores) add_weights(b, h, i, row);
    return true;
  }

 private:
  int64_t index(int64_t b, int64_t h, int64_t i) const { return (b * p_.heads + h) * p_.queries + i; }

  void add_weights(int64_t b, int64_t h, int64_t i, ReferenceRow<T>& row) const {
    const bool drop = from_.stage == CaptureStage::after_dropout && p_.dropout_p > 0;
    const T keep_scale = static_cast<T>(!drop ? 1 : p_.dropout_p < 1 ? 1 / (1 - p_.dropout_p) : 0);
    for (int64_t r = first_[static_cast<size_t>(index(b, h, i))]; r >= 0; r = next_[static_cast<size_t>(r)]) {
      const T* d = static_cast<const T*>(from_.weights) + r * from_.weights_stride;
      for (int64_t j = 0; j < p_.key_count(b); ++j) {
        if (drop && !attention_dropout_keep(p_.dropout_key, b, h, i, j, p_.dropout_p)) continue;
        row.d_probability[j] += d[j] * keep_scale;
      }
    }
  }

  void add_summaries(int64_t first_key, int64_t at, int64_t n, ReferenceRow<T>& row) const {
    const CaptureSummary& s = from_.summary;
    const auto *mass = static_cast<const T*>(s.key_mass), *entropy = static_cast<const T*>(s.entropy),
               *top = static_cast<const T*>(s.top_weights);
    for (int64_t j = 0; mass && j < n; ++j) row.d_probability[j] += mass[first_key + j];
    for (int64_t j = 0; entropy && j < n; ++j) {
      if (row.score[j] > 0) row.d_probability[j] -= entropy[at] * (std::log(row.score[j]) + 1);
    }
    for (int64_t r = at * s.top_k; top && r < (at + 1) * s.top_k; ++r) {
      if (s.top_keys[r] >= 0) row.d_probability[s.top_keys[r]] += top[r];
    }
  }

  // dp of the sink, which counts in the entropy alone.
  T sink_gradient(int64_t at, T sink) const {
    const auto* entropy = static_cast<const T*>(from_.summary.entropy);
    return entropy && sink > 0 ? -entropy[at] * (std::log(sink) + 1) : T{0};
  }

  const AttentionProblem& p_;
  const CaptureGradient& from_;
  std::vector<int64_t> first_, next_;  // rows of the captured weights of a row of the problem
};

template <class T>
void backward(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in, const T* sinks,
              const CaptureGradient& from, const AttentionGradient& to, T* d_sinks) {
  const CaptureBackward<T> rows(p, from);
  const auto task = [&](int64_t index, int) {
    const FloatEnvironment environment;
    ReferenceRow<T> row;
    const int64_t b = index / p.kv_heads, kv = index % p.kv_heads;
    for (int64_t h = kv * p.group(); h < (kv + 1) * p.group(); ++h) {
      double d_sink = 0;
      for (int64_t i = 0; i < p.query_count(b); ++i) {
        if (!rows.reaches(b, h, i)) continue;
        reference_scores(p, t, in, b, h, i, derivative_for(t, to), row);
        if (rows.scores(sinks, b, h, i, row, d_sink)) reference_spread_row(p, t, in, to, b, h, i, row);
      }
      if (d_sinks) d_sinks[h] += static_cast<T>(d_sink);
    }
  };
  if (to.of_terms() || d_sinks) {  // shared by tasks: one order, one thread
    for (int64_t index = 0; index < p.batch * p.kv_heads; ++index) task(index, 0);
  } else {
    parallel_for(p.batch * p.kv_heads, task);
  }
}

}  // namespace

void attention_capture_backward(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in,
                                const void* sinks, const CaptureGradient& from, const AttentionGradient& to,
                                void* d_sinks) {
  if (in.query.dtype == Dtype::f64) {
    return backward(p, t, in, static_cast<const double*>(sinks), from, to, static_cast<double*>(d_sinks));
  }
  backward(p, t, in, static_cast<const float*>(sinks), from, to, static_cast<float*>(d_sinks));
}

}  // namespace multihead::kernels
