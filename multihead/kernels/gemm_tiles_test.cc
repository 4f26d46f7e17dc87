// f32 products by bf16 parts: the plain loops in place of the tile instructions, their accuracy against f64,
// and that the words change nothing where there are no tiles.
#include "multihead/kernels/gemm_tiles.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/core/parallel.h"

namespace multihead::kernels {
namespace {

std::vector<float> normal(int64_t n, uint32_t seed) {
  std::mt19937 r(seed);
  std::normal_distribution<float> d;
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = d(r);
  return x;
}

struct Product {
  GemmArgs<float> g;
  std::vector<float> a, b, c;

  Product(int64_t m, int64_t n, int64_t k, Transpose ta, Transpose tb) {
    a = normal(m * k, 1), b = normal(k * n, 2), c.assign(static_cast<size_t>(m * n), std::nanf(""));
    g.m = m, g.n = n, g.k = k, g.ta = ta, g.tb = tb, g.ldc = n;
    g.lda = ta == Transpose::yes ? m : k, g.ldb = tb == Transpose::yes ? k : n;
    point();
  }
  void point() { g.a = a.data(), g.b = b.data(), g.c = c.data(); }

  // Root-mean-square error over root-mean-square result.
  double error() const {
    double wrong = 0, all = 0;
    for (int64_t i = 0; i < g.m; ++i) {
      for (int64_t j = 0; j < g.n; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < g.k; ++k) {
          const double x = g.a[g.ta == Transpose::yes ? k * g.lda + i : i * g.lda + k];
          sum += x * static_cast<double>(g.b[g.tb == Transpose::yes ? j * g.ldb + k : k * g.ldb + j]);
        }
        const double d = static_cast<double>(g.c[i * g.ldc + j]) - sum;
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
      gemm(p.g);
      const double f32 = p.error();
      const auto error = [&](MatmulPrecision precision) {
        std::fill(p.c.begin(), p.c.end(), std::nanf(""));
        gemm_on_tiles(p.g, precision, TileUnit::emulated);
        return p.error();
      };
      EXPECT_LE(error(MatmulPrecision::highest_tiles), f32);
      EXPECT_LE(error(MatmulPrecision::high), 5e-6);
      EXPECT_GE(error(MatmulPrecision::high), f32);  // it is not the six products
      EXPECT_LE(error(MatmulPrecision::medium), 3e-3);
      EXPECT_GE(error(MatmulPrecision::medium), 1e-3);
    }
  }
}

TEST(GemmTilesTest, SameBitsForAnyThreadsAndRowsAlone) {
  const int before = num_threads();
  Product p(259, 97, 160, Transpose::no, Transpose::no);
  set_num_threads(1);
  gemm_on_tiles(p.g, MatmulPrecision::high, TileUnit::emulated);
  const std::vector<float> one = p.c;
  for (int threads : {2, 3, 8}) {
    set_num_threads(threads);
    gemm_on_tiles(p.g, MatmulPrecision::high, TileUnit::emulated);
    EXPECT_EQ(p.c, one) << threads;
  }
  set_num_threads(before);
  p.g.a += 201 * 160, p.g.m = 1;
  gemm_on_tiles(p.g, MatmulPrecision::high, TileUnit::emulated);
  EXPECT_TRUE(std::equal(one.begin() + 201 * 97, one.begin() + 202 * 97, p.c.begin()));
}

TEST(GemmTilesTest, AddsToCAndKeepsExtremes) {
  Product p(33, 31, 65, Transpose::no, Transpose::no);
  std::fill(p.a.begin(), p.a.end(), 0.0f), std::fill(p.b.begin(), p.b.end(), 1.0f);
  p.a[0] = 3.3965e38f, p.a[65] = std::numeric_limits<float>::infinity();
  std::fill(p.c.begin(), p.c.end(), 2.0f);
  p.g.accumulate = true;
  for (MatmulPrecision precision : {MatmulPrecision::high, MatmulPrecision::highest_tiles}) {
    std::fill(p.c.begin(), p.c.end(), 2.0f);
    gemm_on_tiles(p.g, precision, TileUnit::emulated);
    EXPECT_NEAR(p.c[0] / 3.3965e38f, 1.0f, 1e-4f);  // rounds to Inf in bf16
    EXPECT_FALSE(std::isfinite(p.c[31]));
    EXPECT_EQ(p.c[62], 2.0f);
  }
}

TEST(GemmTilesTest, TheCpuDoesWhatTheLoopsDo) {
  if (!has_tiles()) GTEST_SKIP() << "needs AMX";
  Product p(131, 97, 1100, Transpose::no, Transpose::yes);
  gemm_on_tiles(p.g, MatmulPrecision::high, TileUnit::emulated);
  const std::vector<float> loops = p.c;
  gemm_on_tiles(p.g, MatmulPrecision::high, TileUnit::amx);
  EXPECT_EQ(p.c, loops);
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
