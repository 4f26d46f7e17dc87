#include "multihead/train/data/windows.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

#include "multihead/core/error.h"

namespace multihead::train {
namespace {

TEST(WindowsTest, PermutationTakesEveryNumberOnce) {
  for (const int64_t count : {1, 2, 3, 5, 64, 67, 1009}) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = permuted(i, count, 5, 9);
      EXPECT_GE(at, 0);
      EXPECT_LT(at, count);
      seen.insert(at);
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), count);
  }
}

TEST(WindowsTest, OrderDependsOnSeedAndEpoch) {
  std::vector<int64_t> a, b, c;
  for (int64_t i = 0; i < 101; ++i) {
    a.push_back(permuted(i, 101, 5, 0));
    b.push_back(permuted(i, 101, 5, 1));
    c.push_back(permuted(i, 101, 6, 0));
  }
  EXPECT_NE(a, b);
  EXPECT_NE(a, c);
  std::vector<int64_t> sorted(101);
  std::iota(sorted.begin(), sorted.end(), 0);
  EXPECT_NE(a, sorted);
}

TEST(WindowsTest, AnEpochVisitsEveryWindowOnceAndStaysInside) {
  for (const int64_t tokens : {12, 13, 22, 23, 24, 100, 1013}) {
    const int64_t context = 11;
    const WindowOrder order(tokens, context, 3);
    std::set<int64_t> offsets;
    for (int64_t epoch = 0; epoch < 4; ++epoch) {
      std::set<int64_t> begins;
      for (int64_t i = 0; i < order.windows_per_epoch(); ++i) {
        const int64_t begin = order.begin(epoch * order.windows_per_epoch() + i);
        EXPECT_GE(begin, 0);
        EXPECT_LE(begin + context + 1, tokens);
        begins.insert(begin);
      }
      EXPECT_EQ(static_cast<int64_t>(begins.size()), order.windows_per_epoch());
      EXPECT_EQ(*begins.rbegin() - *begins.begin(), (order.windows_per_epoch() - 1) * context);
      offsets.insert(*begins.begin());
    }
    EXPECT_GE(order.windows_per_epoch(), std::max<int64_t>(1, (tokens - 1) / context - 1));
    if (tokens > 100) {
      EXPECT_GT(offsets.size(), 1u) << "every epoch should begin elsewhere";
    }
  }
}

TEST(WindowsTest, TooShortATextIsRefused) {
  EXPECT_THROW(WindowOrder(11, 11, 0), FormatError);
  EXPECT_NO_THROW(WindowOrder(12, 11, 0));
}

TEST(WindowsTest, TargetsAreTheTokensOneFurther) {
  std::vector<int32_t> text(40);
  std::iota(text.begin(), text.end(), 100);
  const std::vector<int64_t> begins = {0, 7, 32};
  const WindowBatch batch = gather_windows(std::span<const int32_t>(text), begins, 7);
  ASSERT_EQ(batch.tokens.shape(), (Shape{3, 7}));
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t i = 0; i < 7; ++i) {
      EXPECT_EQ(batch.tokens.at({row, i}), 100 + begins[static_cast<size_t>(row)] + i);
      EXPECT_EQ(batch.targets.at({row, i}), 101 + begins[static_cast<size_t>(row)] + i);
    }
  }
  const std::vector<int64_t> beyond = {33};
  EXPECT_THROW(gather_windows(std::span<const int32_t>(text), beyond, 7), ValueError);
}

}  // namespace
}  // namespace multihead::train
