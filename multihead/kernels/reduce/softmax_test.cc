#include "multihead/kernels/reduce/softmax.h"

#include <gtest/gtest.h>

#include "multihead/testing/everywhere.h"

namespace multihead::kernels {
namespace {

using testing::check_everywhere;
using testing::kInf;
using testing::kNan;
using testing::normal_floats;
using testing::Outputs;
using testing::poisoned;
using testing::poisoned64;
using testing::widened;

void check(const std::vector<float>& x, Rows rows) {
  const int64_t n = rows.count * rows.size;
  const std::vector<float> dy = normal_floats(n, 2);
  const std::vector<double> x64 = widened(x), dy64 = widened(dy);
  auto y64 = poisoned64(n), dx64 = poisoned64(n), l64 = poisoned64(n), dl64 = poisoned64(n);
  softmax(x64.data(), y64.data(), rows);
  softmax_backward(y64.data(), dy64.data(), dx64.data(), rows);
  log_softmax(x64.data(), l64.data(), rows);
  log_softmax_backward(l64.data(), dy64.data(), dl64.data(), rows);
  check_everywhere(
      [&] {
        auto y = poisoned(n), dx = poisoned(n), l = poisoned(n), dl = poisoned(n);
        softmax(x.data(), y.data(), rows);
        softmax_backward(y.data(), dy.data(), dx.data(), rows);
        log_softmax(x.data(), l.data(), rows);
        log_softmax_backward(l.data(), dy.data(), dl.data(), rows);
        return Outputs{y, dx, l, dl};
      },
      {y64, dx64, l64, dl64}, {3e-6, 3e-6});
}

TEST(SoftmaxTest, FollowsF64) {
  for (const auto& [count, size] :
       {std::pair<int64_t, int64_t>{0, 5}, {3, 0}, {5, 1}, {7, 15}, {3, 16}, {301, 17}, {2, 5003}}) {
    check(normal_floats(count * size, 1), {count, size});
  }
}

TEST(SoftmaxTest, SumsOfLongRowsDoNotDrift) {
  std::vector<float> x(1000003, 0.0f);
  for (size_t i = 1; i < x.size(); ++i) x[i] = -0.9f;
  check(x, {1, std::ssize(x)});
}

TEST(SoftmaxTest, LargeLogits) {
  std::vector<float> x = normal_floats(7 * 33, 3);
  for (size_t i = 0; i < x.size(); ++i) x[i] = i % 3 == 0 ? 1e4f : i % 3 == 1 ? -1e4f : x[i];
  check(x, {7, 33});
  check(std::vector<float>(7 * 33, 3e38f), {7, 33});
  for (float& v : x) v = std::min(88.0f, std::max(-88.0f, v * 60));
  check(x, {7, 33});
}

TEST(SoftmaxTest, RowsOfMinusInfinity) {
  std::vector<float> x = normal_floats(3 * 19, 4), y = poisoned(3 * 19);
  std::fill(x.begin() + 19, x.begin() + 38, -kInf);
  softmax(x.data(), y.data(), {3, 19});
  for (int i = 19; i < 38; ++i) EXPECT_EQ(y[static_cast<size_t>(i)], 0);
  log_softmax(x.data(), y.data(), {3, 19});
  for (int i = 19; i < 38; ++i) EXPECT_EQ(y[static_cast<size_t>(i)], -kInf);
  // One finite logit takes everything.
  x[25] = -3;
  softmax(x.data(), y.data(), {3, 19});
  for (int i = 19; i < 38; ++i) EXPECT_EQ(y[static_cast<size_t>(i)], i == 25 ? 1 : 0);
}

TEST(SoftmaxTest, NanStaysInItsRow) {
  std::vector<float> x = normal_floats(3 * 37, 5), y = poisoned(3 * 37), clean = poisoned(3 * 37);
  softmax(x.data(), clean.data(), {3, 37});
  x[40] = std::numeric_limits<float>::quiet_NaN();
  softmax(x.data(), y.data(), {3, 37});
  for (size_t i = 0; i < 3 * 37; ++i) {
    if (i / 37 == 1) {
      EXPECT_TRUE(std::isnan(y[i]));
    } else {
      EXPECT_EQ(y[i], clean[i]);
    }
  }
}

// Next to the -inf of masked elements, or of lanes past the end, a maximum may lose it.
TEST(SoftmaxTest, NanIsNotTakenForMinusInfinity) {
  for (const int64_t size : {1, 7, 16, 19, 37}) {
    for (const bool all : {true, false}) {
      std::vector<float> x(static_cast<size_t>(size), all ? kNan : -kInf), y = poisoned(size);
      x.back() = kNan;
      for (const bool logarithm : {false, true}) {
        logarithm ? log_softmax(x.data(), y.data(), {1, size}) : softmax(x.data(), y.data(), {1, size});
        for (const float v : y) EXPECT_TRUE(std::isnan(v)) << size << ' ' << all;
        std::fill(y.begin(), y.end(), 0.0f);
      }
    }
  }
}

TEST(SoftmaxTest, RowsDoNotDependOnTheirNeighbours) {
  const std::vector<float> x = normal_floats(9 * 131, 6);
  auto all = poisoned(9 * 131), one = poisoned(131);
  softmax(x.data(), all.data(), {9, 131});
  for (int64_t row = 0; row < 9; ++row) {
    softmax(x.data() + row * 131, one.data(), {1, 131});
    EXPECT_EQ(std::memcmp(one.data(), all.data() + row * 131, 131 * sizeof(float)), 0);
  }
}

}  // namespace
}  // namespace multihead::kernels
