#include "multihead/ops/attention/score_math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "multihead/autograd/tape.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/ops/attention/attention.h"

namespace multihead {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Largest |got - exact| over the distance of floats at `exact`, over every 1009th float.
template <class F, class G>
double worst_ulp(F got, G exact) {
  double worst = 0;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 1009) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (!std::isfinite(x)) continue;
    const double y = exact(static_cast<double>(x));
    const float rounded = static_cast<float>(y);
    if (!std::isfinite(rounded)) {
      EXPECT_EQ(got(x), rounded) << x;
      continue;
    }
    const double ulp = std::max(std::ldexp(1.0, std::ilogb(rounded == 0 ? 1e-38f : rounded) - 23), 0x1p-149);
    worst = std::max(worst, std::abs(static_cast<double>(got(x)) - y) / ulp);
  }
  return worst;
}

TEST(ScoreMathTest, ErrorsAreThoseOfTheHeader) {
  EXPECT_LE(worst_ulp([](float x) { return fast::exp(x); }, [](double x) { return std::exp(x); }), 1.2);
  EXPECT_LE(worst_ulp([](float x) { return fast::tanh(x); }, [](double x) { return std::tanh(x); }), 1.6);
  EXPECT_LE(
      worst_ulp([](float x) { return fast::sigmoid(x); }, [](double x) { return 1 / (1 + std::exp(-x)); }),
      2.4);
}

TEST(ScoreMathTest, InfinitiesAndNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(fast::exp(-kInfinity), 0);
  EXPECT_EQ(fast::exp(kInfinity), kInfinity);
  EXPECT_EQ(fast::tanh(kInfinity), 1);
  EXPECT_EQ(fast::tanh(-kInfinity), -1);
  EXPECT_EQ(fast::sigmoid(kInfinity), 1);
  EXPECT_EQ(fast::sigmoid(-kInfinity), 0);
  for (const float y : {fast::exp(nan), fast::tanh(nan), fast::sigmoid(nan)}) EXPECT_TRUE(std::isnan(y));
  EXPECT_EQ(fast::sigmoid(-1000.0), 0);
  EXPECT_EQ(fast::sigmoid(1000.0), 1);
}

template <class T, class F>
void expect_derivative(F f, double tolerance) {
  for (double x = -3; x <= 3; x += 0.37) {
    const Dual<T> y = f(Dual<T>(static_cast<T>(x), T(2)));
    const double step = 1e-6;
    const double slope = (f(x + step) - f(x - step)) / (2 * step);
    EXPECT_EQ(y.value, f(static_cast<T>(x)));
    EXPECT_NEAR(y.derivative, 2 * slope, tolerance * (1 + std::abs(slope))) << x;
  }
}

TEST(ScoreMathTest, Derivatives) {
  const auto all = [](auto f) {
    expect_derivative<float>(f, 2e-6);
    expect_derivative<double>(f, 1e-8);
  };
  all([](auto x) { return fast::exp(x); });
  all([](auto x) { return fast::tanh(x); });
  all([](auto x) { return fast::sigmoid(x); });
}

TEST(ScoreMathTest, ALimitByHandEqualsTheBuiltIn) {
  Rng rng(3);
  Tensor q = randn({1, 2, 67, 16}, rng).set_requires_grad();
  const Tensor k = randn({1, 2, 67, 16}, rng), v = randn({1, 2, 67, 16}, rng);
  const auto run = [&](const AttentionOptions& options, const ScoreMod& mod) {
    q.set_grad({});
    Tape tape;
    const Tensor y = attention(q, k, v, options, mod);
    tape.backward(y, v);
    return std::pair{y.detach(), q.grad()};
  };
  const auto limited = score_mod([](auto score, ScoreIndex) { return 2.0f * fast::tanh(score / 2.0f); });
  const auto [y, dq] = run({.mask = causal()}, limited);
  const auto [expected, expected_dq] = run({.mask = causal(), .softcap = 2}, {});
  for (int64_t i = 0; i < y.numel(); ++i) {
    ASSERT_NEAR(y.data<float>()[i], expected.data<float>()[i], 2e-6);
    ASSERT_NEAR(dq.data<float>()[i], expected_dq.data<float>()[i], 4e-6);
  }
}

}  // namespace
}  // namespace multihead
