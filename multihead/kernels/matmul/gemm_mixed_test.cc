// Products of bf16 matrices beside the f32 product of the same numbers.
#include "multihead/kernels/matmul/testing-inl.h"

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

Results run_mixed(const Problem& p, Dtype a, Dtype b, Dtype c) {
  const Both left(p.a), right(p.b), residual(p.residual);
  Results out{p.poisoned(), p.poisoned()};
  Both to(out.c), pre(out.pre_activation);
  const GemmArgs<float> f32 = p.args(nullptr, nullptr);
  gemm_mixed({.a = left.as(a),
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

// Inputs become bf16 numbers first.
void expect_f32_product(Problem& p, Dtype a, Dtype b, Dtype c) {
  SCOPED_TRACE(concat(p.shape, ": ", a, ", ", b, " -> ", c));
  for (std::vector<float>* x : {&p.a, &p.b, &p.residual}) *x = rounded(*x);
  const Results got = run_mixed(p, a, b, c);
  std::vector<float> expected = p.run(), pre = p.last_pre_activation;
  if (c == Dtype::bf16) expected = rounded(expected), pre = rounded(pre);
  EXPECT_TRUE(same_bits(got.c, expected));
  EXPECT_TRUE(!p.options.pre_activation || same_bits(got.pre_activation, pre));
}

TEST_F(GemmTest, Bf16IsTheF32ProductRoundedOnce) {
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

TEST_F(GemmTest, Bf16OfAnyThreadCountOverBlocks) {
  for (const Shape& s : kLarge) {
    for (int kind = 0; kind < 8; ++kind) {
      set_num_threads(1 + kind % 3);
      Problem p(s, {.ta = kBoth[kind & 1], .tb = kBoth[kind >> 1 & 1]});
      const Dtype a = kTypes[kind % 3 != 0], b = kTypes[kind % 3 != 1], c = kTypes[kind >> 2];
      expect_f32_product(p, a, b, c);
    }
  }
}

TEST_F(GemmTest, Bf16Epilogues) {
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

}  // namespace
}  // namespace multihead::kernels::gemm_testing
