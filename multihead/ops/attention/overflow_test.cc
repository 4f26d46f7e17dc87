// Values near the largest float: their weighted mean is a number although their sum is not.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/everywhere.h"

namespace multihead {
namespace {

constexpr float kMost = std::numeric_limits<float>::max();

struct Sizes {
  int64_t batch = 2, heads = 4, kv_heads = 2, queries = 13, keys = 37, dim = 16, value_dim = 11;
};

struct HugeValues {
  Tensor query, key, value;
};

// Columns of the values: huge of one sign, huge of both, the largest float, and ordinary ones.
HugeValues inputs_of(const Sizes& s) {
  Rng rng(7);
  HugeValues in{Tensor::empty({s.batch, s.heads, s.queries, s.dim}),
                Tensor::empty({s.batch, s.kv_heads, s.keys, s.dim}),
                Tensor::empty({s.batch, s.kv_heads, s.keys, s.value_dim})};
  for (Tensor* x : {&in.query, &in.key, &in.value}) fill_uniform(*x, -1, 1, rng.next());
  float* v = in.value.data<float>();
  for (int64_t i = 0; i < in.value.numel(); ++i) {
    const int64_t column = i % s.value_dim;
    if (column == 0) v[i] = 1e38f * (2 + v[i]);
    if (column == 1) v[i] = 3e38f * v[i];
    if (column == 2) v[i] = kMost;
  }
  return in;
}

void expect_near_f64(const HugeValues& in, const AttentionOptions& options, double tolerance) {
  AttentionOptions wide_options = options;
  if (options.bias.defined()) wide_options.bias = options.bias.to(Dtype::f64);
  Rng rng(11), wide_rng(11);
  AttentionOptions narrow_options = options;
  if (options.rng) narrow_options.rng = &rng, wide_options.rng = &wide_rng;
  const Tensor out = attention(in.query, in.key, in.value, narrow_options);
  const auto got = out.to_vector<double>();
  const auto want =
      attention(in.query.to(Dtype::f64), in.key.to(Dtype::f64), in.value.to(Dtype::f64), wide_options)
          .to_vector<double>();
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::abs(want[i]) > 1.0000001 * kMost) {
      ASSERT_TRUE(std::isinf(got[i])) << i;  // survivors of dropout are larger than any value
    } else {
      const double size = i % 11 < 3 ? 3e38 : 1;
      ASSERT_NEAR(got[i], want[i], tolerance * size) << i;
    }
  }
}

TEST(AttentionOverflowTest, MeansOfHugeValuesAreFinite) {
  const testing::EverywhereScope restore;
  for (const kernels::Isa isa : {kernels::Isa::baseline, kernels::current_isa()}) {
    kernels::set_isa(isa);
    for (const Sizes& s : {Sizes{}, Sizes{.queries = 1, .keys = 300}, Sizes{.queries = 130, .keys = 515},
                           Sizes{.batch = 1, .heads = 1, .kv_heads = 1, .queries = 1, .keys = 2100}}) {
      const HugeValues in = inputs_of(s);
      Rng rng(1);
      const Tensor bias = Tensor::empty({s.heads, s.queries, s.keys});
      fill_uniform(bias, -1, 1, rng.next());
      for (const AttentionOptions& options : {
               AttentionOptions{},
               AttentionOptions{.mask = causal()},
               AttentionOptions{.mask = lengths(Tensor::full({s.batch}, 30, Dtype::i64))},
               AttentionOptions{.bias = bias},
               AttentionOptions{.dropout_p = 0.25f, .rng = &rng},
           }) {
        expect_near_f64(in, options, 2e-6);
      }
    }
  }
}

TEST(AttentionOverflowTest, AlsoInHalfPrecisionStorage) {
  const HugeValues in = inputs_of({});
  const HugeValues narrow{in.query.to(Dtype::bf16), in.key.to(Dtype::bf16),
                          scale(in.value, 0.9).to(Dtype::bf16)};
  expect_near_f64(narrow, {}, 1e-2);
  expect_near_f64(narrow, {.mask = causal()}, 1e-2);
}

TEST(AttentionOverflowTest, OrdinaryColumnsKeepTheirBits) {
  const HugeValues huge = inputs_of({.queries = 70, .keys = 300});
  HugeValues tame = huge;
  tame.value = huge.value.clone();
  for (int64_t i = 0; i < tame.value.numel(); ++i) {
    if (i % 11 < 3) tame.value.data<float>()[i] = 1;
  }
  const auto a = attention(huge.query, huge.key, huge.value).to_vector<float>();
  const auto b = attention(tame.query, tame.key, tame.value).to_vector<float>();
  for (size_t i = 0; i < a.size(); ++i) {
    if (i % 11 < 3) continue;
    EXPECT_EQ(a[i], b[i]) << i;
  }
}

// Values that are not finite stay so for queries that see them, and do not show elsewhere.
TEST(AttentionOverflowTest, NanAndInfiniteValuesStay) {
  const HugeValues in = inputs_of({});
  float* v = in.value.data<float>();
  v[5] = std::nanf("");                                     // key 0, column 5
  v[36 * 11 + 6] = std::numeric_limits<float>::infinity();  // the last key, column 6
  const Tensor out = attention(in.query, in.key, in.value, {.mask = causal()});
  for (int64_t i = 0; i < 13; ++i) {
    EXPECT_TRUE(std::isnan(out.at({0, 0, i, 5}))) << i;
    EXPECT_EQ(std::isfinite(out.at({0, 0, i, 6})), i < 12) << i;
    for (const int64_t column : {0, 1, 2, 3, 10}) EXPECT_TRUE(std::isfinite(out.at({0, 0, i, column})));
  }
  EXPECT_TRUE(std::isfinite(out.at({1, 0, 0, 5})));
}

TEST(AttentionOverflowTest, RaggedRowsAndMergedParts) {
  const HugeValues in = inputs_of({.batch = 1, .heads = 2, .kv_heads = 2, .queries = 40, .keys = 40});
  const auto packed = [](const Tensor& x) {
    return contiguous(transpose(reshape(x, {2, 40, x.size(3)}), 0, 1));
  };
  const Tensor cu = Tensor::of<int64_t>({3}, {0, 15, 40});
  const Tensor out = attention_ragged(packed(in.query), packed(in.key), packed(in.value), cu, cu);
  for (const double x : out.to_vector<double>()) EXPECT_TRUE(std::isfinite(x));
  AttentionPart a{Tensor::full({1, 2}, double{kMost}), Tensor::zeros({1})};
  const AttentionPart merged = merge_attention(a, a);
  EXPECT_EQ(merged.out.to_vector<float>(), (std::vector<float>{kMost, kMost}));
}

}  // namespace
}  // namespace multihead
