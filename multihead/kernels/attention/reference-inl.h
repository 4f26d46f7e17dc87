// The specification of attention as plain loops over a number type: what the fused kernels are tested against
// and what runs in f64. One row of scores at a time; memory O(Tk) per thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/attention/attention.h"
#include "multihead/kernels/attention/row_softmax-inl.h"
#include "multihead/kernels/cpu/float_environment-inl.h"

namespace multihead::kernels {

/// Buffers for one row of scores.
template <class T>
struct ReferenceRow {
  std::vector<T> score, derivative, d_probability, raw;
  std::vector<uint8_t> keep;
  T sink = 0;  // its probability, once to_probabilities() has run

  void resize(int64_t keys) {
    const auto n = static_cast<size_t>(std::max<int64_t>(keys, 1));
    score.resize(n);
    derivative.resize(n);
    d_probability.resize(n);
    raw.resize(n);
    keep.resize(n);
  }
};

/// Whether the analytic masks and the dense one let query i see key j (everything but the mask function).
inline bool attention_allows(const AttentionProblem& p, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (p.key_lengths && j >= p.key_lengths[b]) return false;
  if (p.query_lengths && i >= p.query_lengths[b]) return false;
  const int64_t interval = b * p.interval_stride + i;
  if (p.key_begin && j < p.key_begin[interval]) return false;
  if (p.key_end && j >= p.key_end[interval]) return false;
  const int64_t distance = j - i - p.diagonal_of(b);
  if (p.causal && distance > 0) return false;
  if (p.window_left >= 0 && distance < -p.window_left) return false;
  if (p.window_right >= 0 && distance > p.window_right) return false;
  const Strides4& s = p.keep_strides;
  return !p.keep || p.keep[b * s.batch + h * s.head + i * s.query + j * s.key];
}

/// Row (b, h, token) of an operand of T.
template <class T>
T* row_of(const Operand& x, int64_t b, int64_t h, int64_t token) {
  const Strides3& s = x.strides;
  return static_cast<T*>(x.data) + b * s.batch + h * s.head + token * s.token;
}

template <class T>
T dot(const T* a, const T* b, int64_t n) {
  T sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/// Index into a relative bias table.
inline int64_t relative_index(int64_t distance, int64_t center, int64_t span) {
  return std::clamp<int64_t>(distance + center, 0, span - 1);
}

/// The row of a table of relative keys that query i and key j meet, and its place in a contiguous [H, span].
inline int64_t relative_row(const AttentionProblem& p, const RelativeTable& table, int64_t b, int64_t i,
                            int64_t j) {
  return relative_index(j - i - p.diagonal_of(b), table.center, table.span);
}
template <class T>
const T* relative_table_row(const AttentionProblem& p, const RelativeTable& table, int64_t b, int64_t h,
                            int64_t i, int64_t j) {
  return static_cast<const T*>(table.data) + h * table.head_stride +
         relative_row(p, table, b, i, j) * table.row_stride;
}

/// out += weight · the relative value, if there is one.
template <class T>
void add_relative_value(const AttentionProblem& p, const ScoreTerms& t, int64_t b, int64_t h, int64_t i,
                        int64_t j, T weight, T* out) {
  if (!t.relative_value) return;
  const T* r = relative_table_row<T>(p, t.relative_value, b, h, i, j);
  for (int64_t c = 0; c < p.value_dim; ++c) out[c] += weight * r[c];
}

/// ⟨d_out, value + relative value⟩: the gradient of key j's weight.
template <class T>
T value_product(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in, const T* d_out,
                int64_t b, int64_t h, int64_t i, int64_t j) {
  const T product =
      dot(d_out, row_of<const T>(in.value, b, h / p.group(), p.key_begin_row(b) + j), p.value_dim);
  if (!t.relative_value) return product;
  return product + dot(d_out, relative_table_row<T>(p, t.relative_value, b, h, i, j), p.value_dim);
}

enum class ReferenceDerivative { none, whole, behind_function };

/// row.score[j] = final score of (b, h, i, j), -inf where excluded; row.derivative[j] = its derivative by
/// scale · ⟨query, key⟩, or by what the score function gives, if requested; row.raw[j] = what it is given.
/// Returns the number of keys. Weights are not made yet.
template <class T>
int64_t reference_scores(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in, int64_t b,
                         int64_t h, int64_t i, ReferenceDerivative derivative, ReferenceRow<T>& row) {
  const int64_t n = p.key_count(b), kv = h / p.group();
  row.resize(n);
  const T* q = row_of<const T>(in.query, b, h, p.query_begin(b) + i);
  T* s = row.score.data();
  for (int64_t j = 0; j < n; ++j) {
    row.keep[j] = attention_allows(p, b, h, i, j);
    const T* k = row_of<const T>(in.key, b, kv, p.key_begin_row(b) + j);
    row.derivative[j] = 1;
    s[j] = 0;
    if (!row.keep[j]) continue;
    T sum = dot(q, k, p.head_dim);
    if (t.relative_key) sum += dot(q, relative_table_row<T>(p, t.relative_key, b, h, i, j), p.head_dim);
    s[j] = static_cast<T>(p.scale) * sum;
  }
  if (p.mask_function && n > 0) {
    std::vector<uint8_t> keep(static_cast<size_t>(n));
    p.mask_function.fill(p.mask_function.context, {keep.data(), 1, b, h, i, 1, 0, n});
    for (int64_t j = 0; j < n; ++j) row.keep[j] &= keep[j];
  }
  if (t.score_function && !t.weights() && n > 0) {
    const ScoreTile tile{s, 1, b, h, i, 1, 0, n};
    std::copy_n(s, n, row.raw.data());
    if (derivative == ReferenceDerivative::whole) {
      t.score_function.apply_with_derivative(t.score_function.context, tile, row.derivative.data());
    } else {
      t.score_function.apply(t.score_function.context, tile);
    }
  }
  const Strides4& bs = t.bias_strides;
  const auto *biases = static_cast<const T*>(t.bias), *relative = static_cast<const T*>(t.relative_bias),
             *slopes = static_cast<const T*>(t.alibi_slopes);
  for (int64_t j = 0; j < n; ++j) {
    if (!row.keep[j]) {
      s[j] = -std::numeric_limits<T>::infinity();
      continue;
    }
    if (t.softcap > 0) {
      const T cap = static_cast<T>(t.softcap), th = std::tanh(s[j] / cap);
      s[j] = cap * th;
      row.derivative[j] *= 1 - th * th;
    }
    const int64_t distance = j - i - p.diagonal_of(b);
    const T bias = biases ? biases[b * bs.batch + h * bs.head + i * bs.query + j * bs.key] : T{0};
    if (bias == -std::numeric_limits<T>::infinity()) {  // excluded, even if the score is NaN
      row.keep[j] = 0;
      s[j] = bias;
      continue;
    }
    s[j] += bias;
    if (relative) {
      s[j] += relative[h * t.relative_stride + relative_index(distance, t.relative_center, t.relative_span)];
    }
    if (slopes) {
      s[j] -= slopes[b * t.alibi_batch_stride + h * t.alibi_stride] * static_cast<T>(std::abs(distance));
    }
  }
  return n;
}

/// The columns of a row of output that are not finite again, in sums that hold more: those of finite values
/// may be too large for T although their weighted mean is not. `max` of row.score, which is as
/// reference_scores left it; an `empty` row is one of equal weights.
template <class T>
void widen_not_finite(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in, int64_t b,
                      int64_t h, int64_t i, T max, bool empty, ReferenceRow<T>& row, T* out) {
  using Wide = std::conditional_t<std::is_same_v<T, float>, double, long double>;
  if (std::all_of(out, out + p.value_dim, [](T x) { return std::isfinite(x); })) return;
  const int64_t n = p.key_count(b), kv = h / p.group();
  Wide total = 0;
  for (int64_t j = 0; j < n; ++j) {
    T& weight = row.d_probability[j];
    const bool excluded = !empty && !row.keep[j];
    weight = empty ? T{1} : std::exp(row.score[j] - max);
    if (!excluded) total += weight;
    const bool dropped = p.dropout_p > 0 && !attention_dropout_keep(p.dropout_key, b, h, i, j, p.dropout_p);
    if (excluded || dropped) weight = -1;  // not even 0 times an Inf
  }
  for (int64_t c = 0; c < p.value_dim; ++c) {
    if (std::isfinite(out[c])) continue;
    Wide sum = 0;
    for (int64_t j = 0; j < n; ++j) {
      if (row.d_probability[j] == -1) continue;
      const T value = row_of<const T>(in.value, b, kv, p.key_begin_row(b) + j)[c];
      sum += Wide{row.d_probability[j]} * Wide{value};
      if (!t.relative_value) continue;
      sum += Wide{row.d_probability[j]} * Wide{relative_table_row<T>(p, t.relative_value, b, h, i, j)[c]};
    }
    out[c] = static_cast<T>(sum / (total * static_cast<Wide>(1 - p.dropout_p)));
  }
}

/// row.raw <- row.score, as reference_scores() left it, which becomes the row's weights, 0 where excluded. Returns what
/// they are divided by; 0 for rows that see no key.
template <class T>
T reference_weights(const ScoreTerms& t, int64_t n, int64_t b, int64_t h, int64_t i, ReferenceRow<T>& row) {
  std::copy_n(row.score.data(), n, row.raw.data());
  if (t.score_function && n > 0) {
    t.score_function.apply(t.score_function.context, {row.score.data(), 1, b, h, i, 1, 0, n});
  }
  T sum = 0;
  bool empty = true;
  for (int64_t j = 0; j < n; ++j) {
    const bool excluded = row.raw[j] == -std::numeric_limits<T>::infinity();
    if (excluded) row.keep[j] = 0;
    if (!row.keep[j]) row.score[j] = 0;
    empty = empty && excluded;
    sum += t.normalise == Normalise::abs_sum ? std::abs(row.score[j]) : row.score[j];
  }
  if (empty) return 0;
  return t.normalise == Normalise::none ? T{1} : sum;
}

/// reference_forward_row() without a softmax.
template <class T>
void reference_weighted_row(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in,
                            int64_t b, int64_t h, int64_t i, ReferenceRow<T>& row, T* o, T* normaliser) {
  const int64_t n = p.key_count(b), kv = h / p.group();
  const T by = reference_weights(t, n, b, h, i, row);
  if (normaliser) *normaliser = by;
  std::fill_n(o, p.value_dim,
              by == 0 && p.empty_row == EmptyRow::nan ? std::numeric_limits<T>::quiet_NaN() : T{0});
  if (by == 0 || p.dropout_p >= 1) return;
  const T keep_scale = static_cast<T>(1 / (1 - p.dropout_p));
  for (int64_t j = 0; j < n; ++j) {
    if (!row.keep[j]) continue;
    if (p.dropout_p > 0 && !attention_dropout_keep(p.dropout_key, b, h, i, j, p.dropout_p)) continue;
    const T* v = row_of<const T>(in.value, b, kv, p.key_begin_row(b) + j);
    for (int64_t c = 0; c < p.value_dim; ++c) o[c] += row.score[j] * v[c];
    add_relative_value(p, t, b, h, i, j, row.score[j], o);
  }
  for (int64_t c = 0; c < p.value_dim; ++c) o[c] = o[c] * keep_scale / by;
}

template <class T>
void reference_forward_row(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in,
                           const AttentionOutput& out, int64_t b, int64_t h, int64_t i,
                           ReferenceRow<T>& row) {
  constexpr T kInf = std::numeric_limits<T>::infinity();
  const int64_t n = reference_scores(p, t, in, b, h, i, ReferenceDerivative::none, row), kv = h / p.group();
  T* o = row_of<T>(out.out, b, h, p.query_begin(b) + i);
  T* lse = out.lse ? row_of<T>(out.lse, b, h, 0) + (p.query_begin(b) + i) : nullptr;
  if (t.weights()) return reference_weighted_row(p, t, in, b, h, i, row, o, lse);
  std::fill(o, o + p.value_dim, T{0});

  T max = -kInf, sum = 0;
  bool empty = true;
  for (int64_t j = 0; j < n; ++j) {
    max = std::max(max, row.score[j]);
    empty = empty && row.score[j] == -kInf;
  }
  const T keep_scale = static_cast<T>(p.dropout_p < 1 ? 1 / (1 - p.dropout_p) : 0);
  for (int64_t j = 0; j < n && (!empty || p.empty_row == EmptyRow::uniform); ++j) {
    if (!empty && !row.keep[j]) continue;
    T weight = empty ? T{1} : std::exp(row.score[j] - max);
    sum += weight;
    if (p.dropout_p > 0 && !attention_dropout_keep(p.dropout_key, b, h, i, j, p.dropout_p)) continue;
    if (p.dropout_p > 0) weight *= keep_scale;
    const T* v = row_of<const T>(in.value, b, kv, p.key_begin_row(b) + j);
    for (int64_t c = 0; c < p.value_dim; ++c) o[c] += weight * v[c];
    add_relative_value(p, t, b, h, i, j, weight, o);
  }
  if (lse) *lse = empty ? -kInf : max + std::log(sum);
  for (int64_t c = 0; c < p.value_dim; ++c) {
    if (!empty || sum > 0) o[c] /= sum;
    if (empty && p.empty_row == EmptyRow::nan) o[c] = std::numeric_limits<T>::quiet_NaN();
  }
  if (!empty || p.empty_row == EmptyRow::uniform) widen_not_finite(p, t, in, b, h, i, max, empty, row, o);
}

template <class T>
void reference_attention_forward(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in,
                                 const AttentionOutput& out) {
  parallel_for(p.batch * p.heads, [&](int64_t task, int) {
    const FloatEnvironment environment;
    ReferenceRow<T> row;
    const int64_t b = task / p.heads, h = task % p.heads;
    for (int64_t i = 0; i < p.query_count(b); ++i) reference_forward_row(p, t, in, out, b, h, i, row);
  });
}

/// The derivatives that a backward needs from reference_scores().
inline ReferenceDerivative derivative_for(const ScoreTerms& t, const AttentionGradient& g) {
  return g.d_captured && t.score_function.captured > 0 ? ReferenceDerivative::behind_function
                                                       : ReferenceDerivative::whole;
}

/// Adds to the gradients of query, key and score terms what those of one row's scores bring, which are
/// row.d_probability; row.derivative and row.raw are as reference_scores() left them.
template <class T>
void reference_spread_row(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in,
                          const AttentionGradient& g, int64_t b, int64_t h, int64_t i, ReferenceRow<T>& row) {
  const int64_t n = p.key_count(b), kv = h / p.group(), qi = p.query_begin(b) + i;
  const T* q = row_of<const T>(in.query, b, h, qi);
  T* d_query = g.d_query ? row_of<T>(g.d_query, b, h, qi) : nullptr;
  const Strides4& bs = t.bias_strides;
  auto *d_bias = static_cast<T*>(g.d_bias), *d_relative = static_cast<T*>(g.d_relative_bias),
       *d_slopes = static_cast<T*>(g.d_alibi_slopes), *d_relative_key = static_cast<T*>(g.d_relative_key);
  T d_slope = 0;  // of this row: one chain over all rows would lose digits in f32
  for (int64_t j = 0; j < n; ++j) {
    if (!row.keep[j]) continue;
    const T d_score = row.d_probability[j];
    const int64_t distance = j - i - p.diagonal_of(b);
    if (d_bias) d_bias[b * bs.batch + h * bs.head + i * bs.query + j * bs.key] += d_score;
    if (d_relative) {
      d_relative[h * t.relative_stride + relative_index(distance, t.relative_center, t.relative_span)] +=
          d_score;
    }
    d_slope -= d_score * static_cast<T>(std::abs(distance));
    row.derivative[j] *= d_score;
  }
  if (d_slopes) d_slopes[b * t.alibi_batch_stride + h * t.alibi_stride] += d_slope;
  if (!t.weights() && derivative_for(t, g) == ReferenceDerivative::behind_function) {
    const ScoreTile tile{row.raw.data(), 1, b, h, i, 1, 0, n};
    for (int64_t j = 0; j < n; ++j) row.derivative[j] = row.keep[j] ? row.derivative[j] : T{0};
    t.score_function.backward(t.score_function.context, tile, row.derivative.data(), g.d_captured);
  }
  for (int64_t j = 0; j < n; ++j) {
    if (!row.keep[j]) continue;
    const T d_dot = static_cast<T>(p.scale) * row.derivative[j];
    const T* k = row_of<const T>(in.key, b, kv, p.key_begin_row(b) + j);
    T* d_key = g.d_key ? row_of<T>(g.d_key, b, kv, p.key_begin_row(b) + j) : nullptr;
    for (int64_t c = 0; c < p.head_dim; ++c) {
      if (d_query) d_query[c] += d_dot * k[c];
      if (d_key) d_key[c] += d_dot * q[c];
    }
    if (!t.relative_key) continue;
    const T* r = relative_table_row<T>(p, t.relative_key, b, h, i, j);
    for (int64_t c = 0; d_query && c < p.head_dim; ++c) d_query[c] += d_dot * r[c];
    if (!d_relative_key) continue;
    const int64_t at = h * t.relative_key.span + relative_row(p, t.relative_key, b, i, j);
    for (int64_t c = 0; c < p.head_dim; ++c) d_relative_key[at * p.head_dim + c] += d_dot * q[c];
  }
}

/// row.d_probability <- the gradients of the final scores from those of weights w, which are d_out · value (dropped)
/// there: d_w = d / normaliser - (1 or the sign of w) · (⟨out, d_out⟩ / normaliser - d_normaliser).
template <class T>
void reference_weight_gradients(const AttentionProblem& p, const ScoreTerms& t, const AttentionGradient& g,
                                int64_t b, int64_t h, int64_t i, T inverse, T d_normaliser,
                                ReferenceRow<T>& row) {
  const int64_t n = p.key_count(b);
  T share = 0;
  if (t.normalise != Normalise::none) {
    for (int64_t j = 0; j < n; ++j) share += row.keep[j] ? row.score[j] * row.d_probability[j] : T{0};
    share = share * inverse * inverse - d_normaliser;
  }
  for (int64_t j = 0; j < n; ++j) {
    const T w = row.score[j];
    const T sign = t.normalise != Normalise::abs_sum ? T{1} : static_cast<T>((w > 0) - (w < 0));
    row.d_probability[j] = row.keep[j] ? row.d_probability[j] * inverse - sign * share : T{0};
  }
  if (!t.score_function || n == 0) return;
  const ScoreTile tile{row.raw.data(), 1, b, h, i, 1, 0, n};
  const ScoreFunction& f = t.score_function;
  if (derivative_for(t, g) == ReferenceDerivative::behind_function) {
    return f.backward(f.context, tile, row.d_probability.data(), g.d_captured);
  }
  f.apply_with_derivative(f.context, tile, row.score.data());
  for (int64_t j = 0; j < n; ++j)
    row.d_probability[j] = row.keep[j] ? row.d_probability[j] * row.score[j] : T{0};
}

/// Adds one row's share to every gradient.
template <class T>
void reference_backward_row(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in,
                            const AttentionGradient& g, int64_t b, int64_t h, int64_t i,
                            ReferenceRow<T>& row) {
  const int64_t n = p.key_count(b), kv = h / p.group(), qi = p.query_begin(b) + i;
  const T lse = row_of<T>(g.lse, b, h, 0)[qi];
  const T* d_out = row_of<const T>(g.d_out, b, h, qi);
  const T keep_scale = static_cast<T>(p.dropout_p < 1 ? 1 / (1 - p.dropout_p) : 0);
  const auto dropped = [&](int64_t j) {  // factor of the probability: 0 or 1 / (1 - p)
    if (p.dropout_p <= 0) return T{1};
    return attention_dropout_keep(p.dropout_key, b, h, i, j, p.dropout_p) ? keep_scale : T{0};
  };
  const auto add_d_value = [&](int64_t j, T weight) {
    const auto add = [&](T* to) {
      for (int64_t c = 0; c < p.value_dim; ++c) to[c] += weight * d_out[c];
    };
    if (g.d_value) add(row_of<T>(g.d_value, b, kv, p.key_begin_row(b) + j));
    if (!g.d_relative_value) return;
    const int64_t at = h * t.relative_value.span + relative_row(p, t.relative_value, b, i, j);
    add(static_cast<T*>(g.d_relative_value) + at * p.value_dim);
  };
  if (t.weights()) {
    reference_scores(p, t, in, b, h, i, ReferenceDerivative::whole, row);
    reference_weights(t, n, b, h, i, row);
    const T inverse = lse == 0 ? T{0} : 1 / lse;
    for (int64_t j = 0; j < n; ++j) {
      if (!row.keep[j]) continue;
      const T factor = dropped(j);
      row.d_probability[j] = factor == 0 ? T{0} : factor * value_product(p, t, in, d_out, b, h, i, j);
      if (factor != 0) add_d_value(j, row.score[j] * inverse * factor);
    }
    const T d_normaliser =
        g.d_lse ? row_of<T>({static_cast<const T*>(g.d_lse), g.lse.strides}, b, h, 0)[qi] : T{0};
    reference_weight_gradients(p, t, g, b, h, i, inverse, d_normaliser, row);
    return reference_spread_row(p, t, in, g, b, h, i, row);
  }
  if (lse == -std::numeric_limits<T>::infinity()) {
    if (p.empty_row != EmptyRow::uniform) return;
    for (int64_t j = 0; j < n; ++j) add_d_value(j, dropped(j) / static_cast<T>(n));
    return;
  }
  reference_scores(p, t, in, b, h, i, derivative_for(t, g), row);
  const RowSoftmax<T> softmax(row.score.data(), row.keep.data(), n, lse, g.partial);
  // Σ_j p_j · dp_j = ⟨out, d_out⟩, less what a gradient of lse gives each score: dlse/ds_j = p_j
  T delta = g.d_lse ? -row_of<T>({static_cast<const T*>(g.d_lse), g.lse.strides}, b, h, 0)[qi] : T{0};
  for (int64_t j = 0; j < n; ++j) {
    if (!row.keep[j]) continue;
    row.score[j] = softmax(row.score[j]);
    const T factor = dropped(j);
    row.d_probability[j] = factor == 0 ? T{0} : factor * value_product(p, t, in, d_out, b, h, i, j);
    delta += row.score[j] * row.d_probability[j];
    if (factor != 0) add_d_value(j, row.score[j] * factor);
  }
  for (int64_t j = 0; j < n; ++j) {
    if (row.keep[j]) row.d_probability[j] = row.score[j] * (row.d_probability[j] - delta);
  }
  reference_spread_row(p, t, in, g, b, h, i, row);
}

/// Zeroes rows of [B, H, T, D]; in a ragged batch the rows of every sequence.
template <class T>
void zero_rows(const Operand& x, const AttentionProblem& p, bool keys, int64_t heads, int64_t dim) {
  for (int64_t b = 0; x && b < p.batch; ++b) {
    const int64_t begin = keys ? p.key_begin_row(b) : p.query_begin(b);
    const int64_t count = keys ? p.key_count(b) : p.query_count(b);
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t r = 0; r < count; ++r) std::fill_n(row_of<T>(x, b, h, begin + r), dim, T{0});
    }
  }
}

