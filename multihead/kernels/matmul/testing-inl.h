// Matrix products with guards around every operand, beside f64 and the plain loop.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/kernels/matmul/gemm.h"
#include "multihead/testing/everywhere.h"

namespace multihead::kernels::gemm_testing {

using testing::same_bits;

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kGuard = -12345.0f;

struct Shape {
  int64_t m, n, k;
};
inline std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << s.m << 'x' << s.n << 'x' << s.k;
}

inline std::vector<Isa> isas() {
  std::vector<Isa> all;
  for (Isa isa : kernels::kIsas) {
    if (isa <= best_isa()) all.push_back(isa);
  }
  return all;
}

// Restores dispatch and threads after a test.
class GemmTest : public ::testing::Test {
 protected:
  void TearDown() override {
    set_isa(best_isa());
    set_num_threads(threads_);
  }
  int threads_ = num_threads();
};

struct Options {
  Transpose ta = Transpose::no, tb = Transpose::no;
  bool accumulate = false, bias = false, pre_activation = false, factor = false, residual = false;
  Activation activation = Activation::none;
  int64_t padding = 3;  // leading dimensions exceed the rows by 1, 2 and 3 times this
  bool integers = false;
};

// Operands with guard values between the rows, and results in f64.
class Problem {
 public:
  Problem(Shape s, const Options& o, unsigned seed = 1) : shape(s), options(o), random_(seed) {
    const bool ta = o.ta == Transpose::yes, tb = o.tb == Transpose::yes;
    lda = (ta ? s.m : s.k) + o.padding;
    ldb = (tb ? s.k : s.n) + 2 * o.padding;
    ldc = s.n + 3 * o.padding;
    a = matrix(ta ? s.k : s.m, ta ? s.m : s.k, lda);
    b = matrix(tb ? s.n : s.k, tb ? s.k : s.n, ldb);
    start = matrix(s.m, s.n, ldc);
    factor = matrix(s.m, s.n, ldc);
    residual = matrix(s.m, s.n, ldc);
    bias = matrix(1, s.n, s.n);
  }

  GemmArgs<float> args(float* c, float* pre) const {
    GemmArgs<float> g{.a = a.data(),
                      .lda = lda,
                      .ta = options.ta,
                      .b = b.data(),
                      .ldb = ldb,
                      .tb = options.tb,
                      .c = c,
                      .ldc = ldc,
                      .m = shape.m,
                      .n = shape.n,
                      .k = shape.k};
    g.accumulate = options.accumulate;
    g.bias = options.bias ? bias.data() : nullptr;
    g.pre_activation = options.pre_activation ? pre : nullptr;
    g.activation = options.activation;
    g.factor = options.factor ? factor.data() : nullptr;
    g.residual = options.residual ? residual.data() : nullptr;
    return g;
  }

  // C before the call: NaN unless it is read, guards between rows.
  std::vector<float> poisoned() const {
    std::vector<float> c = start;
    if (options.accumulate) return c;
    for (int64_t i = 0; i < shape.m; ++i) std::fill_n(c.begin() + i * ldc, shape.n, kNaN);
    return c;
  }

  std::vector<float> run() const {
    std::vector<float> c = poisoned(), pre = poisoned();
    gemm(args(c.data(), pre.data()));
    for (const std::vector<float>* out : {&c, &pre}) {
      for (int64_t i = 0; i < shape.m; ++i) {
        for (int64_t j = shape.n; j < ldc; ++j) EXPECT_EQ((*out)[i * ldc + j], kGuard) << shape;
      }
    }
    last_pre_activation = pre;
    return c;
  }

  double a_at(int64_t i, int64_t k) const {
    return options.ta == Transpose::yes ? a[k * lda + i] : a[i * lda + k];
  }
  double b_at(int64_t k, int64_t j) const {
    return options.tb == Transpose::yes ? b[j * ldb + k] : b[k * ldb + j];
  }

  Shape shape;
  Options options;
  int64_t lda, ldb, ldc;
  std::vector<float> a, b, start, factor, residual, bias;
  mutable std::vector<float> last_pre_activation;

