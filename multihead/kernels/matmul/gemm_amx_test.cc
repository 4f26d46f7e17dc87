// f32 products by bf16 parts: the plain loops in place of the tile instructions, their accuracy against f64,
// and that the words change nothing where there are no tiles.
#include "multihead/kernels/matmul/gemm_amx-inl.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "multihead/core/dtype.h"
#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/cpu/scratch-inl.h"
#include "multihead/testing/everywhere.h"

namespace multihead::kernels {
namespace {

using testing::normal_floats;

struct Product {
  GemmArgs<float> g;
  std::vector<float> a, b, c;

  Product(int64_t m, int64_t n, int64_t k, Transpose ta, Transpose tb) {
    a = normal_floats(m * k, 1), b = normal_floats(k * n, 2),
    c.assign(static_cast<size_t>(m * n), std::nanf(""));
    g.m = m, g.n = n, g.k = k, g.ta = ta, g.tb = tb, g.ldc = n;
    g.lda = ta == Transpose::yes ? m : k, g.ldb = tb == Transpose::yes ? k : n;
    point();
  }
  void point() { g.a = a.data(), g.b = b.data(), g.c = c.data(); }

  // Root-mean-square error over root-mean-square result, or that of plain loops (chains of FMAs).
  double error(bool of_loops = false) const {
    double wrong = 0, all = 0;
    for (int64_t i = 0; i < g.m; ++i) {
      for (int64_t j = 0; j < g.n; ++j) {
        double sum = 0;
        float loop = 0;
        for (int64_t k = 0; k < g.k; ++k) {
          const float x = g.a[g.ta == Transpose::yes ? k * g.lda + i : i * g.lda + k];
          const float y = g.b[g.tb == Transpose::yes ? j * g.ldb + k : k * g.ldb + j];
          sum += static_cast<double>(x) * static_cast<double>(y), loop = std::fma(x, y, loop);
        }
        const double d = static_cast<double>(of_loops ? loop : g.c[i * g.ldc + j]) - sum;
        wrong += d * d, all += sum * sum;
      }
    }
    return std::sqrt(wrong / all);
  }
};

struct PrecisionGuard {
  ~PrecisionGuard() { set_float32_matmul_precision(MatmulPrecision::highest); }
};

TEST(GemmTilesTest, ErrorsAreThoseOfTheParts) {
  for (Transpose ta : {Transpose::no, Transpose::yes}) {
    for (Transpose tb : {Transpose::no, Transpose::yes}) {
      Product p(67, 83, 1061, ta, tb);  // more than one block of k
      const double loops = p.error(true);
      const auto error = [&](MatmulPrecision precision) {
        std::fill(p.c.begin(), p.c.end(), std::nanf(""));
        gemm_on_tiles({p.g}, part_scheme(precision), TileUnit::emulated);
        return p.error();
      };
      EXPECT_LE(error(MatmulPrecision::highest_tiles), loops);
      EXPECT_LE(error(MatmulPrecision::high), 5e-6);
      EXPECT_GE(error(MatmulPrecision::high), loops);  // it is not the six products
      EXPECT_LE(error(MatmulPrecision::medium), 3e-3);
      EXPECT_GE(error(MatmulPrecision::medium), 1e-3);
    }
  }
}

// Steps of 32 k by plain loops: even and odd k have a sum each.
float sum_of_steps(const Product& p, int64_t i, int64_t j, float sum = 0) {
  const auto a = [&](int64_t k) {
    return static_cast<float>(BFloat16(p.g.a[p.g.ta == Transpose::yes ? k * p.g.lda + i : i * p.g.lda + k]));
  };
  const auto b = [&](int64_t k) {
    return static_cast<float>(BFloat16(p.g.b[p.g.tb == Transpose::yes ? j * p.g.ldb + k : k * p.g.ldb + j]));
  };
  for (int64_t k = 0; k < p.g.k; k += 32) {
    float even = 0, odd = 0;
    for (int64_t q = k; q < std::min(k + 32, p.g.k); q += 2) {
      even = std::fma(a(q), b(q), even);
      if (q + 1 < p.g.k) odd = std::fma(a(q + 1), b(q + 1), odd);
    }
    sum += even + odd;
  }
  return sum;
}

// The product in bf16 by every unit and number of threads, to C in f32 (+ C) or bf16, which start as
// `before`.
struct Bf16Product : Product {
  std::vector<BFloat16> a16, b16, c16;

  Bf16Product(int64_t m, int64_t n, int64_t k, Transpose ta, Transpose tb)
      : Product(m, n, k, ta, tb), a16(a.begin(), a.end()), b16(b.begin(), b.end()) {}

