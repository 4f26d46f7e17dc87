// The fused op against its definition, and its gradients against finite differences, for every option.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "multihead/autograd/tape.h"
#include "multihead/kernels/attention/reference-inl.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/ops/attention/bind-inl.h"
#include "multihead/ops/attention/composed.h"
#include "multihead/ops/attention/terms-inl.h"
#include "multihead/ops/attention/testing-inl.h"
#include "multihead/testing/option_cases.h"
#include "multihead/testing/tensors.h"

namespace multihead {
namespace {

using testing::AttentionDims;
using testing::largest_finite;
using testing::OptionCase;

struct Inputs {
  Tensor query, key, value, weight;  // loss = sum(weight · out)
  AttentionOptions options;
  ScoreMod score_mod;
  bool dropout = false;

  std::vector<Tensor*> defined() {
    std::vector<Tensor*> all = {&query, &key, &value};
    for (const auto member : detail::kLearnedOptions) {
      if ((options.*member).defined()) all.push_back(&(options.*member));
    }
    return all;
  }
  std::vector<Tensor> leaves() const {
    std::vector<Tensor> all;
    Inputs copy = *this;
    for (const Tensor* x : copy.defined()) all.push_back(*x);
    return all;
  }
};

Inputs make_inputs(const OptionCase& c, const AttentionDims& d, Dtype dtype) {
  Rng rng(7);
  Inputs in;
  in.query = randn({d.batch, d.heads, d.queries, d.dim}, rng, dtype);
  in.key = randn({d.batch, d.kv_heads, d.keys, d.dim}, rng, dtype);
  in.value = randn({d.batch, d.kv_heads, d.keys, d.value_dim}, rng, dtype);
  in.weight = randn({d.batch, d.heads, d.queries, d.value_dim}, rng, dtype);
  in.options = c.options(d, dtype, rng);
  in.score_mod = c.score_mod;
  in.dropout = c.dropout;
  for (Tensor* x : in.defined()) x->set_requires_grad();
  return in;
}

// Runs op forward and backward. Memory that the op gets was poisoned before.
template <class Op>
Result run(const Inputs& in, Op op) {
  for (const Tensor& x : in.leaves()) x.set_grad({});
  std::vector<Tensor> poison;
  for (const Tensor& x : in.leaves()) poison.push_back(Tensor::full(x.shape(), NAN, x.dtype()));
  poison.push_back(Tensor::full(in.weight.shape(), NAN, in.weight.dtype()));
  poison.clear();

  Rng rng(99);
  AttentionOptions options = in.options;
  if (in.dropout) options.rng = &rng;
  Result result;
  options.lse = &result.lse;
  Tape tape;
  result.out = op(in.query, in.key, in.value, options, in.score_mod);
  tape.backward(result.out, in.weight);
  for (const Tensor& x : in.leaves()) result.gradients.push_back(x.grad());
  return result;
}

Result fused(const Inputs& in) { return run(in, attention); }
Result composed(const Inputs& in) { return run(in, attention_composed); }

// The sink of every head joins the softmax of its rows: out and lse become those with it. Returns its
// gradient.
Tensor join_sinks(const Tensor& sinks, const Tensor& d_out, Result& r) {
  const int64_t heads = sinks.numel(), queries = r.lse.size(2), dim = r.out.size(3);
  const Tensor gradient = Tensor::zeros({heads});
  for (int64_t row = 0; row < r.lse.numel(); ++row) {
    const int64_t h = row / queries % heads;
    float& lse = r.lse.data<float>()[row];
    if (std::isinf(lse)) continue;
    const float sink = sinks.data<float>()[h], largest = std::max(lse, sink);
    const float all = largest + std::log(std::exp(lse - largest) + std::exp(sink - largest));
    float dot = 0;
    for (int64_t c = row * dim; c < (row + 1) * dim; ++c) {
      r.out.data<float>()[c] *= std::exp(lse - all);
      dot += r.out.data<float>()[c] * d_out.data<float>()[c];
    }
    lse = all;
    gradient.data<float>()[h] -= std::exp(sink - all) * dot;
  }
  return gradient;
}

// The plain f32 loop: its own error is the measuring stick of the fast path's.
Result naive(const Inputs& in, const AttentionDims& d) {
  Rng rng(99);
  AttentionOptions options = in.options;
  if (in.dropout) options.rng = &rng;
  detail::AttentionSizes sizes;
  sizes.batch = d.batch, sizes.heads = d.heads, sizes.kv_heads = d.kv_heads;
  sizes.queries = d.queries, sizes.keys = d.keys, sizes.head_dim = d.dim, sizes.value_dim = d.value_dim;
  const detail::BoundAttention bound("naive", sizes, options, in.score_mod, Dtype::f32);
  const auto operand = [](const Tensor& x) {
    return kernels::Operand{x.data<float>(), {x.strides()[0], x.strides()[1], x.strides()[2]}};
  };
  Result r{empty_like(in.weight), Tensor::empty({d.batch, d.heads, d.queries}), {}};
  for (const Tensor& x : in.leaves()) r.gradients.push_back(empty_like(x));
  const kernels::AttentionInput input = {operand(in.query), operand(in.key), operand(in.value)};
  const kernels::AttentionOutput output = {operand(r.out), operand(r.lse)};
  kernels::reference_attention_forward<float>(bound.problem(), bound.terms(), input, output);
  if (in.options.sinks.defined()) {
    r.gradients.back() = join_sinks(in.options.sinks, in.weight, r);
  }
  kernels::AttentionGradient g;
  g.out = output.out, g.lse = output.lse, g.d_out = operand(in.weight);
  g.d_query = operand(r.gradients[0]), g.d_key = operand(r.gradients[1]), g.d_value = operand(r.gradients[2]);
  std::vector<std::pair<Tensor, Tensor>>
      terms;  // as the kernel writes them; one row for all heads gets their sum
  size_t next = 3;
  for (const auto option : detail::kLearnedOptions) {
    if (!(in.options.*option).defined()) continue;
    const Tensor& sum = r.gradients[next++];
    for (const detail::AttentionTerm& term : detail::attention_terms()) {
      if (term.tensor != option || term.gradient == nullptr) continue;
      terms.emplace_back(empty_like(bound.tensor(option)), sum);
      g.*term.gradient = terms.back().first.raw();
    }
  }
  kernels::reference_attention_backward<float>(bound.problem(), bound.terms(), input, g);
  for (const auto& [every_head, sum] : terms) {
    std::fill_n(sum.data<float>(), sum.numel(), 0.0f);
    for (int64_t i = 0; i < every_head.numel(); ++i)
      sum.data<float>()[i % sum.numel()] += every_head.data<float>()[i];
  }
  return r;
}

double largest_finite_difference(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  double error = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isfinite(y[i])) error = std::max(error, std::abs(x[i] - y[i]));
  }
  return error;
}

