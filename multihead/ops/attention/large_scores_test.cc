// Rows whose scores are all near a large number, such as a mask's -1e9: their log-sum-exp says too little of their
// probabilities, which add to one in the backward pass, too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "multihead/autograd/tape.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/ops/attention/testing-inl.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/everywhere.h"

namespace multihead {
namespace {

constexpr int64_t kManyKeys = 300, kHeadDim = 32;
constexpr double kLowest = std::numeric_limits<float>::lowest();

struct Case {
  Mask mask = {};
  double shift = 0;  // added to all scores of the even rows
  double scale = 1;  // of all queries
  bool hides_even_queries = false;
  Dtype dtype = Dtype::f32;
  int64_t queries = 70;
};

// `weights`: the sum of each row's, as the first number of all values is one.
struct SummedGradients {
  std::vector<double> query, key, value, weights;
};

// Of the sum of all outputs.
SummedGradients gradients_of(const Case& c) {
  Rng rng(3);
  const auto random = [&](int64_t heads, int64_t rows, double scale) {
    Tensor x = Tensor::empty({1, heads, rows, kHeadDim});
    fill_uniform(x, -scale, scale, rng.next());
    return x;
  };
  Tensor query = random(kHeads, c.queries, c.scale), key = random(2, kManyKeys, 1),
         value = random(2, kManyKeys, 1);
  for (int64_t k = 0; k < 2 * kManyKeys; ++k) value.data<float>()[k * kHeadDim] = 1;
  Tensor bias = Tensor::zeros({c.queries, kManyKeys});
  for (int64_t i = 0; i < c.queries; i += 2) {
    std::fill_n(bias.data<float>() + i * kManyKeys, kManyKeys, static_cast<float>(c.shift));
    for (int64_t h = 0; h < kHeads && c.hides_even_queries; ++h)
      std::fill_n(query.data<float>() + (h * c.queries + i) * kHeadDim, kHeadDim, 0.0f);
  }
  for (Tensor* x : {&query, &key, &value}) *x = x->to(c.dtype), x->set_requires_grad(true);
  AttentionOptions options = {.mask = c.mask};
  if (c.shift != 0) options.bias = c.dtype == Dtype::f64 ? bias.to(Dtype::f64) : bias;
  Tape tape;
  const Tensor out = attention(query, key, value, options);
  tape.backward(out, Tensor::full(out.shape(), 1, c.dtype));
  return {query.grad().to_vector<double>(), key.grad().to_vector<double>(), value.grad().to_vector<double>(),
          slice(out.detach(), -1, 0, 1).to_vector<double>()};
}

void expect_near(const std::vector<double>& got, const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], tolerance) << i;
}

// The largest distance of a column's sum from what probabilities that add to one give.
double excess(const std::vector<double>& d_value, int64_t queries = Case().queries) {
  double most = 0;
  for (int64_t head = 0; head < 2; ++head) {
    for (int64_t c = 0; c < kHeadDim; ++c) {
      double sum = 0;
      for (int64_t k = 0; k < kManyKeys; ++k)
        sum += d_value[static_cast<size_t>((head * kManyKeys + k) * kHeadDim + c)];
      most = std::max(most, std::abs(sum - static_cast<double>(2 * queries)));
    }
  }
  return most;
}

class LargeScoresTest : public ::testing::Test {
 protected:
  template <class Body>
  void everywhere(const Body& body) {
    const testing::EverywhereScope restore;
    for (const kernels::Isa isa : {kernels::Isa::baseline, kernels::Isa::avx2, kernels::current_isa()}) {
      if (isa > kernels::best_isa()) continue;
      kernels::set_isa(isa);
      for (const Mask& mask : {Mask(), causal(), window(40, 0)}) {
        for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f64}) body(mask, dtype);
      }
    }
  }
};

// All scores of a row are the lowest float then, as if its query were zero.
TEST_F(LargeScoresTest, ARowUnderTheLowestFloatSeesAllKeysAlike) {
  everywhere([](const Mask& mask, Dtype dtype) {
    if (dtype == Dtype::f64) return;  // whose lowest number is another
    const double tolerance = dtype == Dtype::bf16 ? 0.3 : 1e-4;
    const SummedGradients got = gradients_of({.mask = mask, .shift = kLowest, .dtype = dtype});
    const SummedGradients expected = gradients_of({.mask = mask, .hides_even_queries = true, .dtype = dtype});
    expect_near(got.value, expected.value, tolerance);
  });
}

TEST_F(LargeScoresTest, ProbabilitiesAddToOne) {
  everywhere([](const Mask& mask, Dtype dtype) {
    for (const double shift : {-1e4, -1e6, -1e9, 1e9, kLowest}) {
      const SummedGradients got = gradients_of({.mask = mask, .shift = shift, .dtype = dtype});
      EXPECT_LT(excess(got.value), dtype == Dtype::bf16 ? 1.5 : 1e-3) << shift;
    }
  });
}

TEST_F(LargeScoresTest, LargeQueriesDoToo) {
  everywhere([](const Mask& mask, Dtype dtype) {
    for (const double scale : {1e3, 1e5, 1e8, 1e12}) {
      for (const int64_t queries : {70, 3}) {
        const SummedGradients got =
            gradients_of({.mask = mask, .scale = scale, .dtype = dtype, .queries = queries});
        EXPECT_LT(excess(got.value, queries), dtype == Dtype::bf16 ? 1.5 : 1e-3) << scale;
        for (const double x : got.key) ASSERT_LE(std::abs(x), 7000 * scale);
        for (const double x : got.weights) ASSERT_NEAR(x, 1, dtype == Dtype::bf16 ? 0.01 : 1e-5) << scale;
      }
    }
  });
}

}  // namespace
}  // namespace multihead
