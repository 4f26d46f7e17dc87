// Products of bf16 matrices: widened, beside the f32 product of the same numbers; in pairs, where the CPU has
// them; and on tiles, by plain loops where it has none.
#include <tuple>

#include "multihead/kernels/cpu/isa.h"
#include "multihead/kernels/matmul/gemm_amx-inl.h"
#include "multihead/kernels/matmul/testing-inl.h"
#include "multihead/testing/sanitizers.h"

namespace multihead::kernels::gemm_testing {
namespace {

constexpr Dtype kTypes[] = {Dtype::f32, Dtype::bf16};

// The same numbers in either type.
struct Both {
  explicit Both(const std::vector<float>& x) : wide(x), narrow(x.begin(), x.end()) {}
  GemmMatrix as(Dtype dtype) const {
    return dtype == Dtype::f32 ? GemmMatrix(wide.data()) : GemmMatrix(narrow.data());
  }

  std::vector<float> wide;
  std::vector<BFloat16> narrow;
};

std::vector<float> rounded(const std::vector<float>& x) {
  std::vector<float> y;
  for (float v : x) y.push_back(static_cast<float>(BFloat16(v)));
  return y;
}

struct Results {
  std::vector<float> c, pre_activation;
};

void on_emulated_tiles(const MixedGemmArgs& args) {
  if (args.k == 0) return gemm_mixed(args);
  gemm_on_tiles(engine_args(args), {}, TileUnit::emulated);
}

Results run_mixed(const Problem& p, Dtype a, Dtype b, Dtype c,
                  void (*multiply)(const MixedGemmArgs&) = gemm_mixed) {
  const Both left(p.a), right(p.b), residual(p.residual);
  Results out{p.poisoned(), p.poisoned()};
  Both to(out.c), pre(out.pre_activation);
  const GemmArgs<float> f32 = p.args(nullptr, nullptr);
  multiply({.a = left.as(a),
            .lda = p.lda,
            .ta = f32.ta,
            .b = right.as(b),
            .ldb = p.ldb,
            .tb = f32.tb,
            .c = to.as(c),
            .ldc = p.ldc,
            .m = f32.m,
            .n = f32.n,
            .k = f32.k,
            .accumulate = f32.accumulate,
            .bias = f32.bias,
            .pre_activation = p.options.pre_activation ? pre.as(c) : GemmMatrix(),
            .activation = f32.activation,
            .factor = f32.factor,
            .residual = p.options.residual ? residual.as(c) : GemmMatrix()});
  const auto result = [c](const Both& x) {
    return c == Dtype::f32 ? x.wide : std::vector<float>(x.narrow.begin(), x.narrow.end());
  };
  return {result(to), result(pre)};
}

class WidenedTest : public GemmTest {
 protected:
  WidenedTest() { set_bf16_dots(false); }
  ~WidenedTest() override { set_bf16_dots(true); }
};

// Engines that multiply neighbours in k.
class NarrowTest : public GemmTest, public ::testing::WithParamInterface<std::string_view> {
 protected:
  void SetUp() override {
    if (multiply == gemm_mixed && !bf16_dots() && !bf16_tiles()) GTEST_SKIP() << "no fast bf16 dot products";
  }
  void (*multiply)(const MixedGemmArgs&) = GetParam() == "emulated_tiles" ? on_emulated_tiles : gemm_mixed;
};
INSTANTIATE_TEST_SUITE_P(Units, NarrowTest, ::testing::Values("this_cpu", "emulated_tiles"),
                         [](const auto& unit) { return std::string(unit.param); });

// Inputs become bf16 numbers first.
void expect_f32_product(Problem& p, Dtype a, Dtype b, Dtype c,
                        void (*multiply)(const MixedGemmArgs&) = gemm_mixed) {
  SCOPED_TRACE(concat(p.shape, ": ", a, ", ", b, " -> ", c));
  for (std::vector<float>* x : {&p.a, &p.b, &p.residual}) *x = rounded(*x);
  const Results got = run_mixed(p, a, b, c, multiply);
  std::vector<float> expected = p.run(), pre = p.last_pre_activation;
  if (c == Dtype::bf16) expected = rounded(expected), pre = rounded(pre);
  EXPECT_TRUE(same_bits(got.c, expected));
  EXPECT_TRUE(!p.options.pre_activation || same_bits(got.pre_activation, pre));
}

TEST_F(WidenedTest, IsTheF32ProductRoundedOnce) {
  for (Isa isa : isas()) {
    set_isa(isa);
    for (const Shape& s : kSmall) {
      for (int kind = 0; kind < 32; ++kind) {
        Problem p(s, {.ta = kBoth[kind & 1], .tb = kBoth[kind >> 1 & 1]});
        expect_f32_product(p, kTypes[kind >> 2 & 1], kTypes[kind >> 3 & 1], kTypes[kind >> 4 & 1]);
      }
    }
  }
}

TEST_F(WidenedTest, OfAnyThreadCountOverBlocks) {
  for (const Shape& s : kLarge) {
    for (int kind = 0; kind < 8; ++kind) {
      set_num_threads(1 + kind % 3);
      Problem p(s, {.ta = kBoth[kind & 1], .tb = kBoth[kind >> 1 & 1]});
      const Dtype a = kTypes[kind % 3 != 0], b = kTypes[kind % 3 != 1], c = kTypes[kind >> 2];
      expect_f32_product(p, a, b, c);
    }
  }
}

TEST_F(WidenedTest, Epilogues) {
  for (Isa isa : isas()) {
    set_isa(isa);
    for (Activation activation : {Activation::none, Activation::relu, Activation::gelu, Activation::silu}) {
      for (int bits = 0; bits < 32; ++bits) {
        for (const Shape& s : {Shape{7, 37, 19}, {29, 64, 33}, {5, 16, 0}}) {
          Options o{.tb = Transpose::yes, .activation = activation};
          o.bias = bits & 1, o.pre_activation = bits & 2, o.residual = bits & 4, o.factor = bits & 8;
          o.accumulate = (bits & 16) == 0 && s.m == 7;
          Problem p(s, o);
          expect_f32_product(p, Dtype::bf16, Dtype::bf16, kTypes[bits >> 4]);
        }
      }
    }
  }
}

TEST_F(GemmTest, Bf16RowsDoNotDependOnEachOther) {
  Problem all({67, 79, 300}, {.tb = Transpose::yes});
  const Results whole = run_mixed(all, Dtype::bf16, Dtype::bf16, Dtype::bf16);
  for (int64_t m : {1, 6, 31}) {
    Problem some = all;
    some.shape.m = m;
    const Results part = run_mixed(some, Dtype::bf16, Dtype::bf16, Dtype::bf16);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < 79; ++j) ASSERT_EQ(part.c[i * all.ldc + j], whole.c[i * all.ldc + j]) << m;
    }
  }
}