// |a - b| <= tolerance · (1 + max|b|), the same infinities, no NaN.
void expect_close(const Tensor& a, const Tensor& b, double tolerance, const std::string& what) {
  ASSERT_TRUE(a.defined()) << what;
  ASSERT_EQ(a.shape(), b.shape()) << what;
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  double error = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isinf(y[i])) {
      ASSERT_EQ(x[i], y[i]) << what << " at " << i;
    } else {
      ASSERT_TRUE(std::isfinite(x[i])) << what << " at " << i;
      error = std::max(error, std::abs(x[i] - y[i]));
    }
  }
  EXPECT_LE(error, tolerance * (1 + largest_finite(b))) << what;
}

void expect_same(const Result& a, const Result& b, double forward, double backward, const std::string& what) {
  expect_close(a.out, b.out, forward, what + ": out");
  expect_close(a.lse, b.lse, forward, what + ": lse");
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (size_t i = 0; i < a.gradients.size(); ++i) {
    expect_close(a.gradients[i], b.gradients[i], backward, what + ": gradient " + std::to_string(i));
  }
}

// f32: error <= 1.0 (forward) or 1.5 (gradients) times the naive loop's, plus a floor times 1 +
// max|definition|: 1e-6 forward, 5e-6 for gradients, 1e-6 √n for a gradient that sums n pairs.
void expect_accurate(const Inputs& in, const AttentionDims& d, const std::string& name) {
  const std::string what = name + " " + std::to_string(d.queries) + "x" + std::to_string(d.keys);
  const Result a = fused(in), b = naive(in, d), exact = composed(in);
  const auto check = [&](const Tensor& x, const Tensor& y, const Tensor& z, double factor, double floor,
                         const std::string& part) {
    const double ulps = 1 + largest_finite(exact.lse) / 8;
    const double stick = factor * largest_finite_difference(y, z) / (1 + largest_finite(z));
    expect_close(x, z, stick + floor * ulps, what + ": " + part);
  };
  check(a.out, b.out, exact.out, 1.0, 1e-6, "out");
  check(a.lse, b.lse, exact.lse, 1.0, 1e-6, "lse");
  const double pairs = static_cast<double>(d.batch * d.heads * d.queries * d.keys);
  for (size_t i = 0; i < a.gradients.size(); ++i) {
    const double summed = i < 3 ? 25 : pairs / static_cast<double>(a.gradients[i].numel());
    check(a.gradients[i], b.gradients[i], exact.gradients[i], 1.5, 1e-6 * std::sqrt(std::max(summed, 25.0)),
          "gradient " + std::to_string(i));
  }
}

