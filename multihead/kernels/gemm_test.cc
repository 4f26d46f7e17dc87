#include "multihead/kernels/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/core/parallel.h"
#include "multihead/kernels/isa.h"

namespace multihead::kernels {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kGuard = -12345.0f;

struct Shape {
  int64_t m, n, k;
};
std::ostream& operator<<(std::ostream& out, const Shape& s) { return out << s.m << 'x' << s.n << 'x' << s.k; }

std::vector<Isa> isas() {
  std::vector<Isa> all;
  for (Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
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

double activation_f64(Activation activation, double x) {
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

Errors errors(const Problem& p, const std::vector<float>& c) {
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

constexpr Transpose kBoth[] = {Transpose::no, Transpose::yes};

// Sizes around the edges of tiles (1, 2, 4, 6, 8, 12 rows; 4, 8, 16, 32, 48, 64 columns) and primes.
const Shape kSmall[] = {{1, 1, 1},     {1, 17, 5},    {2, 3, 7},    {3, 5, 2},     {5, 7, 11},
                        {6, 16, 13},   {7, 15, 16},   {8, 33, 17},  {11, 31, 15},  {12, 47, 31},
                        {13, 48, 32},  {23, 49, 33},  {24, 63, 3},  {25, 64, 19},  {31, 65, 29},
                        {37, 79, 61},  {5, 81, 64},   {17, 97, 23}, {29, 113, 47}, {64, 64, 64},
                        {67, 128, 71}, {43, 129, 37}, {9, 191, 53}, {3, 257, 101}};

// Over the blocks of rows (192), of k (512, 2048) and the few-rows path.
const Shape kLarge[] = {{193, 67, 521}, {191, 131, 127}, {397, 43, 1031}, {7, 389, 2053}, {1, 1021, 769},
                        {61, 31, 4099}, {8, 512, 1024},  {33, 1031, 67},  {16, 403, 647}, {23, 131, 389}};

TEST_F(GemmTest, IntegersAreExact) {
  for (Isa isa : isas()) {
    set_isa(isa);
    for (const Shape& s : kSmall) {
      for (Transpose ta : kBoth) {
        for (Transpose tb : kBoth) {
          const Problem p(s, {.ta = ta,
                              .tb = tb,
                              .accumulate = s.m % 2 == 1,
                              .bias = true,
                              .residual = true,
                              .integers = true});
          EXPECT_EQ(errors(p, p.run()).kernel, 0) << isa_name(isa) << ' ' << s;
        }
      }
    }
  }
}

TEST_F(GemmTest, ErrorIsThatOfThePlainLoop) {
  for (Isa isa : isas()) {
    set_isa(isa);
    for (const Shape& s : kLarge) {
      if (isa == Isa::baseline && s.m * s.n * s.k > 5'000'000) continue;  // scalar code
      for (Transpose ta : kBoth) {
        for (Transpose tb : kBoth) {
          const Problem p(s, {.ta = ta, .tb = tb});
          SCOPED_TRACE(concat(isa_name(isa), ' ', s));
          errors(p, p.run()).expect_no_worse_than_naive(1e-7);
        }
      }
    }
  }
}

// Σ_k a(i, k) · b(k, j) as chains of fused multiply-adds, each `chain` long, added to *begin if there is one.
float chained(const Problem& p, int64_t i, int64_t j, int64_t chain, const float* begin) {
  float sum = begin ? *begin : 0;
  for (int64_t k = 0; k < p.shape.k; k += chain) {
    float part = 0;
    for (int64_t at = k; at < std::min(k + chain, p.shape.k); ++at) {
      part = std::fma(static_cast<float>(p.a_at(i, at)), static_cast<float>(p.b_at(at, j)), part);
    }
    sum = k == 0 && !begin ? part : sum + part;
  }
  return sum;
}

TEST_F(GemmTest, SumsAreChainsOf128) {
  for (Isa isa : isas()) {
    if (isa < Isa::avx2) continue;  // no FMA
    set_isa(isa);
    for (const Shape& s : {Shape{1, 80, 1100},
                           {3, 83, 300},
                           {6, 96, 129},
                           {7, 64, 257},
                           {8, 48, 640},
                           {9, 65, 128},
                           {200, 70, 1200}}) {
      for (int options = 0; options < 8; ++options) {
        const Problem p(
            s, {.ta = kBoth[options & 1], .tb = kBoth[options >> 1 & 1], .accumulate = (options & 4) != 0});
        const std::vector<float> c = p.run();
        for (int64_t i = 0; i<s.m; i += s.m> 9 ? 37 : 1) {
          for (int64_t j = 0; j < s.n; ++j) {
            const float* begin = p.options.accumulate ? &p.start[i * p.ldc + j] : nullptr;
            ASSERT_EQ(c[i * p.ldc + j], chained(p, i, j, 128, begin)) << isa_name(isa) << ' ' << s;
          }
        }
      }
    }
  }
}

// What the cuts are for: sums of positive terms, where the error of one chain grows with its length.
TEST_F(GemmTest, LongSumsAreMoreAccurateThanOneChain) {
  for (int64_t k : {512, 1024, 4096}) {
    Problem p({31, 33, k}, {});
    for (std::vector<float>* x : {&p.a, &p.b}) {
      for (float& v : *x) v = std::abs(v);
    }
    const std::vector<float> c = p.run();
    double ours = 0, chain = 0;
    for (int64_t i = 0; i < p.shape.m; ++i) {
      for (int64_t j = 0; j < p.shape.n; ++j) {
        double sum = 0;
        for (int64_t at = 0; at < k; ++at) sum += p.a_at(i, at) * p.b_at(at, j);
        ours += std::pow(c[i * p.ldc + j] - sum, 2), chain += std::pow(chained(p, i, j, k, nullptr) - sum, 2);
      }
    }
    EXPECT_LE(std::sqrt(ours), 0.6 * std::sqrt(chain)) << k;
  }
}

TEST_F(GemmTest, EpiloguesMatchF64) {
  for (Isa isa : isas()) {
    set_isa(isa);
    for (Activation activation :
         {Activation::none, Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
      for (int bits = 0; bits < 32; ++bits) {
        Options o{.tb = Transpose::yes, .activation = activation};
        o.accumulate = bits & 1, o.bias = bits & 2, o.pre_activation = bits & 4, o.residual = bits & 8,
        o.factor = bits & 16;
        for (const Shape& s :
             {Shape{13, 37, 11}, Shape{29, 71, 523}, Shape{3, 19, 700}, Shape{5, 0, 3}, Shape{7, 11, 0}}) {
          SCOPED_TRACE(
              concat(isa_name(isa), ' ', s, " activation ", static_cast<int>(activation), " bits ", bits));
          const Problem p(s, o);
          const Errors e = errors(p, p.run());
          e.expect_no_worse_than_naive(2e-7);
          EXPECT_LE(e.pre_activation, 4e-6 + 1e-7 * s.k);
        }
      }
    }
  }
}

TEST_F(GemmTest, EmptySumsAndEmptyResults) {
  for (Isa isa : isas()) {
    set_isa(isa);
    for (const Shape& s : {Shape{0, 5, 3}, Shape{5, 0, 3}, Shape{0, 0, 0}, Shape{5, 3, 0}}) {
      for (bool accumulate : {false, true}) {
        const Problem p(s, {.accumulate = accumulate, .bias = true});
        EXPECT_LE(errors(p, p.run()).kernel, 1e-6) << s;
      }
    }
  }
}

bool same_bits(const std::vector<float>& x, const std::vector<float>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

TEST_F(GemmTest, SameBitsForAnyThreadsAndInstructionSetWithFma) {
  const Shape shapes[] = {{401, 131, 523}, {1, 1031, 601}, {8, 769, 333},  {67, 61, 71},
                          {1021, 97, 64},  {64, 64, 64},   {33, 4099, 130}};
  for (const Shape& s : shapes) {
    for (Transpose ta : kBoth) {
      for (Transpose tb : kBoth) {
        const Problem p(
            s, {.ta = ta, .tb = tb, .accumulate = true, .bias = true, .activation = Activation::gelu});
        std::vector<float> first[2];  // without and with FMA
        for (Isa isa : isas()) {
          if (isa == Isa::baseline && s.m * s.n * s.k > 5'000'000) continue;
          set_isa(isa);
          for (int threads : {1, 2, 3, 8}) {
            set_num_threads(threads);
            const std::vector<float> c = p.run();
            std::vector<float>& expected = first[isa >= Isa::avx2];
            if (expected.empty()) expected = c;
            EXPECT_TRUE(same_bits(c, expected)) << s << ' ' << isa_name(isa) << " threads " << threads;
          }
        }
      }
    }
  }
}

TEST_F(GemmTest, SameBitsForARowAloneAndInABatch) {
  const Shape s{211, 199, 701};
  for (Isa isa : isas()) {
    set_isa(isa);
    for (Transpose tb : kBoth) {
      const Problem p(s, {.tb = tb, .bias = true, .activation = Activation::silu});
      const std::vector<float> whole = p.run();
      for (int64_t rows : {1, 2, 3, 5, 8, 13, 40, 97}) {
        for (int64_t row : {int64_t{0}, int64_t{1}, int64_t{113}}) {
          std::vector<float> part(static_cast<size_t>(rows * p.ldc), kNaN);
          GemmArgs<float> g = p.args(part.data(), nullptr);
          g.a += row * p.lda;
          g.m = rows;
          gemm(g);
          for (int64_t i = 0; i < rows; ++i) {
            EXPECT_EQ(std::memcmp(&part[i * p.ldc], &whole[(row + i) * p.ldc], s.n * sizeof(float)), 0)
                << isa_name(isa) << " row " << row + i << " of " << rows;
          }
        }
      }
    }
  }
}

// Columns, too: op(A)·op(B) for some columns of B alone.
TEST_F(GemmTest, SameBitsForSomeColumnsAlone) {
  const Shape s{37, 389, 601};
  const Problem p(s, {.tb = Transpose::yes});
  const std::vector<float> whole = p.run();
  for (int64_t columns : {1, 15, 16, 33, 64, 100}) {
    std::vector<float> part(whole.size(), kNaN);
    GemmArgs<float> g = p.args(part.data(), nullptr);
    g.b += 31 * p.ldb;
    g.n = columns;
    gemm(g);
    for (int64_t i = 0; i < s.m; ++i) {
      EXPECT_EQ(std::memcmp(&part[i * p.ldc], &whole[i * p.ldc + 31], columns * sizeof(float)), 0) << columns;
    }
  }
}

TEST_F(GemmTest, TransposesAgreeBitForBit) {
  for (const Shape& s : {Shape{101, 67, 530}, Shape{3, 200, 90}}) {
    const Problem p(s, {});
    const std::vector<float> expected = p.run();
    std::vector<float> at(static_cast<size_t>(s.m * s.k)), bt(static_cast<size_t>(s.n * s.k));
    for (int64_t k = 0; k < s.k; ++k) {
      for (int64_t i = 0; i < s.m; ++i) at[k * s.m + i] = p.a[i * p.lda + k];
      for (int64_t j = 0; j < s.n; ++j) bt[j * s.k + k] = p.b[k * p.ldb + j];
    }
    for (Transpose ta : kBoth) {
      for (Transpose tb : kBoth) {
        std::vector<float> c = p.poisoned();
        GemmArgs<float> g = p.args(c.data(), nullptr);
        if (ta == Transpose::yes) g.a = at.data(), g.lda = s.m, g.ta = ta;
        if (tb == Transpose::yes) g.b = bt.data(), g.ldb = s.k, g.tb = tb;
        gemm(g);
        EXPECT_TRUE(same_bits(c, expected)) << s;
      }
    }
  }
}

// A NaN or Inf touches its own row and column only, also through the zero-filled lanes of the last panel.
TEST_F(GemmTest, NonFiniteValuesStayInTheirRowAndColumn) {
  for (Isa isa : isas()) {
    set_isa(isa);
    Problem p({19, 37, 41}, {.tb = Transpose::yes});
    p.a[5 * p.lda + 7] = kNaN;
    p.b[11 * p.ldb + 3] = std::numeric_limits<float>::infinity();
    const std::vector<float> c = p.run();
    for (int64_t i = 0; i < 19; ++i) {
      for (int64_t j = 0; j < 37; ++j) {
        EXPECT_EQ(std::isfinite(c[i * p.ldc + j]), i != 5 && j != 11) << i << ',' << j;
      }
    }
  }
}

TEST_F(GemmTest, BatchesEqualSingleProducts) {
  const Shape s{13, 29, 37};
  const int64_t count = 5;
  for (int threads : {1, 3}) {
    set_num_threads(threads);
    const Problem p({s.m * count, s.n, s.k}, {.bias = true});
    std::vector<float> c = p.poisoned();
    GemmArgs<float> g = p.args(c.data(), nullptr);
    g.m = s.m;
    gemm_batched(g, {.count = count, .stride_a = s.m * p.lda, .stride_c = s.m * p.ldc});
    EXPECT_TRUE(same_bits(c, p.run()));
    gemm_batched(g, {.count = 0});
  }
}

TEST_F(GemmTest, F64MatchesLongDouble) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> real(-1, 1);
  for (const Shape& s : {Shape{1, 1, 1}, Shape{17, 523, 41}, Shape{33, 5, 67}, Shape{3, 7, 0}}) {
    for (Transpose ta : kBoth) {
      for (Transpose tb : kBoth) {
        std::vector<double> a(s.m * s.k + 1), b(s.k * s.n + 1), bias(s.n), residual(s.m * s.n),
            c(s.m * s.n, 0.5), pre(s.m * s.n, kNaN);
        for (std::vector<double>* x : {&a, &b, &bias, &residual}) {
          for (double& value : *x) value = real(random);
        }
        const int64_t lda = ta == Transpose::yes ? s.m : s.k, ldb = tb == Transpose::yes ? s.k : s.n;
        gemm(GemmArgs<double>{.a = a.data(),
                              .lda = lda,
                              .ta = ta,
                              .b = b.data(),
                              .ldb = ldb,
                              .tb = tb,
                              .c = c.data(),
                              .ldc = s.n,
                              .m = s.m,
                              .n = s.n,
                              .k = s.k,
                              .accumulate = true,
                              .bias = bias.data(),
                              .pre_activation = pre.data(),
                              .activation = Activation::gelu,
                              .residual = residual.data()});
        for (int64_t i = 0; i < s.m; ++i) {
          for (int64_t j = 0; j < s.n; ++j) {
            long double sum = 0.5L + bias[j];
            for (int64_t k = 0; k < s.k; ++k) {
              sum += static_cast<long double>(ta == Transpose::yes ? a[k * lda + i] : a[i * lda + k]) *
                     (tb == Transpose::yes ? b[j * ldb + k] : b[k * ldb + j]);
            }
            const double x = static_cast<double>(sum);
            EXPECT_NEAR(pre[i * s.n + j], x, 1e-13);
            EXPECT_NEAR(c[i * s.n + j], activation_f64(Activation::gelu, x) + residual[i * s.n + j], 1e-13);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace multihead::kernels