// Sums of small integers are exact, whatever their order.
TEST_P(NarrowTest, EveryNumberIsMultipliedOnceInEveryLayout) {
  for (const auto& shapes : {std::vector<Shape>(std::begin(kSmall), std::end(kSmall)),
                             std::vector<Shape>(std::begin(kLarge), std::end(kLarge))}) {
    for (const Shape& s : shapes) {
      for (int kind = 0; kind < 32; kind += multihead::testing::kSanitized ? 5 : 1) {
        if (shapes.size() == std::size(kLarge) && kind % 5 != 0) continue;
        Options o{.ta = kBoth[kind & 1], .tb = kBoth[kind >> 1 & 1], .padding = kind % 3, .integers = true};
        o.accumulate = (kind & 16) == 0;
        set_num_threads(1 + kind % 3);
        Problem p(s, o);
        expect_f32_product(p, kTypes[kind >> 2 & 1], Dtype::bf16, kTypes[kind >> 4 & 1], multiply);
        expect_f32_product(p, Dtype::bf16, kTypes[kind >> 3 & 1], kTypes[kind >> 4 & 1], multiply);
      }
    }
  }
}

TEST_P(NarrowTest, SumsAreAsAccurateAsThoseOfF32) {
  for (const Shape& s : {Shape{67, 79, 300}, {193, 67, 521}, {1, 97, 4099}, {23, 131, 389}}) {
    for (int kind = 0; kind < 4; ++kind) {
      Problem p(s, {.ta = kBoth[kind & 1], .tb = kBoth[kind >> 1], .accumulate = kind == 1});
      for (std::vector<float>* x : {&p.a, &p.b}) *x = rounded(*x);
      errors(p, run_mixed(p, Dtype::bf16, Dtype::bf16, Dtype::f32, multiply).c)
          .expect_no_worse_than_naive(1e-6);
    }
  }
}

