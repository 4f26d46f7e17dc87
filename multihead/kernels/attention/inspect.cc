// Looking inside without the score matrix: rows are recomputed from the forward's log-sum-exp, one at a time.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "multihead/core/parallel.h"
#include "multihead/kernels/attention/reference-inl.h"

namespace multihead::kernels {
namespace {

// row.score becomes the probabilities of (b, h, i), 0 where excluded. Returns the number of keys.
template <class T>
int64_t probabilities(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in,
                      const Operand& lse_of_rows, int64_t b, int64_t h, int64_t i, ReferenceRow<T>& row) {
  const T lse = row_of<T>(lse_of_rows, b, h, 0)[p.query_begin(b) + i];
  const int64_t n = reference_scores(p, t, in, b, h, i, ReferenceDerivative::none, row);
  const bool empty = lse == -std::numeric_limits<T>::infinity();
  for (int64_t j = 0; j < n; ++j) {
    if (!empty) {
      row.score[j] = row.keep[j] ? std::exp(row.score[j] - lse) : T{0};
    } else {
      row.score[j] = p.empty_row == EmptyRow::uniform ? T{1} / static_cast<T>(n)
                     : p.empty_row == EmptyRow::nan   ? std::numeric_limits<T>::quiet_NaN()
                                                      : T{0};
    }
  }
  return n;
}

template <class T>
void summarise_row(const AttentionSummary& s, const std::vector<T>& weight, int64_t n, int64_t row,
                   std::vector<int64_t>& order) {
  if (s.entropy) {
    double entropy = 0;
    for (int64_t j = 0; j < n; ++j) {
      if (weight[j] > 0) entropy -= double{weight[j]} * std::log(double{weight[j]});
    }
    s.entropy[row] = static_cast<float>(entropy);
  }
  if (s.top_k <= 0) return;
  order.resize(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  const int64_t found = std::min(s.top_k, n);
  std::partial_sort(order.begin(), order.begin() + found, order.end(), [&](int64_t x, int64_t y) {
    return weight[x] != weight[y] ? weight[x] > weight[y] : x < y;
  });
  for (int64_t r = 0; r < s.top_k; ++r) {
    const bool present = r < found && weight[order[r]] > 0;
    if (s.top_weights)
      s.top_weights[row * s.top_k + r] = present ? static_cast<float>(weight[order[r]]) : 0.0f;
    if (s.top_keys) s.top_keys[row * s.top_k + r] = present ? order[r] : -1;
  }
}

template <class T>
void capture(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in, const Operand& lse,
             CaptureStage stage, const CaptureRow* rows, int64_t count, T* weights, int64_t weights_stride) {
  const T keep_scale = static_cast<T>(p.dropout_p < 1 ? 1 / (1 - p.dropout_p) : 0);
  parallel_ranges(count, 8, [&](int64_t first, int64_t last) {
    ReferenceRow<T> row;
    for (int64_t r = first; r < last; ++r) {
      const auto [b, h, i] = rows[r];
      if (i >= p.query_count(b)) continue;
      T* w = weights + r * weights_stride;
      const int64_t n = stage == CaptureStage::scores
                            ? reference_scores(p, t, in, b, h, i, ReferenceDerivative::none, row)
                            : probabilities(p, t, in, lse, b, h, i, row);
      for (int64_t j = 0; j < n; ++j) {
        w[j] = row.score[j];
        if (stage == CaptureStage::after_dropout && p.dropout_p > 0) {
          w[j] = attention_dropout_keep(p.dropout_key, b, h, i, j, p.dropout_p) ? w[j] * keep_scale : T{0};
        }
      }
    }
  });
}

template <class T>
void summarise(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in, const Operand& lse,
               const AttentionSummary& s) {
  parallel_for(p.batch * p.heads, [&](int64_t task, int) {
    const int64_t b = task / p.heads, h = task % p.heads;
    ReferenceRow<T> row;
    std::vector<int64_t> order;
    std::vector<double> mass(static_cast<size_t>(p.keys), 0.0);
    for (int64_t i = 0; i < p.queries; ++i) {
      const int64_t n = i < p.query_count(b) ? probabilities(p, t, in, lse, b, h, i, row) : 0;
      for (int64_t j = 0; j < n; ++j) mass[j] += double{row.score[j]};
      summarise_row(s, row.score, n, task * p.queries + i, order);
    }
    for (int64_t j = 0; s.key_mass && j < p.keys; ++j) {
      s.key_mass[task * p.keys + j] = static_cast<float>(mass[j]);
    }
  });
}

}  // namespace

void attention_capture(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in,
                       const Operand& lse, CaptureStage stage, const CaptureRow* rows, int64_t count,
                       void* weights, int64_t weights_stride) {
  if (in.query.dtype == Dtype::f64) {
    return capture(p, t, in, lse, stage, rows, count, static_cast<double*>(weights), weights_stride);
  }
  capture(p, t, in, lse, stage, rows, count, static_cast<float*>(weights), weights_stride);
}

void attention_summary(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in,
                       const Operand& lse, const AttentionSummary& s) {
  in.query.dtype == Dtype::f64 ? summarise<double>(p, t, in, lse, s) : summarise<float>(p, t, in, lse, s);
}

void attention_merge(int64_t rows, int64_t value_dim, float* out, float* lse, const float* other_out,
                     const float* other_lse) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  parallel_ranges(rows, 64, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const float a = lse[r], b = other_lse[r], max = std::max(a, b);
      if (max == -kInf) continue;  // both empty: out is zero already
      const float wa = std::exp(a - max), wb = std::exp(b - max), sum = wa + wb;
      for (int64_t c = r * value_dim; c < (r + 1) * value_dim; ++c) {
        const float x = wa == 0 ? 0.0f : wa * out[c], y = wb == 0 ? 0.0f : wb * other_out[c];
        out[c] =
            std::isfinite(x + y) ? (x + y) / sum : static_cast<float>((double{x} + double{y}) / double{sum});
      }
      lse[r] = max + std::log(sum);
    }
  });
}

}  // namespace multihead::kernels
