#include "multihead/kernels/reduce/norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "multihead/testing/everywhere.h"

namespace multihead::kernels {
namespace {

using testing::check_everywhere;
using testing::normal_floats;
using testing::Outputs;
using testing::poisoned;
using testing::widened;

struct Variant {
  bool layer, weight, bias, residual;
};

template <class T>
struct Buffers {
  std::vector<T> x, residual, weight, bias, dy, d_sum;
};

// All outputs of forward and backward, in T.
template <class T>
std::vector<std::vector<T>> run(const Buffers<T>& in, const Variant& v, int64_t rows, int64_t size,
                                double eps) {
  const auto fresh = [](int64_t n) {
    return std::vector<T>(static_cast<size_t>(n), std::numeric_limits<T>::quiet_NaN());
  };
  auto sum = fresh(v.residual ? rows * size : 0), y = fresh(rows * size), mean = fresh(v.layer ? rows : 0);
  auto inv_std = fresh(rows), dx = fresh(rows * size), d_weight = fresh(v.weight ? size : 0);
  auto d_bias = fresh(v.bias ? size : 0), scratch = fresh(norm_backward_scratch(rows, size));
  const auto optional = [](bool wanted, auto& values) { return wanted ? values.data() : nullptr; };
  norm(NormArgs<T>{.rows = rows,
                   .size = size,
                   .eps = eps,
                   .x = in.x.data(),
                   .residual = optional(v.residual, in.residual),
                   .sum = optional(v.residual, sum),
                   .weight = optional(v.weight, in.weight),
                   .bias = optional(v.bias, in.bias),
                   .y = y.data(),
                   .mean = optional(v.layer, mean),
                   .inv_std = inv_std.data()});
  norm_backward(NormGradArgs<T>{.rows = rows,
                                .size = size,
                                .x = v.residual ? sum.data() : in.x.data(),
                                .weight = optional(v.weight, in.weight),
                                .mean = optional(v.layer, mean),
                                .inv_std = inv_std.data(),
                                .dy = in.dy.data(),
                                .d_sum = optional(v.residual, in.d_sum),
                                .dx = dx.data(),
                                .d_weight = optional(v.weight, d_weight),
                                .d_bias = optional(v.bias, d_bias),
                                .scratch = scratch.data()});
  return {sum, y, mean, inv_std, dx, d_weight, d_bias};
}

void check(const Variant& v, int64_t rows, int64_t size) {
  const Buffers<float> in{normal_floats(rows * size, 1), normal_floats(rows * size, 2),
                          normal_floats(size, 3),        normal_floats(size, 4),
                          normal_floats(rows * size, 5), normal_floats(rows * size, 6)};
  const Buffers<double> in64{widened(in.x),    widened(in.residual), widened(in.weight),
                             widened(in.bias), widened(in.dy),       widened(in.d_sum)};
  // Rows of one or two elements have no useful variance: a large eps keeps them well-conditioned.
  const double eps = size < 8 ? 0.1 : 1e-5;
  check_everywhere([&] { return run<float>(in, v, rows, size, eps); }, run<double>(in64, v, rows, size, eps),
                   {1e-5 + 2e-8 * static_cast<double>(rows), 5e-6});
}

TEST(NormTest, FollowsF64) {
  const Variant variants[] = {{true, true, true, false},   {true, true, true, true},
                              {true, false, true, false},  {true, true, false, true},
                              {true, false, false, false}, {false, true, false, false},
                              {false, false, false, true}, {false, true, false, true}};
  for (const Variant& v : variants) {
    for (const auto& [rows, size] :
         {std::pair<int64_t, int64_t>{0, 17}, {1, 1}, {3, 15}, {67, 16}, {131, 33}, {257, 128}}) {
      check(v, rows, size);
      if (HasFatalFailure()) return;
    }
  }
  check(variants[0], 4099, 19);  // more rows than partial sums
}

std::vector<BFloat16> rounded(const std::vector<float>& x) { return {x.begin(), x.end()}; }

// A bf16 x joins an f32 residual with the bits of x widened, and normalized16 serves the backward instead of
// the sum.
TEST(NormTest, ReadsBf16AndKeepsHalfOfWhatItNormalised) {
  for (const bool layer : {true, false}) {
    for (const auto& sizes : {std::pair<int64_t, int64_t>{1, 1}, {3, 15}, {67, 16}, {131, 33}}) {
      const int64_t rows = sizes.first, size = sizes.second, count = rows * size;
      const std::vector<BFloat16> x16 = rounded(normal_floats(count, 1));
      const std::vector<float> x(x16.begin(), x16.end()), residual = normal_floats(count, 2);
      const std::vector<float> weight = normal_floats(size, 3), bias = normal_floats(size, 4);
      std::vector<float> mean(rows), inv_std(rows), sum = poisoned(count), y = poisoned(count);
      NormArgs<float> a{.rows = rows,
                        .size = size,
                        .eps = 0.1,
                        .x = x.data(),
                        .residual = residual.data(),
                        .sum = sum.data(),
                        .weight = weight.data(),
                        .bias = bias.data(),
                        .y = y.data(),
                        .mean = layer ? mean.data() : nullptr,
                        .inv_std = inv_std.data()};
      norm(a);
      std::vector<float> sum16 = poisoned(count), y16 = poisoned(count), again = poisoned(count);
      std::vector<BFloat16> normalized(count);
      a.x = nullptr, a.x16 = x16.data(), a.sum = sum16.data(), a.y = y16.data();
      a.normalized16 = normalized.data();
      norm(a);
      EXPECT_EQ(sum16, sum);
      EXPECT_EQ(y16, y);
      norm_affine({.rows = rows,
                   .size = size,
                   .weight = weight.data(),
                   .bias = bias.data(),
                   .y = again.data(),
                   .normalized16 = a.normalized16});
      for (int64_t i = 0; i < count; ++i) {
        EXPECT_NEAR(again[i], y[i], 0.004 * std::abs(y[i] - bias[i % size]) + 1e-6);
      }

      const std::vector<float> dy = normal_floats(count, 5);
      const auto gradients = [&](bool half) {
        std::vector<float> dx = poisoned(count), d_weight = poisoned(size), d_bias = poisoned(size),
                           scratch(norm_backward_scratch(rows, size));
        norm_backward(NormGradArgs<float>{.rows = rows,
                                          .size = size,
                                          .x = half ? nullptr : sum.data(),
                                          .weight = weight.data(),
                                          .mean = a.mean,
                                          .inv_std = inv_std.data(),
                                          .dy = dy.data(),
                                          .dx = dx.data(),
                                          .d_weight = d_weight.data(),
                                          .d_bias = d_bias.data(),
                                          .scratch = scratch.data(),
                                          .normalized16 = half ? normalized.data() : nullptr});
        return Outputs{dx, d_weight, d_bias};
      };
      const Outputs exact = gradients(false), half = gradients(true);
      EXPECT_EQ(half[2], exact[2]);
      for (size_t k = 0; k < 2; ++k) {
        for (size_t i = 0; i < exact[k].size(); ++i) {
          EXPECT_NEAR(half[k][i], exact[k][i], k == 0 ? 0.04 : 0.01 * std::sqrt(rows) + 0.01)
              << k << ' ' << i;
        }
      }
    }
  }
}

TEST(NormTest, LargeMeanSmallVariance) {
  // x = 1e4 + noise of 1e-2: two passes keep the variance that one pass of moments would lose.
  const int64_t size = 1021;
  std::vector<float> x = normal_floats(size, 9), y = poisoned(size), mean(1), inv_std(1);
  for (float& v : x) v = 1e4f + 0.01f * v;
  std::vector<double> x64 = widened(x), y64(x.size()), mean64(1), inv_std64(1);
  norm(NormArgs<float>{.rows = 1,
                       .size = size,
                       .eps = 1e-12,
                       .x = x.data(),
                       .y = y.data(),
                       .mean = mean.data(),
                       .inv_std = inv_std.data()});
  norm(NormArgs<double>{.rows = 1,
                        .size = size,
                        .eps = 1e-12,
                        .x = x64.data(),
                        .y = y64.data(),
                        .mean = mean64.data(),
                        .inv_std = inv_std64.data()});
  // The mean is exact to half a ulp of 1e4 (5e-4), a twentieth of the deviation.
  EXPECT_NEAR(inv_std[0] / inv_std64[0], 1, 5e-3);
  for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], y64[i], 0.1);
}

