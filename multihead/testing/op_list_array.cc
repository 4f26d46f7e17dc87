// Cases of ops/array, of linear attention and of attention over whole rows.
#include "multihead/ops/array/compare.h"
#include "multihead/ops/array/gather.h"
#include "multihead/ops/array/scan.h"
#include "multihead/ops/array/solve.h"
#include "multihead/ops/array/sort.h"
#include "multihead/ops/array/windows.h"
#include "multihead/ops/attention/rows/attention_rows.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear_attention.h"
#include "multihead/ops/reduce.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/op_list-inl.h"

namespace multihead::testing {
namespace {

using Inputs = std::vector<Tensor>;

void compare_cases(List& list) {
  using Binary = Tensor (*)(const Tensor&, const Tensor&);
  for (const auto& [name, op] : {std::pair<const char*, Binary>{"maximum", maximum}, {"minimum", minimum}}) {
    const auto call = [op = op](const Inputs& x) { return square(op(x[0], x[1])); };
    list.one(name, "same shape", call, {list.normal({2, 3, 5}), list.normal({2, 3, 5})});
    list.one(name, "both broadcast", call, {list.normal({3, 1}), list.normal({2, 1, 5})});
  }
  list.one("clamp", "", [](const Inputs& x) { return square(clamp(x[0], -0.7, 0.4)); },
           {list.normal({3, 7})});
  const auto power = [](const Inputs& x) { return pow(x[0], x[1]); };
  list.one("pow", "same shape", power, {list.positive({3, 5}), list.normal({3, 5})});
  list.one("pow", "broadcast", power, {list.positive({3, 1}), list.normal({5})});
  for (const double exponent : {-1.5, 0.0, 1.0, 2.0, 3.0}) {
    list.one("pow", "number", [exponent](const Inputs& x) { return pow(x[0], exponent); },
             {list.positive({7})});
  }
}

void gather_cases(List& list) {
  const Tensor twice = Tensor::of<int64_t>({2, 2}, {1, -1, 0, 1}),
               column = Tensor::of<int64_t>({2, 1}, {2, 0});
  for (const int axis : {0, 1, 2}) {
    list.one("take", "axis " + std::to_string(axis),
             [=](const Inputs& x) { return square(take(x[0], twice, axis)); }, {list.normal({3, 2, 4})});
  }
  list.one("take_along_axis", "rows",
           [=](const Inputs& x) { return square(take_along_axis(x[0], twice, 1)); }, {list.normal({2, 3})});
  list.one("take_along_axis", "both broadcast",
           [=](const Inputs& x) { return square(take_along_axis(x[0], column, 1)); }, {list.normal({1, 3})});
  list.one("take_along_axis", "of columns",
           [=](const Inputs& x) { return square(take_along_axis(x[0], twice, 0)); }, {list.normal({3, 2})});
  const Tensor none = Tensor::zeros({0, 2}, Dtype::i64);
  list.one("take_along_axis", "nothing",
           [=](const Inputs& x) { return square(take_along_axis(x[0], none, 1)); }, {list.normal({0, 3})});
  list.one("index", "neighbours",
           [=](const Inputs& x) {
             return square(index(x[0], {Tensor(), twice, column}));
           },
           {list.normal({2, 3, 4, 2})});
  list.one("index", "apart",
           [=](const Inputs& x) {
             return square(index(x[0], {twice, Tensor(), column}));
           },
           {list.normal({3, 2, 4})});
}

void order_cases(List& list) {
  list.one("sort", "", [](const Inputs& x) { return mul(sort(x[0]), x[0]); }, {list.normal({3, 5})});
  list.one("sort", "descending", [](const Inputs& x) { return mul(sort(x[0], 0, true), x[0]); },
           {list.normal({5, 3})});
  list.one("topk", "", [](const Inputs& x) { return square(topk(x[0], 2)[0]); }, {list.normal({3, 5})});
  list.one("topk", "smallest", [](const Inputs& x) { return square(topk(x[0], 2, 0, false)[0]); },
           {list.normal({5, 3})});
  for (const bool reverse : {false, true}) {
    list.one("cumsum", reverse ? "reverse" : "",
             [=](const Inputs& x) { return square(cumsum(x[0], 1, reverse)); }, {list.normal({2, 5, 3})});
  }
}

void solve_cases(List& list) {
  // Diagonals away from 0.
  const auto solve = [](const TriangleOptions& o) {
    return [o](const Inputs& x) {
      const Tensor diagonal = Tensor::of<double>({3, 3}, {3, 0, 0, 0, 3, 0, 0, 0, 3});
      return solve_triangular(add(x[0], diagonal.to(x[0].dtype())), x[1], o);
    };
  };
  for (const bool lower : {true, false}) {
    for (const bool transposed : {true, false}) {
      list.one("solve_triangular", lower ? "lower" : "upper", solve({lower, transposed, !lower}),
               {list.normal({2, 3, 3}), list.normal({2, 3, 5})});
    }
  }
  list.one("solve_triangular", "broadcast", solve({}), {list.normal({3, 3}), list.normal({2, 3, 1})});
}

void window_cases(List& list) {
  list.one("pad", "", [](const Inputs& x) { return square(pad(x[0], 1, 2, 1, 0.5)); }, {list.normal({2, 3})});
  for (const int64_t count : {2, -1, 9}) {
    list.one("shift", std::to_string(count),
             [=](const Inputs& x) { return square(shift(x[0], count, 0, 0.5)); }, {list.normal({3, 2})});
    list.one("roll", std::to_string(count), [=](const Inputs& x) { return mul(roll(x[0], count, 1), x[0]); },
             {list.normal({2, 5})});
  }
  list.one("slice", "steps", [](const Inputs& x) { return square(slice(x[0], 1, 1, 6, 2)); },
           {list.normal({2, 7})});
  const auto convolve = [](const ConvolutionOptions& o) {
    return [o](const Inputs& x) { return square(conv1d(x[0], x[1], x.size() > 2 ? x[2] : Tensor(), o)); };
  };
  list.one("conv1d", "bias", convolve({}),
           {list.normal({2, 3, 5}), list.normal({4, 3, 2}), list.normal({4})});
  list.one("conv1d", "strided, padded, dilated", convolve({2, 1, 2, 1}),
           {list.normal({1, 2, 7}), list.normal({3, 2, 3})});
  list.one("conv1d", "per channel", convolve({1, 2, 1, 3}), {list.normal({2, 3, 5}), list.normal({3, 1, 3})});
  list.one("conv1d", "groups", convolve({1, 0, 1, 2}), {list.normal({1, 4, 5}), list.normal({6, 2, 2})});
}

// Decays and betas from any numbers.
Tensor decay_of(const Tensor& x) { return log_sigmoid(x); }

void linear_attention_cases(List& list) {
  const auto call = [](LinearRule rule, bool gqa_lengths) {
    return [=](const Inputs& x) {
      LinearAttentionOptions o{.rule = rule, .chunk = 2};
      if (rule != LinearRule::delta) o.log_decay = decay_of(x[3]);
      if (rule != LinearRule::retention) o.beta = sigmoid(x[4]);
      o.state = x[5];
      if (gqa_lengths) o.lengths = Tensor::of<int64_t>({2}, {5, 2});
      const std::vector<Tensor> y = linear_attention(x[0], scale(x[1], 0.5), x[2], o);
      return Inputs{square(y[0]), square(y[1])};
    };
  };
  const auto inputs = [&](const Shape& decay) {
    return Inputs{list.normal({2, 4, 5, 3}), list.normal({2, 2, 5, 3}), list.normal({2, 2, 5, 2}),
                  list.normal(decay),        list.normal({2, 2, 5}),    list.normal({2, 2, 3, 2})};
  };
  list.many("linear_attention", "retention", call(LinearRule::retention, false), inputs({2, 2, 5}));
  list.many("linear_attention", "retention, gated rows, lengths", call(LinearRule::retention, true),
            inputs({2, 2, 5, 3}));
  list.many("linear_attention", "delta", call(LinearRule::delta, true), inputs({2, 2, 5}));
  list.many("linear_attention", "gated delta", call(LinearRule::gated_delta, false), inputs({2, 2, 5, 3}));
  list.one("linear_attention", "plain, output alone",
           [](const Inputs& x) { return square(linear_attention(x[0], x[1], x[2])[0]); },
           {list.normal({1, 1, 4, 3}), list.normal({1, 1, 4, 3}), list.normal({1, 1, 4, 35})});
}

void attention_rows_cases(List& list) {
  const auto call = [](const Inputs& x) {
    const auto weights = [](const ScoreRows& rows, const Inputs& in) {
      const Tensor left = log_sigmoid(scale(rows.scores, -1));
      const Tensor share = exp(add(log_sigmoid(rows.scores), sub(cumsum(left, 3, true), left)));
      return mul(mul(share, in[0]), sigmoid(sum(rows.query, 3, true)));
    };
    return attention_rows(x[0], x[1], x[2], weights, {.mask = causal(), .inputs = {x[3]}});
  };
  list.one("attention_rows", "stick-breaking", call,
           {list.normal({2, 4, 5, 3}), list.normal({2, 2, 6, 3}), list.normal({2, 2, 6, 2}),
            list.normal({4, 1, 1})});
}

}  // namespace

void add_array_cases(List& list) {
  compare_cases(list);
  gather_cases(list);
  order_cases(list);
  solve_cases(list);
  window_cases(list);
  linear_attention_cases(list);
  attention_rows_cases(list);
}

}  // namespace multihead::testing
