#include "multihead/nn/positions.h"

#include <gtest/gtest.h>

#include <cmath>

#include "multihead/core/error.h"
#include "multihead/ops/rotary.h"

namespace multihead::nn {
namespace {

TEST(SinusoidalPositionsTest, FollowTheFormulaAtAnySizeAndStart) {
  for (const int64_t dim : {1, 2, 7, 32}) {
    const Tensor table = sinusoidal_positions(5, dim, 1000);
    for (int64_t i = 0; i < 5; ++i) {
      for (int64_t j = 0; j < dim; ++j) {
        const double angle = static_cast<double>(1000 + i) /
                             std::pow(10000.0, static_cast<double>(j / 2 * 2) / static_cast<double>(dim));
        EXPECT_NEAR(table.at({i, j}), j % 2 == 0 ? std::sin(angle) : std::cos(angle), 1e-6);
      }
    }
  }
}

TEST(SinusoidalPositionsTest, AnOffsetIsARotation) {
  // (sin, cos)(i + δ) = [[cos ωδ, sin ωδ], [−sin ωδ, cos ωδ]] (sin, cos)(i)
  const Tensor table = sinusoidal_positions(30, 8);
  const int64_t delta = 11;
  for (int64_t k = 0; k < 4; ++k) {
    const double w = std::pow(10000.0, -2.0 * static_cast<double>(k) / 8);
    const double c = std::cos(w * delta), s = std::sin(w * delta);
    for (int64_t i = 0; i + delta < 30; ++i) {
      const double x = table.at({i, 2 * k}), y = table.at({i, 2 * k + 1});
      EXPECT_NEAR(table.at({i + delta, 2 * k}), c * x + s * y, 1e-6);
      EXPECT_NEAR(table.at({i + delta, 2 * k + 1}), -s * x + c * y, 1e-6);
    }
  }
}

TEST(SinusoidalPositionsTest, HalvesHoldTheSameNumbers) {
  const Tensor interleaved = sinusoidal_positions(4, 10),
               halves = sinusoidal_positions(4, 10, 0, SinusoidLayout::halves);
  for (int64_t k = 0; k < 5; ++k) {
    EXPECT_EQ(halves.at({3, k}), interleaved.at({3, 2 * k}));
    EXPECT_EQ(halves.at({3, 5 + k}), interleaved.at({3, 2 * k + 1}));
  }
}

TEST(SinusoidalPositionalEncodingTest, RowsMayStartAnywhere) {
  const SinusoidalPositionalEncoding encoding(6);
  const Tensor x = Tensor::zeros({2, 3, 6});
  const Tensor y = encoding(x, {4, 100});
  const Tensor a = sinusoidal_positions(3, 6, 4), b = sinusoidal_positions(3, 6, 100);
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t j = 0; j < 6; ++j) {
      EXPECT_EQ(y.at({0, t, j}), a.at({t, j}));
      EXPECT_EQ(y.at({1, t, j}), b.at({t, j}));
    }
  }
  EXPECT_THROW(encoding(Tensor::zeros({2, 3, 5})), ShapeError);
  EXPECT_THROW(encoding(x, {-1}), ValueError);
  EXPECT_THROW(SinusoidalPositionalEncoding(6, 1.5), ValueError);
}

TEST(AlibiSlopesTest, PowersOfTwoAndTheirHalves) {
  const auto eight = alibi_slopes(8).to_vector<double>();
  for (size_t h = 0; h < 8; ++h) EXPECT_DOUBLE_EQ(eight[h], std::exp2(-static_cast<double>(h + 1)));
  const auto twelve = alibi_slopes(12).to_vector<double>();
  EXPECT_DOUBLE_EQ(twelve[7], std::exp2(-8.0));
  EXPECT_FLOAT_EQ(static_cast<float>(twelve[8]), static_cast<float>(std::exp2(-0.5)));
  EXPECT_FLOAT_EQ(static_cast<float>(twelve[11]), static_cast<float>(std::exp2(-3.5)));
}

TEST(RotaryTest, ProductsDependOnTheDistanceAlone) {
  for (const RotaryLayout layout : {RotaryLayout::halves, RotaryLayout::interleaved}) {
    Rng rng(2);
    const Tensor q = randn({1, 1, 1, 8}, rng), k = randn({1, 1, 1, 8}, rng);
    const auto product = [&](int64_t at_q, int64_t at_k) {
      const auto frequencies = rotary_frequencies(6);
      const auto a = rotary(q, rotary_table(1, {at_q}, frequencies, layout)).to_vector<double>();
      const auto b = rotary(k, rotary_table(1, {at_k}, frequencies, layout)).to_vector<double>();
      double sum = 0;
      for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
      return sum;
    };
    EXPECT_NEAR(product(5, 3), product(105, 103), 1e-4);
    EXPECT_GT(std::abs(product(5, 3) - product(5, 4)), 1e-3);
    const auto same = rotary(q, rotary_table(1, {0}, rotary_frequencies(6), layout));
    EXPECT_EQ(same.to_vector<float>(), q.to_vector<float>());
  }
}

TEST(RotaryTest, BadSizesAreErrors) {
  EXPECT_THROW(rotary_frequencies(5), ValueError);
  EXPECT_THROW(rotary_frequencies(4, -1), ValueError);
  const RotaryTable table = rotary_table(3, {0}, rotary_frequencies(6));
  EXPECT_THROW(rotary(Tensor::zeros({2, 3, 2, 4}), table), ShapeError);
  EXPECT_THROW(rotary(Tensor::zeros({2, 4, 2, 8}), table), ShapeError);
}

}  // namespace
}  // namespace multihead::nn