TEST(NormTest, ConstantAndZeroRows) {
  for (const float value : {0.0f, 3.0f}) {
    std::vector<float> x(23, value), y = poisoned(23), mean(1), inv_std(1);
    norm(NormArgs<float>{.rows = 1,
                         .size = 23,
                         .eps = 1e-5,
                         .x = x.data(),
                         .y = y.data(),
                         .mean = mean.data(),
                         .inv_std = inv_std.data()});
    for (const float v : y) EXPECT_EQ(v, 0);
  }
}

TEST(NormTest, SumsOfLongRowsDoNotDrift) {
  constexpr int64_t kSize = 1000003;
  const std::vector<float> x(kSize, 0.1f);
  const double square = static_cast<double>(0.1f) * static_cast<double>(0.1f);
  check_everywhere(
      [&] {
        auto y = poisoned(kSize), mean = poisoned(1), layer = poisoned(1), rms = poisoned(1);
        NormArgs<float> args = {
            .rows = 1, .size = kSize, .eps = 0, .x = x.data(), .y = y.data(), .inv_std = rms.data()};
        norm(args);
        args.eps = 1, args.mean = mean.data(), args.inv_std = layer.data();
        norm(args);
        return Outputs{mean, layer, rms};
      },
      {{static_cast<double>(0.1f)}, {1}, {1 / std::sqrt(square)}}, {0, 1e-6});
}

}  // namespace
}  // namespace multihead::kernels
