#include "multihead/embed/pooling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/testing/gradcheck.h"

namespace multihead::embed {
namespace {

using enum Pooling;

models::TokenRows rows_of(const std::vector<int64_t>& lengths) {
  std::vector<std::vector<int32_t>> sequences;
  for (const int64_t length : lengths) sequences.emplace_back(static_cast<size_t>(length), 0);
  return models::TokenRows::of(sequences);
}

TEST(PoolingTest, EachIsWhatItsNameSays) {
  const Tensor x = Tensor::of<float>({3, 2}, {1, 9, 3, 5, -4, 2});
  const std::vector<Pooling> all = {cls, mean, max, mean_sqrt, last};
  const Tensor out = pooled(all, x, rows_of({2, 1}));
  const auto root = static_cast<float>(std::sqrt(2.0));
  EXPECT_EQ(out.to_vector<float>(), (std::vector<float>{1,  9, 2,  7, 3,  9, 4 / root, 14 / root, 3,  5,  //
                                                        -4, 2, -4, 2, -4, 2, -4,       2,         -4, 2}));
  EXPECT_THROW(pooled(all, x, rows_of({2})), ShapeError);
}

TEST(PoolingTest, Gradients) {
  Rng rng(3);
  const models::TokenRows rows = rows_of({3, 1, 5});
  const Tensor x = randn({9, 4}, rng, Dtype::f64);
  for (const Pooling how : {cls, mean, max, mean_sqrt, last, weighted_mean}) {
    const std::vector<Pooling> both = {how, mean};
    const auto result = testing::gradcheck_one(
        [&](const std::vector<Tensor>& in) { return pooled(both, in[0], rows); }, {x.clone()});
    EXPECT_TRUE(result.ok) << word_of(how) << ": " << result.message;
  }
}

TEST(PoolingTest, StatesAreMixedByWeight) {
  const std::vector<Tensor> states = {Tensor::of<float>({2}, {1, 2}), Tensor::of<float>({2}, {5, -2})};
  EXPECT_EQ(mixed(states, std::vector<float>{1, 3}).to_vector<float>(), (std::vector<float>{4, -1}));
  EXPECT_THROW(mixed(states, std::vector<float>{1}), ShapeError);
  Rng rng(5);
  const auto result = testing::gradcheck_one(
      [](const std::vector<Tensor>& in) {
        return mixed(in, std::vector<float>{1, -2, 3});
      },
      {randn({3, 4}, rng, Dtype::f64), randn({3, 4}, rng, Dtype::f64), randn({3, 4}, rng, Dtype::f64)});
  EXPECT_TRUE(result.ok) << result.message;
}

TEST(PoolingTest, RowsOfLengthOneAndTheirGradient) {
  const Tensor x = Tensor::of<float>({2, 2}, {3, 4, 0, 0});
  EXPECT_EQ(normalized_rows(x).to_vector<float>(), (std::vector<float>{0.6F, 0.8F, 0, 0}));
  Rng rng(4);
  const auto result = testing::gradcheck_one(
      [](const std::vector<Tensor>& in) { return normalized_rows(in[0]); }, {randn({3, 5}, rng, Dtype::f64)});
  EXPECT_TRUE(result.ok) << result.message;
  EXPECT_THROW(normalized_rows(Tensor::zeros({3})), ShapeError);
}

}  // namespace
}  // namespace multihead::embed
