// Which bits of a matrix product depend on nothing but its own row and column.
#include "multihead/kernels/matmul/testing-inl.h"

namespace multihead::kernels::gemm_testing {
namespace {

class GemmBitsTest : public GemmTest {};

TEST_F(GemmBitsTest, SameBitsForAnyThreadsAndInstructionSetWithFma) {
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

TEST_F(GemmBitsTest, SameBitsForARowAloneAndInABatch) {
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
TEST_F(GemmBitsTest, SameBitsForSomeColumnsAlone) {
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

TEST_F(GemmBitsTest, TransposesAgreeBitForBit) {
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

}  // namespace
}  // namespace multihead::kernels::gemm_testing
