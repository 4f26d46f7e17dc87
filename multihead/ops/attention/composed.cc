#include "multihead/ops/attention/composed.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/ops/attention/bind-inl.h"
#include "multihead/ops/attention/call-inl.h"
#include "multihead/ops/attention/check-inl.h"
#include "multihead/ops/attention/masks/check-inl.h"

namespace multihead {
namespace {

using Doubles = std::vector<double>;
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Pair {
  int64_t b, h, i, j;
};

// The definition of one call.
struct Problem {
  int64_t batch, heads, kv_heads, queries, keys, dim, value_dim;
  AttentionOptions options;
  ScoreMod score_mod;
  double scale = 1, dropout_p = 0;
  uint64_t dropout_key = 0;
  Doubles q, k, v, relative_key;

  detail::MaskPair pair(const Pair& at) const { return {at.b, at.h, at.i, at.j, queries, keys}; }
  // Offset of the positions that biases and score functions see.
  int64_t position_offset(int64_t b) const {
    const Diagonal* diagonal = nullptr;
    for (const auto& part : options.mask.parts()) {
      if (diagonal == nullptr) diagonal = part->diagonal();
    }
    return diagonal ? diagonal->offset_at(pair({b, 0, 0, 0})) : keys - queries;
  }
  bool allows(const Pair& at) const {
    const auto& parts = options.mask.parts();
    return std::all_of(parts.begin(), parts.end(), [&](const auto& part) { return part->allows(pair(at)); });
  }
  const double* query_row(const Pair& at) const {
    return q.data() + ((at.b * heads + at.h) * queries + at.i) * dim;
  }
  int64_t kv_row(const Pair& at) const { return (at.b * kv_heads + at.h / (heads / kv_heads)) * keys + at.j; }
  int64_t relative_index(const Tensor& table, const Pair& at) const {
    const int64_t span = table.size(1);
    const int64_t center = options.relative_center < 0 ? (span - 1) / 2 : options.relative_center;
    return std::clamp<int64_t>(at.j - at.i - position_offset(at.b) + center, 0, span - 1);
  }
  /// Where the vector of a pair begins in relative_key.
  size_t relative_key_row(const Pair& at) const {
    const Tensor& table = options.relative_key;
    const int64_t head = table.size(0) == 1 ? 0 : at.h;
    return static_cast<size_t>((head * table.size(1) + relative_index(table, at)) * dim);
  }
  int64_t alibi_index(const Pair& at) const {
    return (options.alibi_slopes.rank() == 2 ? at.b * heads : 0) + at.h;
  }
  int64_t relative_row(const Pair& at) const { return options.relative_bias.size(0) == 1 ? 0 : at.h; }
  /// scale · ⟨query, key⟩.
  double product(const Pair& at) const;
  /// The final score and its derivative by that; by the score function's result if that captured anything.
  std::pair<double, double> score(const Pair& at) const;
  /// The gradient of the product from that of the score function's result; `captured` takes up its share.
  double through_function(const Pair& at, double d, double* captured) const;
};

double Problem::product(const Pair& at) const {
  const double* a = query_row(at);
  const double* c = k.data() + kv_row(at) * dim;
  double s = 0;
  for (int64_t d = 0; d < dim; ++d) s += a[d] * c[d];
  if (options.relative_key.defined()) {
    const double* r = relative_key.data() + relative_key_row(at);
    for (int64_t d = 0; d < dim; ++d) s += a[d] * r[d];
  }
  return s * scale;
}

double Problem::through_function(const Pair& at, double d, double* captured) const {
  const detail::ScoreContext context{score_mod.function(), nullptr, position_offset(at.b)};
  double s = product(at);
  score_mod.bind(Dtype::f64, &context)
      .backward(&context, {&s, 1, at.b, at.h, at.i, 1, at.j, 1}, &d, captured);
  return d;
}

std::pair<double, double> Problem::score(const Pair& at) const {
  double s = product(at), derivative = 1;
  if (score_mod) {
    const detail::ScoreContext context{score_mod.function(), nullptr, position_offset(at.b)};
    score_mod.bind(Dtype::f64, &context)
        .apply_with_derivative(&context, {&s, 1, at.b, at.h, at.i, 1, at.j, 1}, &derivative);
    if (!score_mod.captured().empty()) derivative = 1;
  }
  if (options.softcap > 0) {
    const double cap = double{options.softcap}, t = std::tanh(s / cap);
    s = cap * t;
    derivative *= 1 - t * t;
  }
  const double distance = static_cast<double>(std::abs(at.i + position_offset(at.b) - at.j));
  if (options.bias.defined()) s += detail::broadcast_at(options.bias, at.b, at.h, at.i, at.j);
  if (options.relative_bias.defined()) {
    s += options.relative_bias.at({relative_row(at), relative_index(options.relative_bias, at)});
  }
  if (options.alibi_slopes.defined()) {
    const Tensor& slopes = options.alibi_slopes;
    s -= distance * (slopes.rank() == 2 ? slopes.at({at.b, at.h}) : slopes.at({at.h}));
  }
  return {s, derivative};
}

// What the backward needs of one row of scores.
struct Row {
  Doubles probability, derivative, factor;  // factor: 0 where dropped, else 1 / (1 - p)
  std::vector<bool> allowed;
  double lse = -kInf;
  double sink = 0;  // its probability; of a row without keys 1, as there is nothing else
  bool empty = true;
};

Row make_row(const Problem& p, int64_t b, int64_t h, int64_t i) {
  Row row;
  double max = -kInf;
  for (int64_t j = 0; j < p.keys; ++j) {
    const Pair at{b, h, i, j};
    const bool allowed = p.allows(at);
    const auto [score, derivative] = allowed ? p.score(at) : std::pair{-kInf, 0.0};
    const bool kept =
        p.dropout_p <= 0 || kernels::attention_dropout_keep(p.dropout_key, b, h, i, j, p.dropout_p);
    row.allowed.push_back(allowed);
    row.probability.push_back(score);
    row.derivative.push_back(derivative);
    row.factor.push_back(!kept ? 0.0 : p.dropout_p > 0 ? 1 / (1 - p.dropout_p) : 1.0);
    row.empty = row.empty && score == -kInf;
    max = std::max(max, score);
  }
  const double sink = p.options.sinks.defined() ? p.options.sinks.at({h}) : -kInf;
  max = std::max(max, sink);
  double sum = sink == -kInf ? 0 : std::exp(sink - max);
  for (double& x : row.probability) sum += (x = row.empty ? 0 : std::exp(x - max));
  for (double& x : row.probability) x = row.empty ? 0 : x / sum;
  if (sum != 0) row.lse = max + std::log(sum);
  row.sink = sink == -kInf ? 0 : std::exp(sink - row.lse);
  if (row.empty && p.options.empty_row == EmptyRow::uniform) {
    std::fill(row.probability.begin(), row.probability.end(), 1.0 / static_cast<double>(p.keys));
    row.allowed.assign(row.allowed.size(), true);
  }
  return row;
}

struct DoubleGradients {
  Doubles q, k, v, bias, alibi, relative, relative_key, sinks, captured;
};

// Index of the element of `shape` that broadcasts to (b, h, i, j).
size_t broadcast_index(const Shape& shape, const Pair& at) {
  const int64_t index[4] = {at.b, at.h, at.i, at.j};
  const Shape strides = contiguous_strides(shape);
  int64_t offset = 0;
  for (int axis = 1; axis <= shape.rank(); ++axis) {
    if (shape[-axis] != 1) offset += index[4 - axis] * strides[-axis];
  }
  return static_cast<size_t>(offset);
}

// The gradients of one row of results: of the output, of the log-sum-exp, of the weights (or null).
struct RowGradients {
  const double* out;
  double lse;
  const double* weights;
};

void backward_row(const Problem& p, const Row& row, const Pair& first, const RowGradients& d,
                  DoubleGradients& g) {
  Doubles dp(row.probability.size(), 0.0);
  double delta = -d.lse;
  for (size_t j = 0; j < dp.size(); ++j) {
    if (!row.allowed[j]) continue;
    const int64_t kv = p.kv_row({first.b, first.h, first.i, static_cast<int64_t>(j)}) * p.value_dim;
    for (int64_t c = 0; row.factor[j] != 0 && c < p.value_dim; ++c) {
      dp[j] += row.factor[j] * d.out[c] * p.v[static_cast<size_t>(kv + c)];
      g.v[static_cast<size_t>(kv + c)] += row.probability[j] * row.factor[j] * d.out[c];
    }
    if (d.weights) dp[j] += d.weights[j];
    delta += row.probability[j] * dp[j];
  }
  if (row.empty) delta = -d.lse;
  if (!g.sinks.empty()) g.sinks[static_cast<size_t>(first.h)] -= row.sink * delta;
  if (row.empty) return;
  for (size_t j = 0; j < dp.size(); ++j) {
    if (!row.allowed[j]) continue;
    const Pair at{first.b, first.h, first.i, static_cast<int64_t>(j)};
    const double ds = row.probability[j] * (dp[j] - delta);
    if (!g.bias.empty()) g.bias[broadcast_index(p.options.bias.shape(), at)] += ds;
    if (!g.alibi.empty()) {
      g.alibi[static_cast<size_t>(p.alibi_index(at))] -=
          ds * static_cast<double>(std::abs(at.i + p.position_offset(at.b) - at.j));
    }
    if (!g.relative.empty()) {
      const int64_t span = p.options.relative_bias.size(1);
      const int64_t index = p.relative_index(p.options.relative_bias, at);
      g.relative[static_cast<size_t>(p.relative_row(at) * span + index)] += ds;
    }
    double d_product = ds * row.derivative[j];
    if (!g.captured.empty()) d_product = p.through_function(at, d_product, g.captured.data());
    const double d_dot = d_product * p.scale;
    const int64_t q = (p.query_row(at) - p.q.data()), k = p.kv_row(at) * p.dim;
    for (int64_t d = 0; d < p.dim; ++d) {
      g.q[static_cast<size_t>(q + d)] += d_dot * p.k[static_cast<size_t>(k + d)];
      g.k[static_cast<size_t>(k + d)] += d_dot * p.q[static_cast<size_t>(q + d)];
    }
    if (g.relative_key.empty()) continue;
    const size_t row = p.relative_key_row(at);
    for (int64_t d = 0; d < p.dim; ++d) {
      g.q[static_cast<size_t>(q + d)] += d_dot * p.relative_key[row + static_cast<size_t>(d)];
      g.relative_key[row + static_cast<size_t>(d)] += d_dot * p.q[static_cast<size_t>(q + d)];
    }
  }
}

Tensor of_doubles(const Doubles& values, const Shape& shape, Dtype dtype) {
  return Tensor::of<double>(shape, values).to(dtype);
}

// Refuses what attention() refuses; the generator stays where it is.
void check_call(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionOptions& options,
                const ScoreMod& score_mod) {
  constexpr const char* who = "attention_composed";
  MH_CHECK(options.layout == Layout::bhtd, ValueError, who, ": only layout bhtd");
  const detail::AttentionSizes sizes = detail::check_attention(who, query, key, value, options.layout);
  AttentionOptions checked = options;
  checked.rng = nullptr;
  detail::BoundAttention(who, sizes, checked, score_mod, query.dtype());
}

Problem make_problem(const Tensor& query, const Tensor& key, const Tensor& value,
                     const AttentionOptions& options, const ScoreMod& score_mod) {
  check_call(query, key, value, options, score_mod);
  Problem p{query.size(0), query.size(1), key.size(1), query.size(2), key.size(2),
            query.size(3), value.size(3), options,     score_mod};
  p.scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(p.dim)));
  if (options.rng && options.dropout_p > 0) {
    p.dropout_p = double{options.dropout_p};
    p.dropout_key = detail::dropout_key(options.rng->next());
  }
  p.q = query.to_vector<double>();
  p.k = key.to_vector<double>();
  p.v = value.to_vector<double>();
  if (options.relative_key.defined()) p.relative_key = options.relative_key.to_vector<double>();
  return p;
}

