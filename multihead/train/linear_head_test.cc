#include "multihead/train/linear_head.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "multihead/core/error.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/shape.h"
#include "multihead/ops/softmax.h"

namespace multihead::train {
namespace {

using models::ProblemType;

constexpr int64_t kRows = 60, kDim = 4;

class LinearHeadTest : public ::testing::Test {
 protected:
  Rng rng_ = Rng(3);
  Tensor x_ = randn({kRows, kDim}, rng_);

  // A label by the largest column, some of them wrong.
  Tensor labels(int64_t count) const {
    std::vector<int64_t> all;
    for (int64_t i = 0; i < kRows; ++i) {
      const float* row = x_.data<float>() + i * kDim;
      all.push_back(i % 7 == 0 ? i % count : std::max_element(row, row + count) - row);
    }
    return Tensor::of<int64_t>({kRows}, all);
  }
  static double largest(const Tensor& x) {
    double most = 0;
    for (const double value : x.to_vector<double>()) most = std::max(most, std::abs(value));
    return most;
  }
  // c · Σ losses + |weight|²/2 is lowest where `errors`, probabilities less targets [n, labels], pull as much as the
  // weights do, and sum to 0.
  void expect_minimum(const LinearHead& head, const Tensor& errors, double c) const {
    const Tensor pull = add(scale(matmul(transpose(errors, 0, 1), x_), c), head.weight);
    EXPECT_LT(largest(pull), 2e-4);
    EXPECT_LT(largest(sum(errors, 0)), 2e-4);
  }
};

TEST_F(LinearHeadTest, OfSeveralClassesTheSoftmaxIsAtItsMinimum) {
  const Tensor y = labels(3);
  const LinearHead head = fit_linear_head(x_, y, 3, ProblemType::single_label, {.c = 2});
  EXPECT_TRUE(head.converged);
  Tensor errors = softmax(linear(x_, head.weight, head.bias));
  double loss = 0;
  for (int64_t i = 0; i < kRows; ++i) {
    float& own = errors.data<float>()[i * 3 + y.data<int64_t>()[i]];
    loss -= std::log(own) / kRows;
    own -= 1;
  }
  EXPECT_NEAR(head.loss, loss, 1e-5);
  expect_minimum(head, errors, 2);
}

TEST_F(LinearHeadTest, OfTwoClassesOneWeightIsRestrained) {
  const Tensor y = labels(2);
  const LinearHead head = fit_linear_head(x_, y, 2, ProblemType::single_label, {.c = 0.5});
  const Tensor weight = scale(slice(head.weight, 0, 1, 2), 2), bias = scale(slice(head.bias, 0, 1, 2), 2);
  EXPECT_EQ(largest(add(slice(head.weight, 0, 0, 1), slice(head.weight, 0, 1, 2))), 0);
  Tensor errors = sigmoid(linear(x_, weight, bias));
  for (int64_t i = 0; i < kRows; ++i) errors.data<float>()[i] -= static_cast<float>(y.data<int64_t>()[i]);
  expect_minimum({weight, bias}, errors, 0.5);
}

TEST_F(LinearHeadTest, OfSeveralLabelsEachIsAtItsMinimum) {
  Tensor y = Tensor::zeros({kRows, 3});
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t k = 0; k < 3; ++k)
      y.data<float>()[i * 3 + k] = x_.data<float>()[i * kDim + k] > 0.3F ? 1 : 0;
  }
  const LinearHead head = fit_linear_head(x_, y, 3, ProblemType::multi_label);
  expect_minimum(head, sub(sigmoid(linear(x_, head.weight, head.bias)), y), 1);
}

TEST_F(LinearHeadTest, NumbersOfAnyScaleAreAtTheRidge) {
  Tensor y = Tensor::empty({kRows, 1});
  for (int64_t i = 0; i < kRows; ++i) y.data<float>()[i] = 5000 + 300 * x_.data<float>()[i * kDim + 1];
  const LinearHead head = fit_linear_head(x_, y, 1, ProblemType::regression, {.c = 4});
  const Tensor errors = sub(linear(x_, head.weight, head.bias), y);
  const Tensor pull = add(scale(matmul(transpose(errors, 0, 1), x_), 4), head.weight);
  EXPECT_LT(largest(pull) / 300, 2e-3);
  EXPECT_LT(largest(sum(errors, 0)) / 300, 1e-3);
  EXPECT_NEAR(head.loss, mean(square(errors)).item() / 2, 1e-3);
  EXPECT_NEAR(head.bias.item(), 5000, 3);
}

TEST_F(LinearHeadTest, TheBestCIsThatOfWhatWasHeldOut) {
  // Labels without a rule are best met with the least weights, those of a rule with large ones.
  Rng rng(5);
  const Tensor x = randn({200, 6}, rng);
  std::vector<int64_t> chance, rule;
  for (int64_t i = 0; i < 200; ++i) {
    chance.push_back(i % 2);
    rule.push_back(x.data<float>()[i * 6] > 0 ? 1 : 0);
  }
  const auto choose = [&](const std::vector<int64_t>& labels) {
    return choose_c(x, Tensor::of<int64_t>({200}, labels), 2, ProblemType::single_label, 1);
  };
  EXPECT_EQ(choose(chance).losses.size(), 6);
  EXPECT_LE(choose(chance).c, 0.1);
  EXPECT_GE(choose(rule).c, 10);
  EXPECT_EQ(choose_c(slice(x, 0, 0, 6), Tensor::of<int64_t>({6}, {0, 1, 0, 1, 0, 1}), 2,
                     ProblemType::single_label, 1)
                .c,
            1);
}

TEST_F(LinearHeadTest, WhatCannotBeFittedIsRefused) {
  const Tensor y = labels(3);
  const auto fit = [&](const Tensor& x, const Tensor& targets, int64_t labels, double c) {
    fit_linear_head(x, targets, labels, ProblemType::single_label, {.c = c});
  };
  EXPECT_THROW(fit(x_, y, 2, 1), ValueError);
  EXPECT_THROW(fit(x_, y, 3, 0), ValueError);
  EXPECT_THROW(fit(slice(x_, 0, 0, 5), y, 3, 1), ShapeError);
  EXPECT_THROW(fit(x_, y.to(Dtype::f32), 3, 1), DtypeError);
  Tensor bad = x_.clone();
  bad.data<float>()[7] = NAN;
  EXPECT_THROW(fit(bad, y, 3, 1), ValueError);
}

}  // namespace
}  // namespace multihead::train
