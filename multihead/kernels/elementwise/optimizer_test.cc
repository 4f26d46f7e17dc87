#include "multihead/kernels/elementwise/optimizer.h"

#include <gtest/gtest.h>

#include "multihead/testing/everywhere.h"

namespace multihead::kernels {
namespace {

using testing::check_everywhere;
using testing::normal_floats;
using testing::Outputs;
using testing::Outputs64;
using testing::widened;

// `steps` Adam steps with changing gradients, in T.
template <class T>
std::vector<std::vector<T>> run_adam(int64_t n, AdamArgs args, int steps) {
  const auto values = [&](uint64_t seed) {
    const std::vector<float> x = normal_floats(n, seed);
    return std::vector<T>(x.begin(), x.end());
  };
  std::vector<T> param = values(1), m(static_cast<size_t>(n), T{0}), v = m;
  for (int step = 1; step <= steps; ++step) {
    const std::vector<T> grad = values(static_cast<uint64_t>(10 + step));
    args.step = step;
    adam_step(AdamState<T>{param.data(), grad.data(), m.data(), v.data(), n}, args);
  }
  return {param, m, v};
}

TEST(OptimizerTest, AdamFollowsF64) {
  const AdamArgs variants[] = {{.lr = 0.01},
                               {.lr = 0.01, .weight_decay = 0.1},
                               {.lr = 0.01, .weight_decay = 0.1, .decoupled = false},
                               {.lr = 0.01, .eps = 1e-3, .eps_hat = true},
                               {.lr = 0.01, .grad_scale = 0.25}};
  for (const AdamArgs& args : variants) {
    for (const int64_t n : {0, 1, 17, 20011}) {
      const Outputs64 exact = run_adam<double>(n, args, 5);
      check_everywhere([&] { return run_adam<float>(n, args, 5); }, exact, {1e-6, 2e-6});
    }
  }
}

// The formulas as the papers write them, without folded factors.
TEST(OptimizerTest, AdamIsTheFormula) {
  const double lr = 0.1, b1 = 0.9, b2 = 0.99, eps = 1e-2, decay = 0.2;
  for (const bool decoupled : {true, false}) {
    for (const bool eps_hat : {true, false}) {
      double param = 0.7, m = 0.3, v = 0.2, p = param, pm = m, pv = v;
      const double grad = -0.4;
      adam_step(AdamState<double>{&p, &grad, &pm, &pv, 1}, {.lr = lr,
                                                            .beta1 = b1,
                                                            .beta2 = b2,
                                                            .eps = eps,
                                                            .weight_decay = decay,
                                                            .decoupled = decoupled,
                                                            .eps_hat = eps_hat,
                                                            .step = 3});
      const double g = decoupled ? grad : grad + decay * param;
      if (decoupled) param -= lr * decay * param;
      m = b1 * m + (1 - b1) * g;
      v = b2 * v + (1 - b2) * g * g;
      const double c1 = 1 - b1 * b1 * b1, c2 = 1 - b2 * b2 * b2;
      if (eps_hat) {
        param -= lr * std::sqrt(c2) / c1 * m / (std::sqrt(v) + eps);
      } else {
        param -= lr * (m / c1) / (std::sqrt(v / c2) + eps);
      }
      EXPECT_NEAR(p, param, 1e-15);
      EXPECT_NEAR(pm, m, 1e-15);
      EXPECT_NEAR(pv, v, 1e-15);
    }
  }
}

template <class T>
std::vector<std::vector<T>> run_sgd(int64_t n, SgdArgs args, int steps) {
  const auto values = [&](uint64_t seed) {
    const std::vector<float> x = normal_floats(n, seed);
    return std::vector<T>(x.begin(), x.end());
  };
  std::vector<T> param = values(1), buffer(static_cast<size_t>(args.momentum != 0 ? n : 0), T{99});
  for (int step = 1; step <= steps; ++step) {
    const std::vector<T> grad = values(static_cast<uint64_t>(10 + step));
    args.first = step == 1;
    sgd_step(SgdState<T>{param.data(), grad.data(), buffer.empty() ? nullptr : buffer.data(), n}, args);
  }
  return {param, buffer};
}

TEST(OptimizerTest, SgdFollowsF64) {
  const SgdArgs variants[] = {
      {.lr = 0.1},
      {.lr = 0.1, .weight_decay = 0.3},
      {.lr = 0.1, .momentum = 0.9},
      {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true, .grad_scale = 0.5}};
  for (const SgdArgs& args : variants) {
    for (const int64_t n : {1, 31, 20011}) {
      const Outputs64 exact = run_sgd<double>(n, args, 4);
      check_everywhere([&] { return run_sgd<float>(n, args, 4); }, exact, {1e-6, 2e-6});
    }
  }
}

// Where no gradient comes any more, moments become zero and not denormal, and parameters stay.
TEST(OptimizerTest, MomentsEndAboveTheDenormals) {
  const auto after = [](int steps) {
    std::vector<float> param(37, 0.5f), zeros(37, 0.0f), m(37, 1e-4f), v(37, 0x1p-99f), buffer(37, -1e-4f);
    for (int step = 1; step <= steps; ++step) {
      adam_step(AdamState<float>{param.data(), zeros.data(), m.data(), v.data(), 37}, {.lr = 1e-9});
      sgd_step(SgdState<float>{param.data(), zeros.data(), buffer.data(), 37}, {.lr = 1e-9, .momentum = 0.9});
    }
    return Outputs{m, v, buffer, param};
  };
  const Outputs early = after(500), late = after(900);
  EXPECT_GT(early[0][36], 0x1p-100f);
  EXPECT_GT(early[1][36], 0x1p-100f);
  EXPECT_LT(early[2][36], -0x1p-100f);
  check_everywhere([&] { return Outputs{after(900)[0]}; }, {std::vector<double>(37, 0.0)}, {0, 0});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(late[static_cast<size_t>(i)], std::vector<float>(37, 0.0f)) << i;
  EXPECT_EQ(late[3], early[3]);
}

TEST(OptimizerTest, SumOfSquaresIsF64) {
  for (const int64_t n : {0, 1, 7, 8, 9, 4097, 300017}) {
    const std::vector<float> x = normal_floats(n, 3);
    double exact = 0;
    for (const float v : x) exact += static_cast<double>(v) * static_cast<double>(v);
    EXPECT_NEAR(sum_of_squares(x.data(), n), exact, 1e-12 * exact);
    EXPECT_NEAR(sum_of_squares(widened(x).data(), n), exact, 1e-12 * exact);
    // Both halves of the bits, so that check_everywhere compares the f64 exactly.
    check_everywhere(
        [&] {
          const double s = sum_of_squares(x.data(), n);
          const float high = static_cast<float>(s);
          return Outputs{{high, static_cast<float>(s - static_cast<double>(high))}};
        },
        {{exact, exact - static_cast<double>(static_cast<float>(exact))}}, {1e-11 * exact, 1e-6});
  }
  const float large[] = {3e38f, -3e38f};
  EXPECT_NEAR(sum_of_squares(large, 2) / 1.8e77, 1, 1e-6) << "does not overflow";
  const float bad[] = {1, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_TRUE(std::isnan(sum_of_squares(bad, 2)));
}

}  // namespace
}  // namespace multihead::kernels