template <class F>
void each_row(const Problem& p, F&& f) {
  for (int64_t n = 0; n < p.batch * p.heads * p.queries; ++n) {
    f(n, Pair{n / (p.heads * p.queries), n / p.queries % p.heads, n % p.queries, 0});
  }
}

struct Computed {
  std::shared_ptr<const Problem> problem;
  std::shared_ptr<const std::vector<Row>> rows;
};

// `d`: of output, log-sum-exps, weights; undefined or absent where they had no use.
Gradients composed_gradients(const Computed& call, const std::vector<Tensor>& d, Dtype dtype) {
  const Problem& p = *call.problem;
  const AttentionOptions& o = p.options;
  const auto numbers = [](const Tensor& x, int64_t count) {
    return x.defined() ? x.to_vector<double>() : Doubles(static_cast<size_t>(count), 0.0);
  };
  const int64_t row_count = p.batch * p.heads * p.queries;
  const bool has_weights = d.size() > 2 && d[2].defined();
  const Doubles d_out = numbers(d[0], row_count * p.value_dim), d_lse = numbers(d[1], row_count),
                d_weights = numbers(has_weights ? d[2] : Tensor(), 0);
  const auto zeros = [](const Tensor& x) {
    return Doubles(x.defined() ? static_cast<size_t>(x.numel()) : 0, 0.0);
  };
  int64_t captured = 0;
  for (const Tensor& x : p.score_mod.captured()) captured += x.numel();
  DoubleGradients g{Doubles(p.q.size(), 0.0),
                    Doubles(p.k.size(), 0.0),
                    Doubles(p.v.size(), 0.0),
                    zeros(o.bias),
                    zeros(o.alibi_slopes),
                    zeros(o.relative_bias),
                    zeros(o.relative_key),
                    zeros(o.sinks),
                    Doubles(static_cast<size_t>(captured))};
  each_row(p, [&](int64_t n, const Pair& at) {
    const double* weights = has_weights ? d_weights.data() + n * p.keys : nullptr;
    backward_row(p, (*call.rows)[static_cast<size_t>(n)], at,
                 {d_out.data() + n * p.value_dim, d_lse[static_cast<size_t>(n)], weights}, g);
  });
  const auto term = [&](const Doubles& values, const Tensor& like) {
    return like.defined() ? of_doubles(values, like.shape(), dtype) : Tensor();
  };
  const Shape kv = {p.batch, p.kv_heads, p.keys};
  Gradients all = {of_doubles(g.q, {p.batch, p.heads, p.queries, p.dim}, dtype),
                   of_doubles(g.k, kv.inserted(3, p.dim), dtype),
                   of_doubles(g.v, kv.inserted(3, p.value_dim), dtype),
                   term(g.bias, o.bias),
                   term(g.alibi, o.alibi_slopes),
                   term(g.relative, o.relative_bias),
                   term(g.relative_key, o.relative_key),
                   term(g.sinks, o.sinks)};
  auto next = g.captured.begin();
  for (const Tensor& x : p.score_mod.captured()) {
    all.push_back(of_doubles(Doubles(next, next + x.numel()), x.shape(),
                             x.dtype() == Dtype::f64 ? Dtype::f64 : Dtype::f32));
    next += x.numel();
  }
  return all;
}

