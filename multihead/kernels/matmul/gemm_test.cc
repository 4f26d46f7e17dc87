#include "multihead/core/threads/interrupt.h"
#include "multihead/kernels/matmul/testing-inl.h"

namespace multihead::kernels::gemm_testing {
namespace {

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

// The cuts are for sums of positive terms, where the error of one chain grows with its length.
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
    const GemmArgs<float> whole = p.args(c.data(), nullptr);
    const MixedGemmArgs g{.a = whole.a,
                          .lda = whole.lda,
                          .b = whole.b,
                          .ldb = whole.ldb,
                          .c = static_cast<const float*>(whole.c),
                          .ldc = whole.ldc,
                          .m = s.m,
                          .n = s.n,
                          .k = s.k,
                          .bias = whole.bias};
    gemm_batched(g, {.count = count, .stride_a = s.m * p.lda, .stride_c = s.m * p.ldc});
    EXPECT_TRUE(same_bits(c, p.run()));
    gemm_batched(g, {.count = 0});
  }
}

// f64 is the specification of gradients: its order is fixed as that of f32 is.
TEST_F(GemmTest, AnInterruptEndsTheProductOfOneThread) {
  const int before = num_threads();
  set_num_threads(1);
  const Problem p({64, 64, 8 * 1024}, {});
  int64_t asked = 0;
  {
    const InterruptScope scope([&] {
      if (++asked == 3) throw ValueError("enough");
    });
    EXPECT_THROW(p.run(), ValueError);
  }
  EXPECT_EQ(asked, 3);
  set_num_threads(before);
}

TEST_F(GemmTest, F64SumsAreChainsOf128OnAnyNumberOfThreads) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> real(-1, 1);
  for (const Shape& s : {Shape{1, 83, 1100}, Shape{7, 64, 257}, Shape{131, 70, 1200}, Shape{205, 33, 129}}) {
    std::vector<double> a(s.m * s.k), b(s.k * s.n), first(s.m * s.n);
    for (std::vector<double>* x : {&a, &b, &first}) {
      for (double& value : *x) value = real(random);
    }
    for (int options = 0; options < 8; ++options) {
      const bool ta = options & 1, tb = options & 2, accumulate = options & 4;
      const int64_t lda = ta ? s.m : s.k, ldb = tb ? s.k : s.n;
      const auto product = [&] {
        std::vector<double> c = accumulate ? first : std::vector<double>(s.m * s.n, kNaN);
        gemm(GemmArgs<double>{.a = a.data(),
                              .lda = lda,
                              .ta = kBoth[ta],
                              .b = b.data(),
                              .ldb = ldb,
                              .tb = kBoth[tb],
                              .c = c.data(),
                              .ldc = s.n,
                              .m = s.m,
                              .n = s.n,
                              .k = s.k,
                              .accumulate = accumulate});
        return c;
      };
      for (Isa isa : isas()) {
        if (isa < Isa::avx2) continue;  // no FMA
        set_isa(isa);
        set_num_threads(1);
        const std::vector<double> c = product();
        for (int64_t i = 0; i<s.m; i += s.m> 9 ? 37 : 1) {
          for (int64_t j = 0; j < s.n; ++j) {
            double sum = accumulate ? first[i * s.n + j] : 0;
            for (int64_t k = 0; k < s.k; k += 128) {
              double part = 0;
              for (int64_t at = k; at < std::min(k + 128, s.k); ++at) {
                part = std::fma(ta ? a[at * lda + i] : a[i * lda + at],
                                tb ? b[j * ldb + at] : b[at * ldb + j], part);
              }
              sum = k == 0 && !accumulate ? part : sum + part;
            }
            ASSERT_EQ(c[i * s.n + j], sum) << isa_name(isa) << ' ' << s << ' ' << options;
          }
        }
        for (int threads : {2, 3, 8}) {
          set_num_threads(threads);
          ASSERT_EQ(product(), c) << isa_name(isa) << ' ' << s << " threads " << threads;
        }
      }
    }
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
}  // namespace multihead::kernels::gemm_testing
