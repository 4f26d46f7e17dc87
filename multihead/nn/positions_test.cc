#include "multihead/nn/positions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/ops/elementwise.h"
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

// The first distance of each bucket as transformers' T5 has it, both ways and one.
TEST(RelativeBucketsTest, AreThoseOfT5) {
  const std::vector<int64_t> both = relative_buckets({}).to_vector<int64_t>();
  ASSERT_EQ(both.size(), 257u);
  constexpr int64_t kFirst[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91};
  for (int64_t distance = 0; distance <= 128; ++distance) {
    const int64_t bucket = std::upper_bound(std::begin(kFirst), std::end(kFirst), distance) - kFirst - 1;
    EXPECT_EQ(both[static_cast<size_t>(128 - distance)], bucket) << distance;
    EXPECT_EQ(both[static_cast<size_t>(128 + distance)], distance == 0 ? 0 : bucket + 16) << distance;
  }
  const Tensor back = relative_buckets({.count = 8, .max_distance = 9, .bidirectional = false});
  EXPECT_EQ(back.to_vector<int64_t>(),
            (std::vector<int64_t>{7, 7, 6, 6, 5, 4, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_THROW(relative_buckets({.count = 3}), ValueError);
  EXPECT_THROW(relative_buckets({.max_distance = 8}), ValueError);
}

TEST(RelativeBiasTest, LearnsByBucket) {
  Rng rng(3);
  RelativeBias bias({.count = 8, .max_distance = 5}, 2, rng);
  bias.weight.set_requires_grad();
  Tape tape;
  const Tensor table = bias();
  EXPECT_EQ(table.shape(), Shape({2, 11}));
  tape.backward(sum(table));
  const auto buckets = relative_buckets({.count = 8, .max_distance = 5}).to_vector<int64_t>();
  for (int64_t b = 0; b < 8; ++b) {
    const auto count = static_cast<double>(std::ranges::count(buckets, b));
    EXPECT_EQ(bias.weight.grad().at({b, 0}), count);
    EXPECT_EQ(bias.weight.grad().at({b, 1}), count);
  }
}

}  // namespace
}  // namespace multihead::nn