// Records the output, and what the options received.
Tensor record_composed(const Computed& call, const Tensor& query, const Tensor& key, const Tensor& value,
                       const Tensor& result) {
  const AttentionOptions& o = call.problem->options;
  std::vector<Tensor> inputs = {query,          key,    value, o.bias, o.alibi_slopes, o.relative_bias,
                                o.relative_key, o.sinks};
  const auto& captured = call.problem->score_mod.captured();
  inputs.insert(inputs.end(), captured.begin(), captured.end());
  const auto learns = [](const Tensor& x) { return x.defined() && x.requires_grad(); };
  if (Tape::current() == nullptr || std::none_of(inputs.begin(), inputs.end(), learns)) return result;
  std::vector<std::shared_ptr<GradientSlot>> slots;
  for (const Tensor& x : inputs) slots.push_back(x.defined() ? x.gradient_slot() : nullptr);
  Tensor unused = Tensor::empty({0});
  std::vector<Tensor> outputs = {result, o.lse ? *o.lse : unused};
  if (o.capture) outputs.push_back(o.capture->weights);
  Tape::current()->add(std::move(slots), outputs,
                       [call, dtype = detail::arithmetic_dtype(query.dtype())](const std::vector<Tensor>& d) {
                         return composed_gradients(call, d, dtype);
                       });
  if (o.lse) *o.lse = outputs[1];
  if (o.capture) o.capture->weights = outputs[2];
  return outputs[0];
}

}  // namespace

