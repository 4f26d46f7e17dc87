#include "multihead/kernels/reduce/cross_entropy.h"

#include <gtest/gtest.h>

#include "multihead/testing/everywhere.h"

namespace multihead::kernels {
namespace {

using testing::check_everywhere;
using testing::normal_floats;
using testing::Outputs;
using testing::poisoned;
using testing::poisoned64;
using testing::same_bits;
using testing::widened;

std::vector<int64_t> some_targets(int64_t rows, int64_t classes) {
  std::vector<int64_t> targets;
  for (int64_t i = 0; i < rows; ++i) targets.push_back(i % 5 == 3 ? -100 : (i * 7919) % classes);
  return targets;
}

void check(const std::vector<float>& x, int64_t rows, int64_t classes, double smoothing) {
  const std::vector<int64_t> targets = some_targets(rows, classes);
  const std::vector<double> x64 = widened(x);
  auto losses64 = poisoned64(rows), d64 = poisoned64(rows * classes);
  const double scale = 0.37;
  cross_entropy(CrossEntropyArgs<double>{x64.data(), targets.data(), rows, classes, -100, smoothing,
                                         losses64.data(), d64.data(), scale});
  check_everywhere(
      [&] {
        auto losses = poisoned(rows), alone = poisoned(rows), d = poisoned(rows * classes);
        CrossEntropyArgs<float> args{x.data(),  targets.data(), rows,     classes, -100,
                                     smoothing, losses.data(),  d.data(), scale};
        cross_entropy(args);
        // Without the gradient, the same bits.
        args.losses = alone.data();
        args.d_logits = nullptr;
        cross_entropy(args);
        // In place, the same bits.
        std::vector<float> in_place = x;
        args.logits = args.d_logits = in_place.data();
        cross_entropy(args);
        EXPECT_TRUE(same_bits(in_place, d));
        return Outputs{losses, alone, d};
      },
      {losses64, losses64, d64}, {2e-6, 2e-6});
}

TEST(CrossEntropyTest, FollowsF64) {
  for (const double smoothing : {0.0, 0.1, 1.0}) {
    for (const auto& [rows, classes] :
         {std::pair<int64_t, int64_t>{0, 3}, {5, 1}, {7, 2}, {11, 16}, {301, 65}, {13, 1031}, {3, 50257}}) {
      check(normal_floats(rows * classes, 1), rows, classes, smoothing);
    }
  }
}

TEST(CrossEntropyTest, LargeLogitsKeepTheDigits) {
  std::vector<float> x = normal_floats(7 * 37, 2);
  for (float& v : x) v = 1e4f + std::round(v * 8);
  check(x, 7, 37, 0.1);
}

TEST(CrossEntropyTest, IgnoredRowsAreNotRead) {
  std::vector<float> x(2 * 19, std::numeric_limits<float>::quiet_NaN());
  std::vector<float> losses = poisoned(2), d = poisoned(2 * 19);
  const std::vector<int64_t> targets = {-100, -100};
  cross_entropy(
      CrossEntropyArgs<float>{x.data(), targets.data(), 2, 19, -100, 0.1, losses.data(), d.data(), 1});
  for (const float v : losses) EXPECT_EQ(v, 0);
  for (const float v : d) EXPECT_EQ(v, 0);
}

}  // namespace
}  // namespace multihead::kernels