/// Zeroes d_bias (its distinct elements) and the gradients of the other terms unless they accumulate.
template <class T>
void zero_score_gradients(const AttentionProblem& p, const ScoreTerms& t, const AttentionGradient& g) {
  if (g.accumulate) return;
  const auto zero = [](void* x, int64_t begin, int64_t count) {
    if (x) std::fill_n(static_cast<T*>(x) + begin, count, T{0});
  };
  zero(g.d_captured, 0, t.score_function.captured);
  const Strides4& s = t.bias_strides;
  const auto extent = [](int64_t n, int64_t stride) { return stride == 0 ? 1 : n; };  // of no samples, too
  for (int64_t b = 0; g.d_bias && b < extent(p.batch, s.batch); ++b) {
    for (int64_t h = 0; h < extent(p.heads, s.head); ++h) {
      for (int64_t i = 0; i < extent(p.queries, s.query); ++i) {
        T* row = static_cast<T*>(g.d_bias) + b * s.batch + h * s.head + i * s.query;
        for (int64_t j = 0; j < extent(p.keys, s.key); ++j) row[j * s.key] = 0;
      }
    }
  }
  for (const HeadGradient& term : head_gradients(t, g)) {
    for (int64_t b = 0; b < extent(p.batch, term.batch_stride); ++b) {
      for (int64_t h = 0; h < p.heads; ++h) {
        zero(term.to, b * term.batch_stride + h * term.head_stride, term.width);
      }
    }
  }
  zero(g.d_relative_key, 0, p.heads * t.relative_key.span * p.head_dim);
  zero(g.d_relative_value, 0, p.heads * t.relative_value.span * p.value_dim);
}

template <class T>
void reference_attention_backward(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in,
                                  const AttentionGradient& g) {
  zero_rows<T>(g.d_query, p, false, p.heads, p.head_dim);
  zero_rows<T>(g.d_key, p, true, p.kv_heads, p.head_dim);
  zero_rows<T>(g.d_value, p, true, p.kv_heads, p.value_dim);
  zero_score_gradients<T>(p, t, g);
  const auto task = [&](int64_t index, int) {
    const FloatEnvironment environment;
    ReferenceRow<T> row;
    const int64_t b = index / p.kv_heads, kv = index % p.kv_heads;
    for (int64_t h = kv * p.group(); h < (kv + 1) * p.group(); ++h) {
      for (int64_t i = 0; i < p.query_count(b); ++i) reference_backward_row(p, t, in, g, b, h, i, row);
    }
  };
  if (g.of_terms()) {  // shared by tasks: one order, one thread
    for (int64_t index = 0; index < p.batch * p.kv_heads; ++index) task(index, 0);
  } else {
    parallel_for(p.batch * p.kv_heads, task);
  }
}

}  // namespace multihead::kernels
