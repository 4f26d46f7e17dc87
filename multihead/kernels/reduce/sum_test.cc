#include "multihead/kernels/reduce/sum.h"

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

TEST(SumTest, SumsAreOrderedAndPrecise) {
  for (const int64_t n : {0, 1, 1023, 1025, 65537, 200003}) {
    const std::vector<float> x = normal_floats(n, 7);
    double exact = 0;
    for (const float v : x) exact += static_cast<double>(v);
    check_everywhere([&] { return Outputs{{static_cast<float>(sum(x.data(), n))}}; }, {{exact}},
                     {1e-7 * static_cast<double>(n) / 64 + 1e-6, 1e-6});
  }
}

TEST(SumTest, AxisSumsFollowF64) {
  for (const AxisSum& s : {AxisSum{3, 5, 7}, AxisSum{1, 4099, 129}, AxisSum{37, 67, 1}, AxisSum{1, 0, 5},
                           AxisSum{0, 3, 5}, AxisSum{129, 3, 31}, AxisSum{1, 30011, 1}}) {
    const std::vector<float> x = normal_floats(s.outer * s.axis * s.inner, 8);
    auto y64 = poisoned64(s.outer * s.inner);
    sum_axis(widened(x).data(), y64.data(), s);
    check_everywhere(
        [&] {
          auto y = poisoned(s.outer * s.inner);
          sum_axis(x.data(), y.data(), s);
          return Outputs{y};
        },
        {y64}, {1e-6 + 2e-8 * static_cast<double>(s.axis), 1e-6});
  }
}

// A chain of a million additions of .1 is off by 6e-4.
TEST(SumTest, LongSumsOfEqualNumbersDoNotDrift) {
  constexpr int64_t kCount = 1000003;
  const std::vector<float> x(3 * kCount, 0.1f);
  const double exact = kCount * static_cast<double>(0.1f);
  check_everywhere([&] { return Outputs{{static_cast<float>(sum(x.data(), kCount))}}; }, {{exact}},
                   {0, 1e-6});
  for (const AxisSum& s : {AxisSum{3, kCount, 1}, AxisSum{1, kCount, 3}}) {
    check_everywhere(
        [&] {
          auto y = poisoned(3);
          sum_axis(x.data(), y.data(), s);
          return Outputs{y};
        },
        {{exact, exact, exact}}, {0, 1e-6});
  }
}

TEST(SumTest, Bf16HasTheBitsOfTheSameNumbersInF32) {
  for (const AxisSum& s :
       {AxisSum{3, 5, 7}, AxisSum{1, 1099, 129}, AxisSum{37, 67, 1}, AxisSum{1, 70001, 1}}) {
    const std::vector<float> x = normal_floats(s.outer * s.axis * s.inner, 9);
    const std::vector<BFloat16> narrow(x.begin(), x.end());
    const std::vector<float> wide(narrow.begin(), narrow.end());
    EXPECT_EQ(sum(narrow.data(), std::ssize(narrow)), sum(wide.data(), std::ssize(wide)));
    auto y = poisoned(s.outer * s.inner), z = y;
    sum_axis(narrow.data(), y.data(), s);
    sum_axis(wide.data(), z.data(), s);
    EXPECT_EQ(y, z);
  }
}

}  // namespace
}  // namespace multihead::kernels
