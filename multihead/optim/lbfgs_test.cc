#include "multihead/optim/lbfgs.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "multihead/core/error.h"

namespace multihead::optim {
namespace {

using Numbers = std::vector<double>;

// (1 - x)^2 + 100 (y - x^2)^2, a bent valley with its lowest point at (1, 1).
constexpr auto valley = [](std::span<const double> p, std::span<double> g) {
  const double a = 1 - p[0], b = p[1] - p[0] * p[0];
  g[0] = -2 * a - 400 * p[0] * b, g[1] = 200 * b;
  return a * a + 100 * b * b;
};

TEST(Lbfgs, FindsTheLowestPointOfABentValley) {
  Numbers x = {-1.2, 1};
  const LbfgsResult result = minimize(x, valley, {.tolerance = 1e-10});
  EXPECT_TRUE(result.converged);
  EXPECT_LE(result.slope, 1e-10);
  EXPECT_LT(result.steps, 60);
  EXPECT_NEAR(x[0], 1, 1e-9);
  EXPECT_NEAR(x[1], 1, 1e-9);
  EXPECT_NEAR(result.value, 0, 1e-18);
}

TEST(Lbfgs, SolvesAnIllConditionedSystemInFewerStepsThanItHasSizes) {
  const size_t n = 200;
  Numbers x(n, 0);
  const LbfgsResult result = minimize(x,
                                      [&](std::span<const double> p, std::span<double> g) {
                                        double value = 0;
                                        for (size_t i = 0; i < n; ++i) {
                                          const double weight = 1 + static_cast<double>(i);
                                          value += weight * p[i] * p[i] / 2 - p[i];
                                          g[i] = weight * p[i] - 1;
                                        }
                                        return value;
                                      },
                                      {.tolerance = 1e-10});
  EXPECT_TRUE(result.converged);
  EXPECT_LT(result.steps, 200);
  for (size_t i = 0; i < n; ++i) EXPECT_NEAR(x[i], 1 / (1 + static_cast<double>(i)), 1e-9);
}

TEST(Lbfgs, EndsWhereItIsAskedToAndRefusesWhatHasNoMinimum) {
  Numbers x = {-1.2, 1};
  int64_t asked = 0;
  EXPECT_EQ(minimize(x, valley, {.should_stop = [&] { return ++asked > 3; }}).steps, 3);
  const LbfgsResult few = minimize(x, valley, {.steps = 2});
  EXPECT_EQ(few.steps, 2);
  EXPECT_FALSE(few.converged);
  Numbers none;
  EXPECT_THROW(minimize(none, valley), ValueError);
  EXPECT_THROW(minimize(x, valley, {.history = 0}), ValueError);
  EXPECT_THROW(minimize(x, [](std::span<const double>,
                              std::span<double>) { return std::numeric_limits<double>::quiet_NaN(); }),
               NumericError);
}

TEST(Lbfgs, APointWithoutSlopeStaysToTheBit) {
  Numbers x = {1, 1};
  EXPECT_EQ(minimize(x, valley).steps, 0);
  EXPECT_EQ(x, (Numbers{1, 1}));
}

}  // namespace
}  // namespace multihead::optim
