#include "multihead/kernels/elementwise/activation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "multihead/testing/everywhere.h"

namespace multihead::kernels {
namespace {

using testing::check_everywhere;
using testing::normal_floats;
using testing::Outputs;
using testing::poisoned;
using testing::poisoned64;
using testing::widened;

class ActivationTest : public ::testing::TestWithParam<Activation> {};

constexpr int64_t kCounts[] = {0, 1, 15, 16, 17, 31, 4099, 20011};

TEST_P(ActivationTest, ForwardAndBackwardFollowF64) {
  const Activation f = GetParam();
  for (const int64_t n : kCounts) {
    const std::vector<float> x = normal_floats(n, 1), dy = normal_floats(n, 2);
    auto y64 = poisoned64(n), dx64 = poisoned64(n);
    activate(f, widened(x).data(), y64.data(), n);
    activate_backward(f, widened(x).data(), widened(dy).data(), dx64.data(), n);
    check_everywhere(
        [&] {
          auto y = poisoned(n), dx = poisoned(n);
          activate(f, x.data(), y.data(), n);
          activate_backward(f, x.data(), dy.data(), dx.data(), n);
          return Outputs{y, dx};
        },
        {y64, dx64}, {5e-7, 1e-6});
  }
}

TEST_P(ActivationTest, InPlaceIsTheSame) {
  const int64_t n = 1031;
  const std::vector<float> x = normal_floats(n, 3), dy = normal_floats(n, 4);
  std::vector<float> y = poisoned(n), dx = poisoned(n), in_place = x, d_in_place = dy;
  activate(GetParam(), x.data(), y.data(), n);
  activate(GetParam(), in_place.data(), in_place.data(), n);
  EXPECT_EQ(y, in_place);
  activate_backward(GetParam(), x.data(), dy.data(), dx.data(), n);
  activate_backward(GetParam(), x.data(), d_in_place.data(), d_in_place.data(), n);
  EXPECT_EQ(dx, d_in_place);
}

TEST_P(ActivationTest, ValueAndSlopeTogetherAreThoseApart) {
  for (const int64_t n : kCounts) {
    const std::vector<float> x = normal_floats(n, 7), ones(static_cast<size_t>(n), 1.0f);
    std::vector<float> y = poisoned(n), slope = poisoned(n), both_y = poisoned(n), both_slope = x;
    activate(GetParam(), x.data(), y.data(), n);
    activate_backward(GetParam(), x.data(), ones.data(), slope.data(), n);
    activate_with_slope(GetParam(), both_slope.data(), both_y.data(), both_slope.data(), n);
    EXPECT_EQ(slope, both_slope);
    for (int64_t i = 0; i < n; ++i) EXPECT_NEAR(y[i], both_y[i], 1e-6f * std::abs(y[i]) + 1e-30f) << x[i];
    std::vector<double> x64 = widened(x), y64 = poisoned64(n), slope64 = poisoned64(n);
    activate_with_slope(GetParam(), x64.data(), y64.data(), slope64.data(), n);
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_NEAR(both_y[i], y64[i], 5e-7) << x[i];
      EXPECT_NEAR(both_slope[i], slope64[i], 2e-6) << x[i];
    }
  }
}

// Gate and up as halves of one matrix.
TEST_P(ActivationTest, GatedFollowsF64) {
  for (const int64_t size : {1, 16, 19, 257}) {
    const GatedRows rows{37, size, 2 * size};
    const int64_t wide = rows.count * rows.stride, n = rows.count * size;
    const std::vector<float> x = normal_floats(wide, 5), dy = normal_floats(n, 6);
    const std::vector<double> x64 = widened(x), dy64 = widened(dy);
    auto y64 = poisoned64(n), dx64 = poisoned64(wide);
    gated(GetParam(), x64.data(), x64.data() + size, y64.data(), rows);
    gated_backward(GetParam(), x64.data(), x64.data() + size, {dy64.data(), dx64.data(), dx64.data() + size},
                   rows);
    check_everywhere(
        [&] {
          auto y = poisoned(n), dx = poisoned(wide);
          gated(GetParam(), x.data(), x.data() + size, y.data(), rows);
          gated_backward(GetParam(), x.data(), x.data() + size, {dy.data(), dx.data(), dx.data() + size},
                         rows);
          return Outputs{y, dx};
        },
        {y64, dx64});
  }
}

INSTANTIATE_TEST_SUITE_P(All, ActivationTest,
                         ::testing::Values(Activation::none, Activation::relu, Activation::gelu,
                                           Activation::gelu_tanh, Activation::silu));

TEST(ActivationTest, Bf16HasTheNumbersOfF32) {
  const int64_t n = 4099;
  const std::vector<float> exact = normal_floats(n, 1), dy = normal_floats(n, 2);
  const std::vector<BFloat16> x(exact.begin(), exact.end());
  const std::vector<float> x32(x.begin(), x.end());
  for (const Activation f : {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
    auto y32 = poisoned(n), y = poisoned(n), slope32 = poisoned(n), slope = poisoned(n);
    std::vector<BFloat16> rounded(static_cast<size_t>(n));
    activate(f, x32.data(), y32.data(), n);
    activate(f, x.data(), y.data(), n);
    EXPECT_EQ(y, y32);
    activate_with_slope(f, x32.data(), y32.data(), slope32.data(), n);
    activate_with_slope(f, x.data(), rounded.data(), slope.data(), n);
    EXPECT_EQ(slope, slope32);
    for (size_t i = 0; i < y32.size(); ++i) EXPECT_EQ(rounded[i].bits, BFloat16(y32[i]).bits) << i;
    activate_backward(f, x32.data(), dy.data(), y32.data(), n);
    activate_backward(f, x.data(), dy.data(), y.data(), n);
    EXPECT_EQ(y, y32);
  }
}

// NaN and infinities among them, in whole vectors and alone.
TEST(ActivationTest, EveryBf16NumberIsRoundedOnce) {
  std::vector<BFloat16> x(1 << 16), y(x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i].bits = static_cast<uint16_t>(i);
  const std::vector<float> x32(x.begin(), x.end());
  const auto n = static_cast<int64_t>(x.size());
  for (const Activation f : {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
    auto y32 = poisoned(n);
    activate(f, x32.data(), y32.data(), n);
    activate(f, x.data(), y.data(), n);
    for (size_t i = 0; i < x.size(); ++i) {
      const uint16_t sign = std::isnan(y32[i]) ? 0x8000 : 0;  // a NaN may have either
      ASSERT_EQ(y[i].bits | sign, BFloat16(y32[i]).bits | sign) << x32[i];
    }
  }
}

}  // namespace
}  // namespace multihead::kernels
