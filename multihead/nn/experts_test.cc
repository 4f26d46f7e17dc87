#include "multihead/nn/feed_forward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "multihead/core/error.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/reduce.h"
#include "multihead/ops/shape.h"

namespace multihead::nn {
namespace {

constexpr int64_t kModelDim = 3, kHidden = 4, kCount = 5;

Experts random_experts(Rng& rng, Activation activation = Activation::gelu) {
  Experts experts({.count = kCount, .used = 2}, kModelDim, kHidden, activation, rng);
  for (const NamedTensor& parameter : named_parameters(experts)) {
    fill_normal(parameter.tensor, 0, 0.7, rng.next());
  }
  return experts;
}

TEST(ExpertsTest, TheBestExpertsOfEachTokenAreWeighedAndAdded) {
  Rng rng(3);
  const Experts experts = random_experts(rng, Activation::relu);
  const Tensor x = randn({2, 6, kModelDim}, rng), got = experts(x);
  ASSERT_EQ(got.shape(), x.shape());
  const float *in = experts.in.data<float>(), *out = experts.out.data<float>();
  for (int64_t row = 0; row < 12; ++row) {
    const float* token = x.data<float>() + row * kModelDim;
    std::vector<std::pair<double, int64_t>> scores;
    double total = 0;
    for (int64_t e = 0; e < kCount; ++e) {
      double score = 0;
      for (int64_t d = 0; d < kModelDim; ++d)
        score += token[d] * experts.router.weight.data<float>()[e * kModelDim + d];
      scores.emplace_back(std::exp(score), e);
      total += std::exp(score);
    }
    std::sort(scores.rbegin(), scores.rend());
    std::vector<double> want(kModelDim);
    for (int64_t d = 0; d < kModelDim; ++d) want[static_cast<size_t>(d)] = experts.bias.data<float>()[d];
    for (size_t best = 0; best < 2; ++best) {
      for (int64_t h = scores[best].second * kHidden; h < (scores[best].second + 1) * kHidden; ++h) {
        double inner = 0;
        for (int64_t d = 0; d < kModelDim; ++d) inner += token[d] * in[h * kModelDim + d];
        const double weight = scores[best].first / total * std::max(inner, 0.0);
        for (int64_t d = 0; d < kModelDim; ++d)
          want[static_cast<size_t>(d)] += weight * out[h * kModelDim + d];
      }
    }
    for (int64_t d = 0; d < kModelDim; ++d) {
      EXPECT_NEAR(got.data<float>()[row * kModelDim + d], want[static_cast<size_t>(d)], 1e-5);
    }
    const Tensor alone = experts(slice(reshape(x, {-1, kModelDim}), 0, row, row + 1));
    for (int64_t d = 0; d < kModelDim; ++d) {
      EXPECT_EQ(alone.data<float>()[d], got.data<float>()[row * kModelDim + d]);
    }
  }
  EXPECT_THROW(Experts({.count = 2, .used = 3}, kModelDim, kHidden, Activation::gelu, rng), ValueError);
}

TEST(ExpertsTest, PackedMatricesGiveTheSame) {
  for (const WeightDtype dtype : {WeightDtype::f32, WeightDtype::f16, WeightDtype::int8}) {
    Rng rng(4);
    Experts experts = random_experts(rng);
    const Tensor x = randn({9, kModelDim}, rng), want = experts(x);
    std::vector<std::string> names;
    pack_matrices(experts, [&](const std::string& name, const Tensor& weight) {
      if (name == "router.weight") return PackedLinear();
      names.push_back(concat(name, weight.shape()));
      return PackedLinear(weight, dtype);
    });
    EXPECT_EQ(names.size(), 2 * kCount);
    EXPECT_EQ(names[2], concat("in.1", Shape{kHidden, kModelDim}));
    EXPECT_EQ(names[3], concat("out.1", Shape{kModelDim, kHidden}));
    EXPECT_EQ(named_parameters(experts).size(), 2);  // router and bias
    const Tensor got = experts(x), last = experts(slice(x, 0, 8, 9));
    for (int64_t i = 0; i < got.numel(); ++i) {
      const float bound = dtype == WeightDtype::f32 ? 0 : dtype == WeightDtype::f16 ? 5e-3f : .2f;
      EXPECT_NEAR(got.data<float>()[i], want.data<float>()[i], bound);
    }
    for (int64_t d = 0; d < kModelDim; ++d)
      EXPECT_EQ(last.data<float>()[d], got.data<float>()[8 * kModelDim + d]);
  }
}

}  // namespace
}  // namespace multihead::nn
