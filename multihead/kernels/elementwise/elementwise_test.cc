#include "multihead/kernels/elementwise/elementwise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <memory>

#include "multihead/testing/everywhere.h"

namespace multihead::kernels {
namespace {

using testing::check_everywhere;
using testing::normal_floats;
using testing::Outputs;
using testing::poisoned;
using testing::poisoned64;
using testing::widened;

constexpr Binary kBinaries[] = {Binary::add, Binary::sub, Binary::mul, Binary::div};
constexpr Unary kUnaries[] = {
#define MH_UNARY(name, ...) Unary::name,
    MH_UNARY_FUNCTIONS(MH_UNARY)
#undef MH_UNARY
};

std::vector<float> positive_floats(int64_t count, uint64_t seed) {
  std::vector<float> x = normal_floats(count, seed);
  for (float& v : x) v = std::abs(v) + 0.25f;
  return x;
}

void check_binary(const BroadcastLayout& layout, int64_t size_a, int64_t size_b) {
  const std::vector<float> a = normal_floats(size_a, 1), b = positive_floats(size_b, 2);
  const int64_t n = layout.shape.numel();
  for (const Binary op : kBinaries) {
    auto y64 = poisoned64(n);
    binary(op, widened(a).data(), widened(b).data(), y64.data(), layout);
    check_everywhere(
        [&] {
          auto y = poisoned(n);
          binary(op, a.data(), b.data(), y.data(), layout);
          return Outputs{y};
        },
        {y64}, {0, 1.2e-7});
  }
}

TEST(ElementwiseTest, BinaryBroadcasts) {
  check_binary({{0}, {1}, {1}}, 0, 0);
  check_binary({{}, {}, {}}, 1, 1);
  check_binary({{1}, {1}, {1}}, 1, 1);
  check_binary({{40009}, {1}, {1}}, 40009, 40009);
  check_binary({{40009}, {1}, {0}}, 40009, 1);
  check_binary({{40009}, {0}, {1}}, 1, 40009);
  check_binary({{257, 131}, {131, 1}, {0, 1}}, 257 * 131, 131);          // a row
  check_binary({{257, 131}, {131, 1}, {1, 0}}, 257 * 131, 257);          // a column
  check_binary({{257, 131}, {1, 257}, {131, 1}}, 257 * 131, 257 * 131);  // transposed
  check_binary({{257, 131}, {1, 257}, {1, 257}}, 257 * 131, 257 * 131);  // both
  check_binary({{3, 67, 5, 130}, {43550, 1, 67, 335}, {43550, 1, 67, 335}}, 130650, 130650);
  check_binary({{3, 5, 7, 11}, {77, 0, 11, 1}, {0, 77, 0, 1}}, 3 * 77, 5 * 77);
}

// f(x, y) of the walk at every element, by plain indexing.
TEST(ElementwiseTest, WalkVisitsEveryElement) {
  const Shape shape{3, 5, 7}, a{1, 3, 15}, b{35, 0, 5};
  const std::vector<float> x = normal_floats(105, 3), z = normal_floats(105, 4);
  auto y = poisoned(105);
  binary(Binary::add, x.data(), z.data(), y.data(), {shape, a, b});
  size_t at = 0;
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 5; ++j) {
      for (size_t k = 0; k < 7; ++k) EXPECT_EQ(y[at++], x[i + 3 * j + 15 * k] + z[35 * i + 5 * k]);
    }
  }
}

TEST(ElementwiseTest, UnaryFollowsF64) {
  for (const int64_t n : {0, 1, 15, 16, 17, 20011}) {
    const std::vector<float> x = positive_floats(n, 5), dy = normal_floats(n, 6);
    for (const Unary op : kUnaries) {
      auto y64 = poisoned64(n), dx64 = poisoned64(n);
      unary(op, widened(x).data(), y64.data(), n);
      unary_backward(op, widened(x).data(), widened(dy).data(), dx64.data(), n);
      check_everywhere(
          [&] {
            auto y = poisoned(n), dx = poisoned(n);
            unary(op, x.data(), y.data(), n);
            unary_backward(op, x.data(), dy.data(), dx.data(), n);
            return Outputs{y, dx};
          },
          {y64, dx64}, {3e-7, 3e-7});
    }
    auto z64 = poisoned64(n);
    affine(widened(x).data(), z64.data(), n, -1.75, 0.3125);
    check_everywhere(
        [&] {
          auto z = poisoned(n);
          affine(x.data(), z.data(), n, -1.75, 0.3125);
          return Outputs{z};
        },
        {z64}, {2e-7, 2e-7});
  }
}

