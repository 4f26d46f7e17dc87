#include "multihead/kernels/elementwise/dropout.h"

#include <gtest/gtest.h>

#include "multihead/testing/everywhere.h"

namespace multihead::kernels {
namespace {

using testing::check_everywhere;
using testing::normal_floats;
using testing::Outputs;
using testing::poisoned;
using testing::poisoned64;
using testing::widened;

TEST(DropoutTest, FollowsTheMaskOfEachElement) {
  for (const int64_t n : {0, 1, 127, 128, 129, 5003, 40009}) {
    for (const double p : {0.1, 0.5, 1.0}) {
      const DropoutMask mask{{0x123456789abcdef, 0xfedcba987654321}, p};
      const std::vector<float> x = normal_floats(n, 1), residual = normal_floats(n, 2);
      auto y64 = poisoned64(n), z64 = poisoned64(n);
      for (int64_t i = 0; i < n; ++i) {
        const auto at = static_cast<size_t>(i);
        y64[at] = dropout_keeps(mask.stream, p, i) ? static_cast<double>(x[at]) / (1 - p) : 0;
        z64[at] = y64[at] + static_cast<double>(residual[at]);
      }
      check_everywhere(
          [&] {
            auto y = poisoned(n), z = poisoned(n);
            dropout(x.data(), nullptr, y.data(), n, mask);
            dropout(x.data(), residual.data(), z.data(), n, mask);
            return Outputs{y, z};
          },
          {y64, z64});
    }
  }
}

TEST(DropoutTest, Bf16HasTheNumbersOfF32Rounded) {
  for (const int64_t n : {1, 127, 128, 129, 5003}) {
    const DropoutMask mask{{3, 4}, 0.3};
    const std::vector<float> exact = normal_floats(n, 1), residual = normal_floats(n, 2);
    const std::vector<BFloat16> x(exact.begin(), exact.end());
    const std::vector<float> x32(x.begin(), x.end());
    auto y32 = poisoned(n), z32 = poisoned(n), z = poisoned(n);
    std::vector<BFloat16> y(static_cast<size_t>(n));
    dropout(x32.data(), nullptr, y32.data(), n, mask);
    dropout(x32.data(), residual.data(), z32.data(), n, mask);
    dropout(x.data(), y.data(), n, mask);
    dropout(x.data(), residual.data(), z.data(), n, mask);
    EXPECT_EQ(z, z32);
    for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i].bits, BFloat16(y32[i]).bits) << i;
  }
}

TEST(DropoutTest, BlocksPastThe32BitCounterWork) {
  // Element 128 g + … uses blocks from 16 g: the counter's upper word must take part.
  const RandomStream stream{5, 6};
  const int64_t far = (int64_t{1} << 32) / 16 * 128;
  EXPECT_EQ(dropout_keeps(stream, 0.5, far), (stream.block(uint64_t{1} << 32)[0] & 0xFFFF) >= 32768);
}

TEST(DropoutTest, KeepsTheShareItShould) {
  const int64_t n = 1 << 20;
  for (const double p : {0.0, 0.01, 0.1, 0.5, 0.9}) {
    const std::vector<float> ones(n, 1.0f);
    auto y = poisoned(n);
    dropout(ones.data(), nullptr, y.data(), n, {{42, 7}, p});
    double kept = 0;
    for (const float v : y) kept += v != 0;
    const double deviation = std::sqrt(static_cast<double>(n) * p * (1 - p));
    EXPECT_NEAR(kept, static_cast<double>(n) * (1 - p), 5 * deviation + 1e-5 * static_cast<double>(n));
  }
}

TEST(DropoutTest, NeighboursAndStreamsAreIndependent) {
  const int64_t n = 1 << 18;
  int64_t both_near = 0, both_far = 0, both_streams = 0;
  const RandomStream a{1, 0}, b{1, 1};
  for (int64_t i = 0; i < n; ++i) {
    const bool kept = dropout_keeps(a, 0.5, i);
    both_near += kept && dropout_keeps(a, 0.5, i + 1);
    both_far += kept && dropout_keeps(a, 0.5, i + 16);
    both_streams += kept && dropout_keeps(b, 0.5, i);
  }
  for (const int64_t both : {both_near, both_far, both_streams}) {
    EXPECT_NEAR(static_cast<double>(both), static_cast<double>(n) / 4,
                5 * std::sqrt(static_cast<double>(n) * 3 / 16));
  }
}

TEST(DropoutTest, DroppedNanBecomesZero) {
  const std::vector<float> x(256, std::numeric_limits<float>::quiet_NaN());
  auto y = poisoned(256);
  dropout(x.data(), nullptr, y.data(), 256, {{1, 2}, 1.0});
  for (const float v : y) EXPECT_EQ(v, 0);
}

}  // namespace
}  // namespace multihead::kernels
