// Errors of the elementary functions in units in the last place, over float patterns spread densely over the
// whole range, on every target.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/kernels/elementwise/activation.h"
#include "multihead/kernels/elementwise/elementwise.h"
#include "multihead/kernels/reduce/softmax.h"
#include "multihead/testing/everywhere.h"

namespace multihead::kernels {
namespace {

using testing::kInf;

// |got - exact| in units of the last place of the exact value, subnormal spacing at least.
double ulps(float got, double exact) {
  if (std::isnan(exact)) return std::isnan(got) ? 0 : kInf;
  const auto rounded = static_cast<float>(exact);
  if (got == rounded) return std::abs(static_cast<double>(got) - exact) > 0 && std::isfinite(got) ? 0.5 : 0;
  if (!std::isfinite(got) || !std::isfinite(rounded)) {
    // Next to overflow: the neighbour of infinity is the largest float.
    return std::abs(exact) > 3.402823e38 && std::abs(got) > 3.402823e38f ? 1 : kInf;
  }
  int exponent;
  std::frexp(exact, &exponent);
  return std::abs(static_cast<double>(got) - exact) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

struct Worst {
  double ulps = 0;
  float at = 0;
};

using Function = std::function<void(const float*, float*, int64_t)>;

// The worst error over every `stride`-th float pattern of both signs whose exact result is at least `least`.
Worst measure(const Function& f, double (*exact)(double), uint32_t stride, double least = 0) {
  constexpr int64_t kBlock = 1 << 14;
  const int64_t patterns = (int64_t{1} << 32) / stride, blocks = (patterns + kBlock - 1) / kBlock;
  std::vector<Worst> worst(static_cast<size_t>(blocks));
  parallel_for(blocks, [&](int64_t block, int) {
    std::vector<float> x, y;
    for (int64_t i = block * kBlock; i < std::min(patterns, (block + 1) * kBlock); ++i) {
      x.push_back(std::bit_cast<float>(static_cast<uint32_t>(i) * stride));
    }
    y.resize(x.size());
    f(x.data(), y.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const double reference = exact(static_cast<double>(x[i]));
      if (std::abs(reference) < least) continue;
      const double error = ulps(y[i], reference);
      if (!(error <= worst[static_cast<size_t>(block)].ulps))
        worst[static_cast<size_t>(block)] = {error, x[i]};
    }
  });
  Worst result;
  for (const Worst& w : worst) {
    if (!(w.ulps <= result.ulps)) result = w;
  }
  return result;
}

Function of(Unary op) {
  return [op](const float* x, float* y, int64_t n) { unary(op, x, y, n); };
}
Function of(Activation op) {
  return [op](const float* x, float* y, int64_t n) { activate(op, x, y, n); };
}
Function slope_of(Activation op) {
  return [op](const float* x, float* y, int64_t n) {
    const std::vector<float> ones(static_cast<size_t>(n), 1.0f);
    activate_backward(op, x, ones.data(), y, n);
  };
}

double sigmoid64(double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }
double softplus64(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }
double gelu64(double x) {
  if (std::isinf(x)) return x > 0 ? x : std::numeric_limits<double>::quiet_NaN();
  return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
}
double silu64(double x) {
  if (x == -kInf) return std::numeric_limits<double>::quiet_NaN();
  return x < -700 ? -0.0 : x * sigmoid64(x);
}

struct Bound {
  const char* name;
  Function f;
  double (*exact)(double);
  double with_fma, without_fma;  ///< in ulp
  double least;                  ///< results below are allowed to become 0
};

// Measured on every 17th of all floats; without FMA on the scalar target.
std::vector<Bound> bounds() {
  return {
      {"exp", of(Unary::exp), [](double x) { return std::exp(x); }, 1.1, 1.1, 0},
      {"log", of(Unary::log), [](double x) { return std::log(x); }, 1, 1.5, 0},
      {"tanh", of(Unary::tanh), [](double x) { return std::tanh(x); }, 1.5, 1.5, 0},
      {"sigmoid", of(Unary::sigmoid), sigmoid64, 2.5, 2.5, 0},
      {"softplus", of(Unary::softplus), softplus64, 4.5, 4.5, 1.3e-38},
      {"log_sigmoid", of(Unary::log_sigmoid), [](double x) { return -softplus64(-x); }, 4.5, 4.5, 1.3e-38},
      {"sqrt", of(Unary::sqrt), [](double x) { return std::sqrt(x); }, 0.5, 0.5, 0},
      {"gelu", of(Activation::gelu), gelu64, 6, 80, 1.1e-36},
      {"silu", of(Activation::silu), silu64, 3.5, 3.5, 1.1e-36}};
}

void check_bounds(uint32_t stride) {
  const Isa best = current_isa();
  for (const Isa isa : kernels::kIsas) {
    if (isa > best) continue;
    set_isa(isa);
    for (const Bound& b : bounds()) {
      const Worst worst = measure(b.f, b.exact, stride, b.least);
      const double bound = isa == Isa::baseline ? b.without_fma : b.with_fma;
      EXPECT_LE(worst.ulps, bound) << b.name << " at " << worst.at << " on " << isa_name(isa);
      ::testing::Test::RecordProperty(std::string(b.name) + "_" + std::string(isa_name(isa)),
                                      std::to_string(worst.ulps));
      if (std::getenv("MULTIHEAD_SHOW_ULPS") != nullptr) {
        std::printf("%-8s %-8s %.3f ulp at %.9g\n", std::string(isa_name(isa)).c_str(), b.name, worst.ulps,
                    static_cast<double>(worst.at));
      }
    }
  }
  set_isa(best);
}

TEST(MathTest, ErrorsInUlp) { check_bounds(40009); }
TEST(MathSlowTest, ErrorsInUlpDense) { check_bounds(17); }

TEST(MathTest, SameBitsOnFmaTargets) {
  if (best_isa() < Isa::avx512) GTEST_SKIP() << "needs two targets with FMA";
  const Isa best = current_isa();
  constexpr int64_t kCount = 100003;
  std::vector<float> x(kCount), a(kCount), b(kCount);
  for (int64_t i = 0; i < kCount; ++i)
    x[static_cast<size_t>(i)] = std::bit_cast<float>(static_cast<uint32_t>(i) * 42953u);
  std::vector<Function> all;
  for (const Bound& bound : bounds()) all.push_back(bound.f);
  for (const Activation kind :
       {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
    all.push_back(of(kind));
    all.push_back(slope_of(kind));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    set_isa(Isa::avx2);
    all[i](x.data(), a.data(), kCount);
    set_isa(Isa::avx512);
    all[i](x.data(), b.data(), kCount);
    // NaN payloads follow operand order and are not promised.
    for (int64_t j = 0; j < kCount; ++j) {
      const auto at = static_cast<size_t>(j);
      ASSERT_TRUE(std::bit_cast<uint32_t>(a[at]) == std::bit_cast<uint32_t>(b[at]) ||
                  (std::isnan(a[at]) && std::isnan(b[at])))
          << "function " << i << " at " << x[at] << ": " << a[at] << " and " << b[at];
    }
  }
  set_isa(best);
}

TEST(MathTest, LimitsAndNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto value = [](const Function& f, float x) {
    float y = 17;
    f(&x, &y, 1);
    return y;
  };
  for (const Isa isa : kernels::kIsas) {
    if (isa > best_isa()) continue;
    const Isa before = current_isa();
    set_isa(isa);
    EXPECT_EQ(value(of(Unary::exp), 0), 1);
    EXPECT_EQ(value(of(Unary::exp), kInf), kInf);
    EXPECT_EQ(value(of(Unary::exp), -kInf), 0);
    EXPECT_EQ(value(of(Unary::exp), 89), kInf);
    EXPECT_GT(value(of(Unary::exp), -103), 0) << "subnormals are kept";
    EXPECT_EQ(value(of(Unary::log), 1), 0);
    EXPECT_EQ(value(of(Unary::log), 0), -kInf);
    EXPECT_EQ(value(of(Unary::log), kInf), kInf);
    EXPECT_TRUE(std::isnan(value(of(Unary::log), -1)));
    EXPECT_EQ(value(of(Unary::tanh), kInf), 1);
    EXPECT_EQ(value(of(Unary::tanh), -kInf), -1);
    EXPECT_EQ(value(of(Unary::sigmoid), 0), 0.5f);
    EXPECT_EQ(value(of(Unary::sigmoid), -kInf), 0);
    EXPECT_EQ(value(of(Unary::sigmoid), kInf), 1);
    EXPECT_EQ(value(of(Activation::relu), -3), 0);
    for (const Activation kind :
         {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
      EXPECT_EQ(value(of(kind), 0), 0);
      EXPECT_EQ(value(of(kind), 50), 50);
      EXPECT_EQ(value(of(kind), kInf), kInf);
      EXPECT_EQ(value(of(kind), -150), 0);
      EXPECT_TRUE(std::isnan(value(of(kind), nan)));
      EXPECT_EQ(value(slope_of(kind), 3e38f), 1);
      EXPECT_EQ(value(slope_of(kind), kInf), 1);
      EXPECT_EQ(value(slope_of(kind), -kInf), 0);
      EXPECT_NEAR(value(slope_of(kind), 0), kind == Activation::relu ? 0 : 0.5, 0);
    }
    for (const Unary op : {Unary::exp, Unary::log, Unary::tanh, Unary::sigmoid, Unary::sqrt}) {
      EXPECT_TRUE(std::isnan(value(of(op), nan)));
    }
    set_isa(before);
  }
}

}  // namespace
}  // namespace multihead::kernels