TEST(ElementwiseTest, TanhKeepsTheSignOfZero) {
  const std::vector<float> x = {-0.0f, 0.0f};
  check_everywhere(
      [&] {
        auto y = poisoned(2);
        unary(Unary::tanh, x.data(), y.data(), 2);
        EXPECT_TRUE(std::signbit(y[0]) && !std::signbit(y[1]));
        return Outputs{y};
      },
      {{0, 0}});
}

// Hosts may trap floating-point exceptions: what is computed beside a result must not raise any.
TEST(ElementwiseTest, OrdinaryNumbersRaiseNoExceptions) {
#if defined(__clang__)
  GTEST_SKIP() << "Clang computes as if nobody looked at exceptions";
#endif
  constexpr int64_t n = 13;  // not whole vectors
  std::vector<float> x(n), some(n, 2), out(n);
  for (int64_t i = 0; i < n; ++i) x[static_cast<size_t>(i)] = i % 2 == 0 ? 1e4f : 0.25f;
  const BroadcastLayout layout = {{n}, {1}, {1}};
  const auto raised = [&](auto run) {
    std::feclearexcept(FE_ALL_EXCEPT);
    run();
    return std::fetestexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW);
  };
  check_everywhere(
      [&] {
        for (const Unary op : kUnaries) {
          const std::vector<float>& in = op == Unary::exp ? some : x;
          EXPECT_EQ(raised([&] { unary(op, in.data(), out.data(), n); }), 0) << static_cast<int>(op);
          EXPECT_EQ(raised([&] { unary_backward(op, some.data(), x.data(), out.data(), n); }), 0)
              << static_cast<int>(op);
        }
        for (const Binary op : kBinaries) {
          EXPECT_EQ(raised([&] { binary(op, x.data(), some.data(), out.data(), layout); }), 0)
              << static_cast<int>(op);
        }
        return Outputs{};
      },
      {}, {});
}

TEST(ElementwiseTest, SelectAndItsZero) {
  const bool mask[] = {true, false, false, true, true};
  const float a[] = {1, 2, 3, 4, 5}, b[] = {-1, -2, -3, -4, -5};
  float y[5];
  select(mask, a, b, y, 5);
  EXPECT_THAT(std::vector<float>(y, y + 5), ::testing::Eq(std::vector<float>{1, -2, -3, 4, 5}));
  select(mask, a, static_cast<const float*>(nullptr), y, 5);
  EXPECT_EQ(std::vector<float>(y, y + 5), (std::vector<float>{1, 0, 0, 4, 5}));
}

TEST(ElementwiseTest, SelectTakesEachElementFromItsSide) {
  const int64_t n = 40009;
  const std::vector<float> a = normal_floats(n, 1), b = normal_floats(n, 2), from = normal_floats(n, 3);
  const std::unique_ptr<bool[]> mask(new bool[n]);
  auto both = poisoned64(n), first = poisoned64(n), second = poisoned64(n);
  for (int64_t i = 0; i < n; ++i) {
    mask[i] = from[i] > 0.2f;
    both[i] = static_cast<double>(mask[i] ? a[i] : b[i]);
    first[i] = static_cast<double>(mask[i] ? a[i] : 0), second[i] = static_cast<double>(mask[i] ? 0 : b[i]);
  }
  const float* const none = nullptr;
  check_everywhere(
      [&] {
        auto x = poisoned(n), y = poisoned(n), z = poisoned(n);
        select(mask.get(), a.data(), b.data(), x.data(), n);
        select(mask.get(), a.data(), none, y.data(), n);
        select(mask.get(), none, b.data(), z.data(), n);
        return Outputs{x, y, z};
      },
      {both, first, second}, {0, 0});
}

}  // namespace
}  // namespace multihead::kernels
