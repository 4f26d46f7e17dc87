// Looking inside without the score matrix: rows are recomputed, one at a time.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/attention/block/probabilities-inl.h"
#include "multihead/kernels/attention/inspect.h"

namespace multihead::kernels {
namespace {

template <class T>
void summarise_row(const CaptureSummary& s, const ReferenceRow<T>& of, int64_t n, int64_t row,
                   std::vector<int64_t>& order) {
  const auto& weight = of.score;
  if (s.entropy) {
    const auto part = [](double p) { return p > 0 ? -p * std::log(p) : 0.0; };
    double entropy = part(double{of.sink});
    for (int64_t j = 0; j < n; ++j) entropy += part(double{weight[j]});
    static_cast<T*>(s.entropy)[row] = static_cast<T>(entropy);
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
    if (s.top_weights) {
      static_cast<T*>(s.top_weights)[row * s.top_k + r] = present ? weight[order[r]] : T{0};
    }
    if (s.top_keys) s.top_keys[row * s.top_k + r] = present ? order[r] : -1;
  }
}

template <class T>
void capture(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in, const T* sinks,
             CaptureStage stage, const CaptureRow* rows, int64_t count, T* weights, int64_t weights_stride) {
  const T keep_scale = static_cast<T>(p.dropout_p < 1 ? 1 / (1 - p.dropout_p) : 0);
  parallel_ranges(count, 8, [&](int64_t first, int64_t last) {
    ReferenceRow<T> row;
    for (int64_t r = first; r < last; ++r) {
      const auto [b, h, i] = rows[r];
      if (i >= p.query_count(b)) continue;
      T* w = weights + r * weights_stride;
      const int64_t n = reference_scores(p, t, in, b, h, i, ReferenceDerivative::none, row);
      if (stage != CaptureStage::scores) to_probabilities(p, sinks, b, h, row);
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
void summarise(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in, const T* sinks,
               const CaptureSummary& s) {
  parallel_for(p.batch * p.heads, [&](int64_t task, int) {
    const int64_t b = task / p.heads, h = task % p.heads;
    ReferenceRow<T> row;
    std::vector<int64_t> order;
    std::vector<double> mass(static_cast<size_t>(p.keys), 0.0);
    for (int64_t i = 0; i < p.queries; ++i) {
      int64_t n = 0;
      row.sink = 0;
      if (i < p.query_count(b)) {
        n = reference_scores(p, t, in, b, h, i, ReferenceDerivative::none, row);
        to_probabilities(p, sinks, b, h, row);
      }
      for (int64_t j = 0; j < n; ++j) mass[j] += double{row.score[j]};
      summarise_row(s, row, n, task * p.queries + i, order);
    }
    for (int64_t j = 0; s.key_mass && j < p.keys; ++j) {
      static_cast<T*>(s.key_mass)[task * p.keys + j] = static_cast<T>(mass[j]);
    }
  });
}

template <class Pointer>
struct Part {
  Pointer out, lse;
};

template <class T>
void merge(int64_t rows, int64_t value_dim, const Part<void*>& to, const Part<const void*>& other) {
  constexpr T kInf = std::numeric_limits<T>::infinity();
  T *out = static_cast<T*>(to.out), *lse = static_cast<T*>(to.lse);
  const T *other_out = static_cast<const T*>(other.out), *other_lse = static_cast<const T*>(other.lse);
  parallel_ranges(rows, 64, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const T a = lse[r], b = other_lse[r], max = std::max(a, b);
      if (max == -kInf) continue;  // both empty: out is zero already
      const T wa = std::exp(a - max), wb = std::exp(b - max), sum = wa + wb;
      for (int64_t c = r * value_dim; c < (r + 1) * value_dim; ++c) {
        const T x = wa == 0 ? T{0} : wa * out[c], y = wb == 0 ? T{0} : wb * other_out[c];
        out[c] = std::isfinite(x + y) ? (x + y) / sum : static_cast<T>((double{x} + double{y}) / double{sum});
      }
      lse[r] = max + std::log(sum);
    }
  });
}

}  // namespace

void attention_capture(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in,
                       const void* sinks, CaptureStage stage, const CaptureRow* rows, int64_t count,
                       void* weights, int64_t weights_stride) {
  const auto of = [&](auto* to) {
    using T = std::remove_pointer_t<decltype(to)>;
    capture(p, t, in, static_cast<const T*>(sinks), stage, rows, count, to, weights_stride);
  };
  in.query.dtype == Dtype::f64 ? of(static_cast<double*>(weights)) : of(static_cast<float*>(weights));
}

void attention_summary(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in,
                       const void* sinks, const CaptureSummary& s) {
  in.query.dtype == Dtype::f64 ? summarise(p, t, in, static_cast<const double*>(sinks), s)
                               : summarise(p, t, in, static_cast<const float*>(sinks), s);
}

void attention_merge(Dtype dtype, int64_t rows, int64_t value_dim, void* out, void* lse,
                     const void* other_out, const void* other_lse) {
  dtype == Dtype::f64 ? merge<double>(rows, value_dim, {out, lse}, {other_out, other_lse})
                      : merge<float>(rows, value_dim, {out, lse}, {other_out, other_lse});
}

}  // namespace multihead::kernels