const AttentionDims kDims[] = {
    {.batch = 2, .heads = 6, .kv_heads = 3, .queries = 5, .keys = 7, .dim = 4, .value_dim = 3},
    {.batch = 3, .heads = 2, .kv_heads = 2, .queries = 7, .keys = 5, .dim = 3, .value_dim = 5},
    {.batch = 1, .heads = 1, .kv_heads = 1, .queries = 1, .keys = 1, .dim = 1, .value_dim = 1},
};

TEST(AttentionMatrixTest, F64EqualsTheDefinition) {
  for (const OptionCase& c : testing::attention_cases()) {
    for (const AttentionDims& d : kDims) {
      const Inputs in = make_inputs(c, d, Dtype::f64);
      expect_same(fused(in), composed(in), 1e-13, 1e-12, c.name);
    }
  }
}

TEST(AttentionMatrixTest, F32EqualsTheDefinition) {
  std::vector<AttentionDims> dims(std::begin(kDims), std::end(kDims));
  dims.push_back(
      {.batch = 2, .heads = 3, .kv_heads = 1, .queries = 67, .keys = 71, .dim = 13, .value_dim = 11});
  for (const OptionCase& c : testing::attention_cases()) {
    for (const AttentionDims& d : dims) {
      const Inputs in = make_inputs(c, d, Dtype::f32);
      expect_accurate(in, d, c.name);
    }
  }
}

TEST(AttentionMatrixTest, LengthsAroundBlockEdges) {
  for (const int64_t queries : {1, 16, 63, 64, 65}) {
    for (const int64_t keys : {15, 17, 255, 256, 257}) {
      for (const OptionCase& c : testing::attention_cases()) {
        if (c.name != "causal" && c.name != "lengths" && c.name != "everything" && c.name != "window")
          continue;
        const AttentionDims d{.batch = 1,
                              .heads = 2,
                              .kv_heads = 1,
                              .queries = queries,
                              .keys = keys,
                              .dim = 5,
                              .value_dim = 3};
        const Inputs in = make_inputs(c, d, Dtype::f32);
        expect_accurate(in, d, c.name);
      }
    }
  }
}

double loss(const Inputs& in) {
  Rng rng(99);
  AttentionOptions options = in.options;
  if (in.dropout) options.rng = &rng;
  const std::vector<double> y =
      attention(in.query, in.key, in.value, options, in.score_mod).to_vector<double>();
  const std::vector<double> w = in.weight.to_vector<double>();
  double sum = 0;
  for (size_t i = 0; i < y.size(); ++i) sum += y[i] * w[i];
  return sum;
}

TEST(AttentionMatrixTest, GradientsAreThoseOfFiniteDifferences) {
  const double step = 1e-5;
  for (const OptionCase& c : testing::attention_cases()) {
    const Inputs in = make_inputs(c, kDims[0], Dtype::f64);
    const Result result = fused(in);
    const std::vector<Tensor> leaves = in.leaves();
    for (size_t n = 0; n < leaves.size(); ++n) {
      const std::vector<double> gradient = result.gradients[n].to_vector<double>();
      double* x = leaves[n].data<double>();
      for (size_t i = 0; i < gradient.size(); i += 1 + gradient.size() / 23) {
        if (!std::isfinite(x[i])) continue;
        const double kept = x[i];
        x[i] = kept + step;
        const double above = loss(in);
        x[i] = kept - step;
        const double below = loss(in);
        x[i] = kept;
        const double expected = (above - below) / (2 * step);
        EXPECT_NEAR(gradient[i], expected, 1e-8 * (1 + std::abs(expected)))
            << c.name << " leaf " << n << " at " << i;
      }
    }
  }
}

// A gradient that is not requested costs nothing and changes no other.
TEST(AttentionMatrixTest, EachGradientAlone) {
  const OptionCase c = testing::attention_cases().back();
  Inputs in = make_inputs(c, kDims[0], Dtype::f64);
  const Result all = fused(in);
  const std::vector<Tensor*> leaves = in.defined();
  ASSERT_EQ(leaves.size(), 3 + detail::kLearnedCount);
  for (size_t n = 0; n < leaves.size(); ++n) {
    for (size_t m = 0; m < leaves.size(); ++m) {
      leaves[m]->set_requires_grad(false);
      leaves[m]->set_requires_grad(m == n);
    }
    Rng rng(99);
    AttentionOptions options = in.options;
    options.rng = &rng;
    Tape tape;
    tape.backward(attention(in.query, in.key, in.value, options, in.score_mod), in.weight);
    for (size_t m = 0; m < leaves.size(); ++m) EXPECT_EQ(leaves[m]->grad().defined(), m == n);
    expect_close(leaves[n]->grad(), all.gradients[n], 0, "leaf " + std::to_string(n));
  }
}

}  // namespace
}  // namespace multihead
