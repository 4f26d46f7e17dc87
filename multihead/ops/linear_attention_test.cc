// Linear attention against its definition, and one result for every split; python/tests/test_arrays.py has more of both,
// and gradients are checked over testing/op_list_array.cc.
#include "multihead/ops/linear_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "multihead/core/error.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/ops/attention/testing-inl.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/matchers.h"

namespace multihead {
namespace {

using testing::SameBits;

constexpr int64_t kTokens = 23, kStateRows = 5, kStateColumns = 37;

struct Given {
  Tensor q, k, v;
  LinearAttentionOptions options;
};

Given given(LinearRule rule, Dtype dtype) {
  Rng rng(7);
  const auto made = [&](const Shape& shape) { return randn(shape, rng, Dtype::f64).to(dtype); };
  Given g{made({kBatch, kHeads, kTokens, kStateRows}),
          scale(made({kBatch, kKeyHeads, kTokens, kStateRows}), 0.4),
          made({kBatch, kKeyHeads, kTokens, kStateColumns}),
          {.rule = rule}};
  if (rule != LinearRule::delta)
    g.options.log_decay = log_sigmoid(made({kBatch, kKeyHeads, kTokens, kStateRows}));
  if (rule != LinearRule::retention) g.options.beta = sigmoid(made({kBatch, kKeyHeads, kTokens}));
  g.options.state = made({kBatch, kKeyHeads, kStateRows, kStateColumns});
  return g;
}

double at(const Tensor& x, std::initializer_list<int64_t> index, double otherwise) {
  return x.defined() ? x.at(index) : otherwise;
}

// One column of one head's outputs, token by token.
double output(const Given& g, int64_t b, int64_t h, int64_t token, int64_t column) {
  const int64_t shared = h / (kHeads / kKeyHeads);
  double state[kStateRows], out = 0;
  for (int64_t i = 0; i < kStateRows; ++i) state[i] = g.options.state.at({b, shared, i, column});
  for (int64_t t = 0; t <= token; ++t) {
    double write = g.v.at({b, shared, t, column}), seen = 0;
    for (int64_t i = 0; i < kStateRows; ++i) {
      state[i] *= std::exp(at(g.options.log_decay, {b, shared, t, i}, 0));
      seen += state[i] * g.k.at({b, shared, t, i});
    }
    if (g.options.rule != LinearRule::retention)
      write = at(g.options.beta, {b, shared, t}, 1) * (write - seen);
    for (int64_t i = 0; i < kStateRows; ++i) state[i] += g.k.at({b, shared, t, i}) * write;
  }
  for (int64_t i = 0; i < kStateRows; ++i) out += state[i] * g.q.at({b, h, token, i});
  return out / std::sqrt(static_cast<double>(kStateRows));
}

TEST(LinearAttentionTest, IsItsDefinition) {
  for (const LinearRule rule : {LinearRule::retention, LinearRule::delta, LinearRule::gated_delta}) {
    const Given exact = given(rule, Dtype::f64), narrow = given(rule, Dtype::f32);
    const Tensor y = linear_attention(exact.q, exact.k, exact.v, exact.options)[0];
    const Tensor z = linear_attention(narrow.q, narrow.k, narrow.v, narrow.options)[0];
    for (const auto& [b, h, t, c] :
         {std::tuple{0, 0, 0, 0}, {0, 1, 22, 36}, {1, 3, 22, 31}, {1, 2, 9, 32}, {0, 3, 15, 5}}) {
      const double expected = output(exact, b, h, t, c);
      EXPECT_NEAR(y.at({b, h, t, c}), expected, 1e-12) << word_of(rule);
      EXPECT_NEAR(z.at({b, h, t, c}), expected, 1e-5) << word_of(rule);
    }
  }
}

TEST(LinearAttentionTest, CallsAfterOneAnotherHaveTheBitsOfOne) {
  for (const LinearRule rule : {LinearRule::retention, LinearRule::delta, LinearRule::gated_delta}) {
    const Given g = given(rule, Dtype::f32);
    const std::vector<Tensor> whole = linear_attention(g.q, g.k, g.v, g.options);
    LinearAttentionOptions o = g.options;
    for (const auto& [begin, end] : {std::pair{0, 10}, {10, 11}, {11, 23}}) {
      const auto part = [begin = begin, end = end](const Tensor& x) {
        return x.defined() ? slice(x, 2, begin, end) : x;
      };
      o.log_decay = part(g.options.log_decay), o.beta = part(g.options.beta);
      const std::vector<Tensor> y = linear_attention(part(g.q), part(g.k), part(g.v), o);
      EXPECT_THAT(y[0], SameBits(part(whole[0])));
      o.state = y[1];
    }
    EXPECT_THAT(o.state, SameBits(whole[1]));
  }
}

TEST(LinearAttentionTest, RefusesWhatARuleDoesNotHave) {
  Given g = given(LinearRule::gated_delta, Dtype::f32);
  g.options.rule = LinearRule::retention;
  EXPECT_THROW(linear_attention(g.q, g.k, g.v, g.options), ValueError);
  g.options.rule = LinearRule::delta;
  EXPECT_THROW(linear_attention(g.q, g.k, g.v, g.options), ValueError);
  EXPECT_THROW(linear_attention(g.q, slice(g.k, 3, 0, 2), g.v), ShapeError);
  EXPECT_THROW(linear_attention(g.q, g.k.to(Dtype::f64), g.v), DtypeError);
}

}  // namespace
}  // namespace multihead