// Few rows or many, where words lie or copied, in f32 or bf16, on any number of threads.
TEST_P(NarrowTest, AnElementHasTheBitsOfItsRowAndColumn) {
  Problem all({67, 79, 600}, {.tb = Transpose::yes});
  for (std::vector<float>* x : {&all.a, &all.b}) *x = rounded(*x);
  const Results whole = run_mixed(all, Dtype::bf16, Dtype::bf16, Dtype::f32, multiply);
  for (const auto& [m, padding, type, threads] :
       std::vector<std::tuple<int64_t, int64_t, Dtype, int>>{{67, 4, Dtype::bf16, 1},
                                                             {67, 3, Dtype::f32, 8},
                                                             {24, 4, Dtype::bf16, 2},
                                                             {1, 4, Dtype::bf16, 3},
                                                             {9, 3, Dtype::f32, 1}}) {
    set_num_threads(threads);
    Problem some({m, 79, 600}, {.tb = Transpose::yes, .padding = padding});
    for (int64_t k = 0; k < 600; ++k) {
      for (int64_t i = 0; i < m; ++i) some.a[i * some.lda + k] = all.a[i * all.lda + k];
      for (int64_t j = 0; j < 79; ++j) some.b[j * some.ldb + k] = all.b[j * all.ldb + k];
    }
    const Results part = run_mixed(some, type, Dtype::bf16, Dtype::f32, multiply);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < 79; ++j)
        ASSERT_EQ(part.c[i * some.ldc + j], whole.c[i * all.ldc + j])
            << m << ' ' << padding << ' ' << threads;
    }
  }
}

TEST_P(NarrowTest, EpiloguesAreThoseOfTheWidenedProduct) {
  for (Activation activation : {Activation::none, Activation::relu, Activation::gelu, Activation::silu}) {
    for (int bits = 0; bits < 32; ++bits) {
      for (const Shape& s : {Shape{7, 37, 18}, {31, 64, 33}, {5, 16, 0}}) {
        Options o{.tb = Transpose::yes, .activation = activation};
        o.bias = bits & 1, o.pre_activation = bits & 2, o.residual = bits & 4, o.factor = bits & 8;
        Problem p(s, o);
        for (std::vector<float>* x : {&p.a, &p.b}) *x = rounded(*x);
        const Results got = run_mixed(p, Dtype::bf16, Dtype::bf16, kTypes[bits >> 4], multiply);
        set_bf16_dots(false);
        const Results want = run_mixed(p, Dtype::bf16, Dtype::bf16, kTypes[bits >> 4]);
        set_bf16_dots(true);
        const float most = bits >> 4 ? 0.04f : 1e-5f;
        for (size_t i = 0; i < got.c.size(); ++i) {
          ASSERT_NEAR(got.c[i], want.c[i], most) << s << " options " << bits;
          if (!o.pre_activation || std::isnan(want.pre_activation[i])) continue;
          ASSERT_NEAR(got.pre_activation[i], want.pre_activation[i], most) << s << " options " << bits;
        }
      }
    }
  }
}

TEST_P(NarrowTest, InfinityAndNanStayInTheirRowsAndColumns) {
  Problem p({29, 35, 71}, {});
  p.a[3 * p.lda + 70] = std::numeric_limits<float>::infinity();
  p.b[11 * p.ldb + 34] = kNaN;
  for (const Dtype type : kTypes) {
    const Results r = run_mixed(p, type, Dtype::bf16, Dtype::f32, multiply);
    for (int64_t i = 0; i < 29; ++i) {
      for (int64_t j = 0; j < 35; ++j) {
        const float c = r.c[i * p.ldc + j];
        EXPECT_EQ(std::isnan(c), j == 34) << i << ',' << j;
        EXPECT_EQ(std::isinf(c), i == 3 && j != 34) << i << ',' << j;
      }
    }
  }
}

}  // namespace
}  // namespace multihead::kernels::gemm_testing
