#include "multihead/nn/attention/disentangled-inl.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/nn/attention.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/matchers.h"

namespace multihead::nn::detail {
namespace {

// The rows of the published code.
TEST(DisentangledTest, RowsGrowInLogarithmicSteps) {
  const std::vector<int64_t> got = distance_rows({.span = 8, .max_distance = 40}, 45).to_vector<int64_t>();
  const auto at = [&](int64_t d) { return got[static_cast<size_t>(d + 45)]; };
  for (int64_t d = -4; d <= 4; ++d) EXPECT_EQ(at(d), 8 + d);
  for (const auto& [d, row] : std::vector<std::pair<int64_t, int64_t>>{{5, 13},
                                                                       {8, 13},
                                                                       {9, 14},
                                                                       {18, 14},
                                                                       {19, 15},
                                                                       {45, 15},
                                                                       {-8, 3},
                                                                       {-9, 2},
                                                                       {-19, 1},
                                                                       {-39, 1},
                                                                       {-40, 0}}) {
    EXPECT_EQ(at(d), row) << d;
  }
  EXPECT_MESSAGE(distance_rows({.span = 8, .max_distance = 5}, 3), ValueError,
                 "cannot hold distances up to 5");
}

TEST(DisentangledTest, ScoresAreTheSumsOfTheirDefinition) {
  Rng rng(3);
  const int64_t t = 4, h = 2, d = 3, longest = 5, rows = 2 * longest + 1;
  const Tensor q = randn({1, t, h, d}, rng).to(Dtype::f64), k = randn({1, t, h, d}, rng).to(Dtype::f64),
               a = randn({rows, h, d}, rng).to(Dtype::f64), b = randn({rows, h, d}, rng).to(Dtype::f64);
  const Tensor got = distance_scores(q, k, a, b, 0.5);
  ASSERT_EQ(got.shape(), (Shape{1, h, t, t}));
  for (int64_t n = 0; n < h; ++n) {
    for (int64_t i = 0; i < t; ++i) {
      for (int64_t j = 0; j < t; ++j) {
        double sum = 0;
        for (int64_t x = 0; x < d; ++x) {
          sum += q.at({0, i, n, x}) * b.at({longest + i - j, n, x}) +
                 k.at({0, j, n, x}) * a.at({longest + i - j, n, x});
        }
        EXPECT_NEAR(got.at({0, n, i, j}), 0.5 * sum, 1e-14);
      }
    }
  }
  EXPECT_MESSAGE(distance_scores(q, k, slice(a, 0, 0, 5), slice(b, 0, 0, 5), 1), ShapeError, "for 4 tokens");
}

TEST(DisentangledTest, SequencesHaveTheirBitsAloneAndOtherCallsAreRefused) {
  Rng rng(1);
  const MultiHeadAttention attention({.embed_dim = 8, .num_heads = 2}, rng);
  const Tensor x = randn({1, 5, 8}, rng);
  AttentionCall call;
  call.distances = randn({9, 8}, rng);
  EXPECT_MESSAGE(attention(x, x, x, call), ValueError, "distances need self-attention with cu_seqlens");
  call.cu_seqlens = Tensor::of<int64_t>({3}, {0, 3, 5});
  const Tensor both = attention(x, x, x, call);
  const Tensor last = slice(x, 1, 3, 5).contiguous();
  call.cu_seqlens = Tensor::of<int64_t>({2}, {0, 2});
  EXPECT_EQ(attention(last, last, last, call).to_vector<float>(),
            slice(both, 1, 3, 5).contiguous().to_vector<float>());
}

}  // namespace
}  // namespace multihead::nn::detail