  // A in f32 or bf16, with the epilogue of `like`.
  void run(EngineArgs like, bool wide_a, bool to_bf16, TileUnit unit) {
    static_cast<GemmArgs<float>&>(like).a = wide_a ? a.data() : nullptr;
    like.a16 = wide_a ? nullptr : a16.data(), like.b = nullptr, like.b16 = b16.data();
    c16.assign(c.size(), BFloat16(std::nanf("")));
    like.c = to_bf16 ? nullptr : c.data(), like.c16 = to_bf16 ? c16.data() : nullptr;
    gemm_on_tiles(like, {}, unit);
  }
};

std::vector<TileUnit> units() {
  if (has_tiles()) return {TileUnit::emulated, TileUnit::amx};
  return {TileUnit::emulated};
}

struct Sizes {
  int64_t m, n, k;
};

// In place and packed, few rows, panels and columns, blocks of k, rows that crowd L1, edges everywhere.
TEST(GemmTilesTest, EveryOrderAddsStepsInOrder) {
  for (const Sizes& s : {Sizes{1, 1, 1},
                         {3, 70, 33},
                         {16, 65, 64},
                         {17, 33, 31},
                         {20, 97, 500},
                         {33, 31, 96},
                         {64, 64, 64},
                         {67, 129, 800},
                         {65, 100, 1024},
                         {160, 40, 417},
                         {40, 160, 417}}) {
    for (const auto& [ta, tb] : {std::pair{Transpose::no, Transpose::yes},
                                 {Transpose::no, Transpose::no},
                                 {Transpose::yes, Transpose::no},
                                 {Transpose::yes, Transpose::yes}}) {
      SCOPED_TRACE(concat(s.m, "x", s.n, "x", s.k, ta == Transpose::yes ? " T" : " N",
                          tb == Transpose::yes ? "T" : "N"));
      Bf16Product p(s.m, s.n, s.k, ta, tb);
      std::vector<float> expected(p.c.size()), continued(p.c.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        const int64_t row = static_cast<int64_t>(i) / s.n, column = static_cast<int64_t>(i) % s.n;
        expected[i] = sum_of_steps(p, row, column), continued[i] = sum_of_steps(p, row, column, 0.25f);
      }
      const std::vector<BFloat16> rounded(expected.begin(), expected.end());
      for (const TileUnit unit : units()) {
        for (const bool wide_a : {false, true}) {
          std::fill(p.c.begin(), p.c.end(), std::nanf(""));
          p.run({p.g}, wide_a, false, unit);
          EXPECT_EQ(p.c, expected) << wide_a;
        }
        EngineArgs more{p.g};
        more.accumulate = true;
        std::fill(p.c.begin(), p.c.end(), 0.25f);
        p.run(more, false, false, unit);
        EXPECT_EQ(p.c, continued);
        p.run({p.g}, false, true, unit);
        EXPECT_EQ(0, std::memcmp(p.c16.data(), rounded.data(), 2 * rounded.size()));
      }
    }
  }
}

// Sums that start from C, and every epilogue: as finish_block() of the sums.
TEST(GemmTilesTest, EpiloguesFollowTheSums) {
  const int before = num_threads();
  for (const Sizes& s : {Sizes{9, 70, 65}, {67, 45, 96}, {70, 100, 801}}) {
    const std::vector<float> bias = normal_floats(s.n, 3), residual = normal_floats(s.m * s.n, 4);
    const std::vector<BFloat16> residual16(residual.begin(), residual.end());
    for (const auto& [ta, tb] : {std::pair{Transpose::no, Transpose::yes},
                                 {Transpose::no, Transpose::no},
                                 {Transpose::yes, Transpose::no},
                                 {Transpose::yes, Transpose::yes}}) {
      Bf16Product p(s.m, s.n, s.k, ta, tb);
      std::vector<float> sums(p.c.size());
      for (size_t i = 0; i < sums.size(); ++i)
        sums[i] = sum_of_steps(p, static_cast<int64_t>(i) / s.n, static_cast<int64_t>(i) % s.n);
      for (int kind = 0; kind < 3; ++kind) {
        EngineArgs g{p.g};
        g.bias = bias.data();
        if (kind > 0) g.activation = Activation::gelu;
        for (const bool to_bf16 : {false, true}) {
          if (kind > 1 && to_bf16) g.residual16 = residual16.data();
          if (kind > 1 && !to_bf16) g.residual = residual.data();
          std::vector<float> c = sums;
          std::vector<BFloat16> c16(sums.size());
          EngineArgs after = g;
          after.c = to_bf16 ? nullptr : c.data(), after.c16 = to_bf16 ? c16.data() : nullptr;
          finish_block(after, {0, s.m, 0, s.n, sums.data(), s.n});
          for (const int threads : {1, 3}) {
            set_num_threads(threads);
            for (const TileUnit unit : units()) {
              p.run(g, false, to_bf16, unit);
              EXPECT_TRUE(to_bf16 ? std::memcmp(p.c16.data(), c16.data(), 2 * c16.size()) == 0 : p.c == c)
                  << kind;
            }
          }
          g.residual = nullptr, g.residual16 = nullptr;
        }
      }
    }
  }
  set_num_threads(before);
}

// Transposed operands change places where C has more rows than columns.
TEST(GemmTilesTest, SameBitsForAnyThreadsAndRowsAlone) {
  const int before = num_threads();
  for (Transpose ta : {Transpose::no, Transpose::yes}) {
    Product p(259, 97, 160, ta, Transpose::no);
    set_num_threads(1);
    gemm_on_tiles({p.g}, part_scheme(MatmulPrecision::high), TileUnit::emulated);
    const std::vector<float> one = p.c;
    for (int threads : {2, 3, 8}) {
      set_num_threads(threads);
      gemm_on_tiles({p.g}, part_scheme(MatmulPrecision::high), TileUnit::emulated);
      EXPECT_EQ(p.c, one) << threads;
    }
    set_num_threads(before);
    p.g.a += 201 * (ta == Transpose::yes ? 1 : 160), p.g.m = 1;
    gemm_on_tiles({p.g}, part_scheme(MatmulPrecision::high), TileUnit::emulated);
    EXPECT_TRUE(std::equal(one.begin() + 201 * 97, one.begin() + 202 * 97, p.c.begin()));
  }
}

// Tasks that pack pairs of their own, or all of X, and those that share what was packed before.
TEST(GemmTilesTest, EveryPlanOfTasksHasTheSameBits) {
  const int before = num_threads();
  for (const auto& [s, ta] : {std::pair{Sizes{40, 1170, 65}, Transpose::no},
                              {Sizes{1170, 40, 65}, Transpose::no},
                              {Sizes{210, 70, 417}, Transpose::yes},
                              {Sizes{70, 210, 417}, Transpose::yes}}) {
    Bf16Product p(s.m, s.n, s.k, ta, ta == Transpose::yes ? Transpose::no : Transpose::yes);
    for (const TileUnit unit : units()) {
      set_num_threads(1);
      p.run({p.g}, false, true, unit);
      const std::vector<BFloat16> one = p.c16;
      for (const int threads : {2, 3, 4, 16}) {
        set_num_threads(threads);
        p.run({p.g}, false, true, unit);
        EXPECT_EQ(0, std::memcmp(p.c16.data(), one.data(), 2 * one.size())) << s.m << " " << threads;
      }
    }
  }
  set_num_threads(before);
}

TEST(GemmTilesTest, AddsToCAndKeepsExtremes) {
  Product p(33, 31, 65, Transpose::no, Transpose::no);
  std::fill(p.a.begin(), p.a.end(), 0.0f), std::fill(p.b.begin(), p.b.end(), 1.0f);
  p.a[0] = 3.3965e38f;  // rounds to Inf in bf16
  p.g.accumulate = true;
  for (MatmulPrecision precision : {MatmulPrecision::high, MatmulPrecision::highest_tiles}) {
    std::fill(p.c.begin(), p.c.end(), 2.0f);
    gemm_on_tiles({p.g}, part_scheme(precision), TileUnit::emulated);
    EXPECT_NEAR(p.c[0] / 3.3965e38f, 1.0f, 1e-4f);
    EXPECT_EQ(p.c[31], 2.0f);
    EXPECT_EQ(p.c[62], 2.0f);
  }
}

// Inf, -Inf and NaN in both operands, before and after numbers of either sign, in both blocks of k: every
// element is what the f32 kernel gives, up to rounding.
TEST(GemmTilesTest, InfAndNanAreThoseOfIeee) {
  const float inf = std::numeric_limits<float>::infinity();
  for (Transpose ta : {Transpose::no, Transpose::yes}) {
    for (Transpose tb : {Transpose::no, Transpose::yes}) {
      Product p(41, 37, 1061, ta, tb);
      const auto a = [&](int64_t i, int64_t k) -> float& {
        return p.a[ta == Transpose::yes ? k * p.g.lda + i : i * p.g.lda + k];
      };
      const auto b = [&](int64_t k, int64_t j) -> float& {
        return p.b[tb == Transpose::yes ? j * p.g.ldb + k : k * p.g.ldb + j];
      };
      a(3, 5) = inf, a(17, 1050) = -inf, a(30, 7) = std::nanf(""), a(31, 9) = inf, a(31, 10) = -inf;
      b(5, 2) = 0, b(6, 4) = inf, b(1050, 20) = -inf, b(700, 33) = std::nanf(""), b(5, 11) = inf;
      a(8, 6) = 0, a(9, 6) = 1.00390625f;  // a number whose second part is zero
      gemm(p.g);
      const std::vector<float> ieee = p.c;
      for (auto precision :
           {MatmulPrecision::high, MatmulPrecision::medium, MatmulPrecision::highest_tiles}) {
        std::fill(p.c.begin(), p.c.end(), 7.0f);
        gemm_on_tiles({p.g}, part_scheme(precision), TileUnit::emulated);
        for (size_t i = 0; i < ieee.size(); ++i) {
          if (std::isnan(ieee[i])) {
            ASSERT_TRUE(std::isnan(p.c[i])) << i;
          } else if (std::isinf(ieee[i])) {
            ASSERT_EQ(p.c[i], ieee[i]) << i;
          } else {
            ASSERT_NEAR(p.c[i], ieee[i], 1.0f) << i;
          }
        }
      }
    }
  }
}

// gemm() must come here by itself.
TEST(GemmTilesTest, TheCpuDoesWhatTheLoopsDo) {
  if (!has_tiles()) GTEST_SKIP() << "needs AMX";
  const PrecisionGuard guard;
  for (auto precision : {MatmulPrecision::high, MatmulPrecision::medium, MatmulPrecision::highest_tiles}) {
    for (int64_t m : {33, 131}) {
      Product p(m, 67, 1100, m == 33 ? Transpose::yes : Transpose::no, Transpose::yes);
      p.a[40] = std::numeric_limits<float>::infinity();
      gemm_on_tiles({p.g}, part_scheme(precision), TileUnit::emulated);
      const std::vector<float> loops = p.c;
      std::fill(p.c.begin(), p.c.end(), 7.0f);
      gemm_on_tiles({p.g}, part_scheme(precision), TileUnit::amx);
      EXPECT_EQ(0, std::memcmp(p.c.data(), loops.data(), 4 * loops.size())) << precision_name(precision);
      set_float32_matmul_precision(precision);
      std::fill(p.c.begin(), p.c.end(), 7.0f);
      gemm(p.g);
      EXPECT_EQ(0, std::memcmp(p.c.data(), loops.data(), 4 * loops.size())) << precision_name(precision);
      p.g.m = 1;
      gemm(p.g);
      EXPECT_EQ(0, std::memcmp(p.c.data(), loops.data(), 4 * 67)) << precision_name(precision);
    }
  }
}

TEST(GemmTilesTest, TheCpuMultipliesBf16AsTheLoopsDo) {
  if (!bf16_tiles()) GTEST_SKIP() << "needs AMX";
  for (int64_t m : {1, 33, 131}) {
    Product p(m, 67, 1100, Transpose::no, Transpose::yes);
    const std::vector<BFloat16> weight(p.b.begin(), p.b.end());
    EngineArgs g{p.g};
    g.b = nullptr, g.b16 = weight.data();
    gemm_on_tiles(g, {}, TileUnit::emulated);
    const std::vector<float> loops = p.c;
    std::fill(p.c.begin(), p.c.end(), 7.0f);
    gemm_on_tiles(g, {}, TileUnit::amx);
    EXPECT_EQ(p.c, loops) << m;
  }
}

TEST(PrecisionTest, WithoutTilesTheWordsChangeNothing) {
  if (has_tiles()) GTEST_SKIP() << "this CPU has tiles";
  const PrecisionGuard guard;
  Product p(67, 83, 161, Transpose::no, Transpose::no);
  gemm(p.g);
  const std::vector<float> highest = p.c;
  for (const char* word : {"high", "medium", "highest_tiles", "highest"}) {
    set_float32_matmul_precision(parse_precision(word));
    EXPECT_EQ(precision_name(float32_matmul_precision()), word);
    std::fill(p.c.begin(), p.c.end(), std::nanf(""));
    gemm(p.g);
    EXPECT_EQ(p.c, highest) << word;
  }
}

TEST(PrecisionTest, RefusesOtherWords) {
  EXPECT_THROW(parse_precision("low"), ValueError);
  EXPECT_THROW(parse_precision(""), ValueError);
  EXPECT_EQ(float32_matmul_precision(), MatmulPrecision::highest);
}

}  // namespace
}  // namespace multihead::kernels