 private:
  std::vector<float> matrix(int64_t rows, int64_t columns, int64_t stride) {
    std::uniform_real_distribution<float> real(-1, 1);
    std::uniform_int_distribution<int> integer(-4, 4);
    std::vector<float> x(static_cast<size_t>(rows * stride), kGuard);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        x[i * stride + j] = options.integers ? static_cast<float>(integer(random_)) : real(random_);
      }
    }
    return x;
  }
  std::mt19937 random_;
};

inline double activation_f64(Activation activation, double x) {
  switch (activation) {
    case Activation::relu:
      return x > 0 ? x : 0;
    case Activation::gelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::silu:
      return x / (1 + std::exp(-x));
    default:
      return x;
  }
}

// Errors of the kernel and of the plain f32 loop against f64: the largest, and the root of the mean square
// (which is not left to the luck of a single element).
struct Errors {
  double kernel = 0, naive = 0, pre_activation = 0;
  double kernel_rms = 0, naive_rms = 0;

  void expect_no_worse_than_naive(double epsilon) const {
    EXPECT_LE(kernel_rms,
              1.02 * naive_rms + epsilon);  // 2 %: two roundings drawn for a few thousand elements
    EXPECT_LE(kernel, 1.5 * naive + epsilon);
  }
};

inline Errors errors(const Problem& p, const std::vector<float>& c) {
  Errors e;
  const Options& o = p.options;
  for (int64_t i = 0; i < p.shape.m; ++i) {
    for (int64_t j = 0; j < p.shape.n; ++j) {
      const int64_t at = i * p.ldc + j;
      double exact = o.accumulate ? p.start[at] : 0.0;
      float naive = static_cast<float>(exact);
      for (int64_t k = 0; k < p.shape.k; ++k) {
        exact += p.a_at(i, k) * p.b_at(k, j);
        naive += static_cast<float>(p.a_at(i, k)) * static_cast<float>(p.b_at(k, j));
      }
      if (o.bias) exact += p.bias[j], naive += p.bias[j];
      if (o.pre_activation) {
        e.pre_activation = std::max(e.pre_activation, std::abs(p.last_pre_activation[at] - exact));
      }
      exact = activation_f64(o.activation, exact);
      naive = static_cast<float>(activation_f64(o.activation, naive));
      if (o.factor) exact *= p.factor[at], naive *= p.factor[at];
      if (o.residual) exact += p.residual[at], naive += p.residual[at];
      EXPECT_FALSE(std::isnan(c[at])) << p.shape << " at " << i << ',' << j;
      e.kernel = std::max(e.kernel, std::abs(c[at] - exact));
      e.naive = std::max(e.naive, std::abs(naive - exact));
      e.kernel_rms += (c[at] - exact) * (c[at] - exact);
      e.naive_rms += (naive - exact) * (naive - exact);
    }
  }
  const double count = static_cast<double>(std::max<int64_t>(p.shape.m * p.shape.n, 1));
  e.kernel_rms = std::sqrt(e.kernel_rms / count);
  e.naive_rms = std::sqrt(e.naive_rms / count);
  return e;
}

inline constexpr Transpose kBoth[] = {Transpose::no, Transpose::yes};

// Sizes around the edges of tiles (1, 2, 4, 6, 8, 12 rows; 4, 8, 16, 32, 48, 64 columns) and primes.
inline const Shape kSmall[] = {{1, 1, 1},     {1, 17, 5},    {2, 3, 7},    {3, 5, 2},     {5, 7, 11},
                               {6, 16, 13},   {7, 15, 16},   {8, 33, 17},  {11, 31, 15},  {12, 47, 31},
                               {13, 48, 32},  {23, 49, 33},  {24, 63, 3},  {25, 64, 19},  {31, 65, 29},
                               {37, 79, 61},  {5, 81, 64},   {17, 97, 23}, {29, 113, 47}, {64, 64, 64},
                               {67, 128, 71}, {43, 129, 37}, {9, 191, 53}, {3, 257, 101}};

// Over the blocks of rows (192), of k (512, 2048) and the few-rows path.
inline const Shape kLarge[] = {{193, 67, 521}, {191, 131, 127}, {397, 43, 1031}, {7, 389, 2053},
                               {1, 1021, 769}, {61, 31, 4099},  {8, 512, 1024},  {33, 1031, 67},
                               {16, 403, 647}, {23, 131, 389}};

}  // namespace multihead::kernels::gemm_testing