Tensor attention_composed(const Tensor& query, const Tensor& key, const Tensor& value,
                          const AttentionOptions& options, const ScoreMod& score_mod) {
  const auto p = std::make_shared<const Problem>(make_problem(query, key, value, options, score_mod));
  const auto rows = std::make_shared<std::vector<Row>>();
  Doubles out(static_cast<size_t>(p->batch * p->heads * p->queries * p->value_dim), 0.0), lse, weights;
  each_row(*p, [&](int64_t n, Pair at) {
    rows->push_back(make_row(*p, at.b, at.h, at.i));
    const Row& row = rows->back();
    MH_CHECK(!row.empty || options.empty_row != EmptyRow::error, ValueError, "attention_composed: empty row");
    double* o = out.data() + n * p->value_dim;
    for (at.j = 0; at.j < p->keys; ++at.j) {
      const auto j = static_cast<size_t>(at.j);
      weights.push_back(row.probability[j]);
      if (!row.allowed[j] || row.factor[j] == 0) continue;
      const double* v = p->v.data() + p->kv_row(at) * p->value_dim;
      for (int64_t c = 0; c < p->value_dim; ++c) o[c] += row.probability[j] * row.factor[j] * v[c];
    }
    if (row.empty && options.empty_row == EmptyRow::nan) std::fill_n(o, p->value_dim, std::nan(""));
    lse.push_back(row.lse);
  });
  const Dtype dtype = detail::arithmetic_dtype(query.dtype());
  if (options.lse) *options.lse = of_doubles(lse, {p->batch, p->heads, p->queries}, dtype);
  if (options.capture) {
    options.capture->weights = of_doubles(weights, {p->batch, p->heads, p->queries, p->keys}, dtype);
  }
  const Tensor result =
      of_doubles(out, {p->batch, p->heads, p->queries, p->value_dim}, Dtype::f64).to(query.dtype());
  return record_composed({p, rows}, query, key, value, result);
}

}  // namespace multihead
