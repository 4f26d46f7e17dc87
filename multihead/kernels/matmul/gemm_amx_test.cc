// f32 products by bf16 parts: the plain loops in place of the tile instructions, their accuracy against f64,
// and that the words change nothing where there are no tiles.
#include "multihead/kernels/matmul/gemm_amx-inl.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "multihead/core/dtype.h"
#include "multihead/core/error.h"
#include "multihead/core/parallel.h"
#include "multihead/kernels/cpu/scratch-inl.h"

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

TEST(GemmTilesTest, SameBitsForAnyThreadsAndRowsAlone) {
  const int before = num_threads();
  Product p(259, 97, 160, Transpose::no, Transpose::no);
  set_num_threads(1);
  gemm_on_tiles({p.g}, part_scheme(MatmulPrecision::high), TileUnit::emulated);
  const std::vector<float> one = p.c;
  for (int threads : {2, 3, 8}) {
    set_num_threads(threads);
    gemm_on_tiles({p.g}, part_scheme(MatmulPrecision::high), TileUnit::emulated);
    EXPECT_EQ(p.c, one) << threads;
  }
  set_num_threads(before);
  p.g.a += 201 * 160, p.g.m = 1;
  gemm_on_tiles({p.g}, part_scheme(MatmulPrecision::high), TileUnit::emulated);
  EXPECT_TRUE(std::equal(one.begin() + 201 * 97, one.begin() + 202 * 97, p.c.begin()));
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

// Of every width that a panel may have, with and without a whole last step.
TEST(GemmTilesTest, PackedBf16HasTheBitsOfTheProduct) {
  const int before = num_threads();
  for (const auto& [rows, out, in] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                                      {3, 64, 32},
                                      {17, 67, 95},
                                      {33, 160, 257},
                                      {50, 111, 64},
                                      {260, 199, 515}}) {
    Product p(rows, out, in, Transpose::no, Transpose::yes);
    const std::vector<BFloat16> weight(p.b.begin(), p.b.end());
    const std::vector<float> bias = normal(out, 3), residual = normal(rows * out, 4);
    EngineArgs g{p.g};
    g.b = nullptr, g.b16 = weight.data();
    g.bias = bias.data(), g.activation = Activation::gelu, g.residual = residual.data();
    gemm_on_tiles(g, {}, TileUnit::emulated);
    const std::vector<float> expected = p.c;
    Scratch memory;
    auto* packed = memory.get<char>(static_cast<size_t>(packed_weight_bytes(WeightDtype::bf16, out, in)));
    pack_weight(WeightDtype::bf16, p.b.data(), in, out, in, packed);
    for (const int threads : {1, 3}) {
      set_num_threads(threads);
      std::fill(p.c.begin(), p.c.end(), std::nanf(""));
      packed_linear_on_tiles({.x = p.a.data(),
                              .ldx = in,
                              .packed = packed,
                              .dtype = WeightDtype::bf16,
                              .y = p.c.data(),
                              .ldy = out,
                              .rows = rows,
                              .out = out,
                              .in = in,
                              .bias = bias.data(),
                              .activation = Activation::gelu,
                              .residual = residual.data()},
                             TileUnit::emulated);
      EXPECT_EQ(p.c, expected) << rows << " x " << out << " x " << in << ", threads " << threads;
    }
  }
  set_num_threads(before);
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
