#include "multihead/testing/op_list.h"

#include <set>

#include "multihead/core/tensor/rng.h"
#include "multihead/kernels/elementwise/unary_functions.h"
#include "multihead/ops/activation.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/ops/attention/masked_softmax.h"
#include "multihead/ops/dropout.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/embedding.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/loss.h"
#include "multihead/ops/norm.h"
#include "multihead/ops/reduce.h"
#include "multihead/ops/rotary.h"
#include "multihead/ops/shape.h"
#include "multihead/ops/softmax.h"
#include "multihead/testing/op_list-inl.h"

namespace multihead::testing {
namespace {

using Inputs = std::vector<Tensor>;
using BinaryOp = Tensor (*)(const Tensor&, const Tensor&);
using UnaryOp = Tensor (*)(const Tensor&);

void elementwise_cases(List& list) {
  const std::pair<const char*, BinaryOp> binaries[] = {
      {"add", add}, {"sub", sub}, {"mul", mul}, {"div", div}};
  for (const auto& [name, op] : binaries) {
    const auto call = [op = op](const Inputs& x) { return op(x[0], x[1]); };
    list.one(name, "same shape", call, {list.normal({2, 3, 5}), list.positive({2, 3, 5})});
    list.one(name, "row", call, {list.normal({2, 3, 5}), list.positive({5})});
    list.one(name, "both broadcast", call, {list.normal({3, 1, 5}), list.positive({7, 1})});
    list.one(name, "scalar", call, {list.normal({3, 2}), list.positive({})});
    list.one(name, "with itself", [op = op](const Inputs& x) { return op(x[0], x[0]); },
             {list.positive({7})});
    list.one(name, "transposed", [op = op](const Inputs& x) { return op(transpose(x[0], 0, 1), x[1]); },
             {list.normal({5, 3}), list.positive({3, 5})});
  }
  const std::pair<const char*, UnaryOp> unaries[] = {
#define MH_UNARY(name, ...) {#name, name},
      MH_UNARY_FUNCTIONS(MH_UNARY)
#undef MH_UNARY
  };
  for (const auto& [name, op] : unaries) {
    list.one(name, "", [op = op](const Inputs& x) { return op(x[0]); }, {list.positive({3, 7})});
    list.one(name, "strided", [op = op](const Inputs& x) { return op(transpose(x[0], 0, 1)); },
             {list.positive({3, 5})});
  }
  list.one("scale", "", [](const Inputs& x) { return scale(x[0], -1.7); }, {list.normal({11})});
  list.one("add_scalar", "", [](const Inputs& x) { return square(add_scalar(x[0], 0.3)); },
           {list.normal({11})});
  const Tensor mask = Tensor::of<bool>({3, 1, 5}, {true, false, true, true, false, false, false, true, false,
                                                   true, true, true, false, true, false});
  list.one("where", "broadcast", [mask](const Inputs& x) { return where(mask, x[0], x[1]); },
           {list.normal({2, 5}), list.normal({3, 2, 1})});
}

void sum_cases(List& list) {
  list.one("sum", "all", [](const Inputs& x) { return sum(x[0]); }, {list.normal({3, 5})});
  for (const int axis : {0, 1, 2, -1}) {
    list.one("sum", "axis " + std::to_string(axis),
             [axis](const Inputs& x) { return square(sum(x[0], axis)); }, {list.normal({2, 3, 5})});
  }
  list.one("sum", "keep axis", [](const Inputs& x) { return mul(sum(x[0], 1, true), x[0]); },
           {list.normal({2, 3})});
  list.one("mean", "", [](const Inputs& x) { return square(mean(x[0])); }, {list.normal({3, 5})});
  list.one("mean", "axes",
           [](const Inputs& x) {
             return square(mean(x[0], {0, -1}));
           },
           {list.normal({2, 3, 5})});
  list.one("max", "axes",
           [](const Inputs& x) {
             return square(max(x[0], {2, 0}, true));
           },
           {list.normal({2, 3, 5})});
  list.one("min", "one axis of a view", [](const Inputs& x) { return square(min(transpose(x[0], 0, 1), 0)); },
           {list.normal({3, 5})});
  list.one("sum_to", "",
           [](const Inputs& x) {
             return square(sum_to(x[0], {3, 1}));
           },
           {list.normal({2, 3, 5})});
}

void shape_cases(List& list) {
  list.one("reshape", "view",
           [](const Inputs& x) {
             return square(reshape(x[0], {-1, 5}));
           },
           {list.normal({2, 3, 5})});
  list.one("reshape", "copy", [](const Inputs& x) { return square(reshape(transpose(x[0], 0, 1), {15})); },
           {list.normal({3, 5})});
  list.one("transpose", "", [](const Inputs& x) { return mul(transpose(x[0], 0, -1), x[1]); },
           {list.normal({2, 3, 5}), list.normal({5, 3, 2})});
  list.one("permute", "",
           [](const Inputs& x) {
             return mul(permute(x[0], {2, 0, 1}), x[1]);
           },
           {list.normal({2, 3, 5}), list.normal({5, 2, 3})});
  list.one("slice", "middle", [](const Inputs& x) { return square(slice(x[0], 1, 1, 3)); },
           {list.normal({2, 5, 3})});
  list.one("slice", "overlapping",
           [](const Inputs& x) { return mul(slice(x[0], 0, 0, 3), slice(x[0], 0, 2, 5)); },
           {list.normal({5, 2})});
  list.many("split", "",
            [](const Inputs& x) {
              return split(square(x[0]), {2, 3, 1}, 1);
            },
            {list.normal({2, 6})});
  list.many("split", "one piece unused",
            [](const Inputs& x) {
              const auto parts = split(x[0], {2, 3}, 0);
              return Inputs{square(parts[1])};
            },
            {list.normal({5, 3})});
  list.one("concat", "",
           [](const Inputs& x) {
             return square(concat({x[0], x[1], x[0]}, 1));
           },
           {list.normal({2, 3}), list.normal({2, 5})});
  list.one("expand", "",
           [](const Inputs& x) {
             return square(expand(x[0], {2, 3, 5}));
           },
           {list.normal({3, 1})});
  list.one("contiguous", "", [](const Inputs& x) { return square(contiguous(transpose(x[0], 0, 1))); },
           {list.normal({3, 5})});
  list.one("cast", "to itself", [](const Inputs& x) { return square(cast(x[0], Dtype::f64)); },
           {list.normal({7})});
}

void activation_cases(List& list) {
  const std::pair<const char*, Activation> kinds[] = {{"relu", Activation::relu},
                                                      {"gelu", Activation::gelu},
                                                      {"gelu_tanh", Activation::gelu_tanh},
                                                      {"silu", Activation::silu}};
  const UnaryOp named[] = {relu, gelu, gelu_tanh, silu};
  for (size_t i = 0; i < std::size(kinds); ++i) {
    const auto [name, kind] = kinds[i];
    list.one(name, "", [op = named[i]](const Inputs& x) { return op(x[0]); }, {list.bent({3, 7})});
    list.one("activate", name, [k = kind](const Inputs& x) { return activate(transpose(x[0], 0, 1), k); },
             {list.bent({3, 5})});
    list.one("gated", name, [k = kind](const Inputs& x) { return gated(x[0], x[1], k); },
             {list.bent({3, 5}), list.normal({3, 5})});
    list.one("glu", name, [k = kind](const Inputs& x) { return glu(x[0], k); }, {list.bent({2, 3, 10})});
    list.one(
        "linear", std::string("bias + ") + name + " + residual",
        [k = kind](const Inputs& x) { return linear(x[0], x[1], x[2], {.activation = k, .residual = x[3]}); },
        {list.normal({2, 3, 5}), list.normal({7, 5}), list.normal({7}), list.normal({2, 3, 7})});
    list.one("linear", std::string("of ") + name,
             [k = kind](const Inputs& x) {
               return linear(x[0], x[1], x[2], {.residual = x[3], .input_activation = k});
             },
             {list.bent({2, 3, 5}), list.normal({7, 5}), list.normal({7}), list.normal({2, 3, 7})});
    list.one("linear", std::string("bias + ") + name,
             [k = kind](const Inputs& x) { return linear(x[0], x[1], x[2], {.activation = k}); },
             {list.normal({11, 5}), list.normal({7, 5}), list.normal({7})});
  }
}

void product_cases(List& list) {
  const auto product = [](const Inputs& x) { return matmul(x[0], x[1]); };
  list.one("matmul", "matrices", product, {list.normal({2, 5}), list.normal({5, 3})});
  list.one("matmul", "batched", product, {list.normal({2, 3, 5}), list.normal({2, 5, 7})});
  list.one("matmul", "shared right", product, {list.normal({2, 3, 5}), list.normal({5, 7})});
  list.one("matmul", "shared left", product, {list.normal({3, 5}), list.normal({2, 5, 7})});
  list.one("matmul", "both broadcast", product, {list.normal({2, 1, 3, 5}), list.normal({3, 5, 2})});
  list.one("matmul", "row", product, {list.normal({5}), list.normal({2, 5, 3})});
  list.one("matmul", "column", product, {list.normal({2, 3, 5}), list.normal({5})});
  list.one("matmul", "transposed", [](const Inputs& x) { return matmul(x[0], transpose(x[1], -1, -2)); },
           {list.normal({2, 3, 5}), list.normal({2, 7, 5})});
  list.one(
      "matmul", "heads in place",
      [](const Inputs& x) { return matmul(transpose(x[0], 1, 2), transpose(transpose(x[1], 1, 2), 2, 3)); },
      {list.normal({2, 3, 2, 5}), list.normal({2, 7, 2, 5})});
  list.one("matmul", "with itself", [](const Inputs& x) { return matmul(x[0], x[0]); },
           {list.normal({3, 3})});
  list.one("linear", "plain", [](const Inputs& x) { return linear(x[0], x[1]); },
           {list.normal({3, 5}), list.normal({2, 5})});
  list.one("linear", "residual", [](const Inputs& x) { return linear(x[0], x[1], {}, {.residual = x[2]}); },
           {list.normal({3, 5}), list.normal({2, 5}), list.normal({3, 2})});
  list.one("linear", "strided input",
           [](const Inputs& x) { return linear(slice(x[0], 1, 1, 4), x[1], x[2]); },
           {list.normal({5, 7}), list.normal({2, 3}), list.normal({2})});
  list.one("linear", "tied twice", [](const Inputs& x) { return linear(linear(x[0], x[1]), x[1]); },
           {list.normal({2, 3}), list.normal({3, 3})});
}

void norm_cases(List& list) {
  list.one("layer_norm", "affine", [](const Inputs& x) { return layer_norm(x[0], x[1], x[2]); },
           {list.normal({2, 3, 7}), list.normal({7}), list.normal({7})});
  list.one("layer_norm", "weight", [](const Inputs& x) { return layer_norm(x[0], x[1]); },
           {list.normal({3, 5}), list.normal({5})});
  list.one("layer_norm", "bias", [](const Inputs& x) { return layer_norm(x[0], {}, x[1]); },
           {list.normal({3, 5}), list.normal({5})});
  list.one("layer_norm", "plain", [](const Inputs& x) { return layer_norm(x[0]); }, {list.normal({3, 5})});
  list.one("layer_norm", "many rows", [](const Inputs& x) { return layer_norm(x[0], x[1], x[2], 0.5); },
           {list.normal({131, 3}), list.normal({3}), list.normal({3})});
  list.one("rms_norm", "weight", [](const Inputs& x) { return rms_norm(x[0], x[1]); },
           {list.normal({2, 3, 7}), list.normal({7})});
  list.one("rms_norm", "plain", [](const Inputs& x) { return rms_norm(x[0]); }, {list.normal({3, 5})});
  const auto both = [](const AddNorm& r) { return Inputs{r.sum, r.normed}; };
  list.many("add_layer_norm", "",
            [both](const Inputs& x) { return both(add_layer_norm(x[0], x[1], x[2], x[3])); },
            {list.normal({3, 5}), list.normal({3, 5}), list.normal({5}), list.normal({5})});
  list.many("add_layer_norm", "sum unused",
            [](const Inputs& x) { return Inputs{add_layer_norm(x[0], x[1], x[2], x[3]).normed}; },
            {list.normal({3, 5}), list.normal({3, 5}), list.normal({5}), list.normal({5})});
  list.many("add_layer_norm", "norm unused",
            [](const Inputs& x) { return Inputs{square(add_layer_norm(x[0], x[1]).sum)}; },
            {list.normal({3, 5}), list.normal({3, 5})});
  list.many("add_rms_norm", "", [both](const Inputs& x) { return both(add_rms_norm(x[0], x[1], x[2])); },
            {list.normal({3, 5}), list.normal({3, 5}), list.normal({5})});
}

void row_cases(List& list) {
  for (const int axis : {-1, 0, 1}) {
    list.one("softmax", "axis " + std::to_string(axis),
             [axis](const Inputs& x) { return softmax(x[0], axis); }, {list.normal({3, 5, 2})});
    list.one("log_softmax", "axis " + std::to_string(axis),
             [axis](const Inputs& x) { return log_softmax(x[0], axis); }, {list.normal({3, 5, 2})});
  }
  for (const bool per_query : {false, true}) {
    const Tensor valid =
        per_query ? Tensor::of<int64_t>({2, 3}, {5, 1, 3, 2, 4, 0}) : Tensor::of<int64_t>({2}, {2, 5});
    const char* variant = per_query ? "per query" : "per sample";
    list.one("masked_scores", variant,
             [valid](const Inputs& x) { return square(masked_scores(x[0], valid, 2)); },
             {list.normal({2, 3, 5})});
    list.one("masked_softmax", variant, [valid](const Inputs& x) { return masked_softmax(x[0], valid); },
             {list.normal({2, 3, 5})});
  }
  const Tensor ids = Tensor::of<int64_t>({2, 4}, {3, 0, 3, 6, 1, 3, 6, 5});
  list.one("embedding", "repeated ids", [ids](const Inputs& x) { return square(embedding(x[0], ids)); },
           {list.normal({7, 5})});
  list.one("dropout", "",
           [](const Inputs& x) {
             Rng rng(3);
             return square(dropout(x[0], 0.4, &rng));
           },
           {list.normal({7, 31})});
  for (const Activation activation : {Activation::relu, Activation::gelu}) {
    list.one("activate_dropout", activation == Activation::relu ? "relu" : "gelu",
             [activation](const Inputs& x) {
               Rng rng(5);
               return square(activate_dropout(x[0], activation, 0.4, &rng));
             },
             {list.normal({7, 11})});
  }
  list.one("add_dropout", "",
           [](const Inputs& x) {
             Rng rng(3);
             return square(add_dropout(x[0], x[1], 0.4, &rng));
           },
           {list.normal({5, 29}), list.normal({5, 29})});
}

void loss_cases(List& list) {
  const Tensor targets = Tensor::of<int64_t>({2, 3}, {4, 0, -100, 6, 6, 2});
  const std::pair<const char*, CrossEntropyOptions> variants[] = {
      {"mean", {}},
      {"sum", {.reduction = Reduction::sum}},
      {"none", {.reduction = Reduction::none}},
      {"smoothed", {.label_smoothing = 0.3}},
      {"all ignored but one", {.ignore_index = 6, .label_smoothing = 0.1}},
  };
  for (const auto& [name, options] : variants) {
    const Tensor t = options.ignore_index == 6 ? Tensor::of<int64_t>({2, 3}, {6, 6, 6, 1, 6, 6}) : targets;
    list.one("cross_entropy", name,
             [t, o = options](const Inputs& x) { return square(cross_entropy(x[0], t, o)); },
             {list.normal({2, 3, 7})});
    list.one("cross_entropy", std::string(name) + ", in place",
             [t, o = options](const Inputs& x) { return square(cross_entropy(scale(x[0], 1.3), t, o)); },
             {list.normal({2, 3, 7})});
    if (options.reduction == Reduction::none) continue;
    list.one("linear_cross_entropy", name,
             [t, o = options](const Inputs& x) { return square(linear_cross_entropy(x[0], x[1], t, o)); },
             {list.normal({2, 3, 5}), list.normal({7, 5})});
  }
}

// Sizes of zero where a case above brings tensors or sizes of its own, which emptied() cannot change.
void empty_cases(List& list) {
  const Tensor none = Tensor::empty({0, 3}, Dtype::i64), no_flags = Tensor::empty({0, 5}, Dtype::boolean);
  list.one("where", "nothing", [no_flags](const Inputs& x) { return where(no_flags, x[0], x[1]); },
           {list.normal({0, 5}), list.normal({1, 5})});
  list.one("embedding", "no ids", [none](const Inputs& x) { return square(embedding(x[0], none)); },
           {list.normal({7, 5})});
  for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    const CrossEntropyOptions options{.label_smoothing = 0.1, .reduction = reduction};
    list.one("cross_entropy", "no rows",
             [none, options](const Inputs& x) { return square(cross_entropy(x[0], none, options)); },
             {list.normal({0, 3, 7})});
    if (reduction == Reduction::none) continue;
    list.one(
        "linear_cross_entropy", "no rows",
        [none, options](const Inputs& x) { return square(linear_cross_entropy(x[0], x[1], none, options)); },
        {list.normal({0, 3, 5}), list.normal({7, 5})});
  }
  for (const Shape& shape : {Shape{0, 3, 5}, Shape{2, 0, 5}, Shape{2, 3, 0}}) {
    const Tensor valid = Tensor::zeros({shape[0]}, Dtype::i64);
    list.one("masked_scores", "nothing",
             [valid](const Inputs& x) { return square(masked_scores(x[0], valid)); }, {list.normal(shape)});
    list.one("masked_softmax", "nothing", [valid](const Inputs& x) { return masked_softmax(x[0], valid); },
             {list.normal(shape)});
  }
  list.many("split", "into nothing and all",
            [](const Inputs& x) {
              return split(square(x[0]), {0, 5, 0}, 1);
            },
            {list.normal({2, 5})});
  list.one("expand", "to nothing",
           [](const Inputs& x) {
             return square(expand(x[0], {0, 3, 5}));
           },
           {list.normal({3, 1})});
  list.one("expand", "nothing",
           [](const Inputs& x) {
             return square(expand(x[0], {2, 0, 5}));
           },
           {list.normal({0, 1})});
  list.one("sum_to", "of nothing",
           [](const Inputs& x) {
             return square(sum_to(x[0], {3, 1}));
           },
           {list.normal({0, 3, 5})});
  list.one("slice", "nothing", [](const Inputs& x) { return square(slice(x[0], 1, 2, 2)); },
           {list.normal({2, 5})});
  const Tensor no_rows = Tensor::zeros({3}, Dtype::i64), no_sequences = Tensor::zeros({1}, Dtype::i64);
  for (const Tensor& cu : {no_rows, no_sequences}) {
    list.one(
        "attention_ragged", cu.numel() == 1 ? "no sequences" : "empty sequences",
        [cu](const Inputs& x) { return attention_ragged(x[0], x[1], x[2], cu, cu, {.relative_key = x[3]}); },
        {list.normal({0, 2, 3}), list.normal({0, 1, 3}), list.normal({0, 1, 3}), list.normal({2, 6, 3})});
  }
  const RotaryTable table = rotary_table(0, {5}, rotary_frequencies(4), RotaryLayout::halves);
  list.one("rotary", "no tokens", [table](const Inputs& x) { return rotary(x[0], table, 1); },
           {list.normal({2, 0, 2, 5})});
}

}  // namespace

std::vector<OpCase> op_cases() {
  List list;
  elementwise_cases(list);
  sum_cases(list);
  shape_cases(list);
  activation_cases(list);
  product_cases(list);
  norm_cases(list);
  row_cases(list);
  loss_cases(list);
  add_attention_cases(list);
  add_array_cases(list);
  empty_cases(list);
  return std::move(list.cases);
}

std::vector<OpCase> emptied(const OpCase& c) {
  std::set<int64_t> sizes;
  for (const Tensor& x : c.inputs) sizes.insert(x.shape().begin(), x.shape().end());
  std::vector<OpCase> cases;
  for (const int64_t size : sizes) {
    if (size == 0) continue;
    OpCase without = c;
    without.variant += " without " + std::to_string(size);
    for (Tensor& x : without.inputs) {
      Shape shape = x.shape();
      for (int axis = 0; axis < shape.rank(); ++axis) shape[axis] = shape[axis] == size ? 0 : shape[axis];
      if (!(shape == x.shape())) x = Tensor::full(shape, 0.75, Dtype::f64);
    }
    cases.push_back(std::move(without));
  }
  return cases;
}

}  // namespace multihead::testing
