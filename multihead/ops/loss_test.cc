#include "multihead/ops/loss.h"

#include <gtest/gtest.h>

#include "multihead/autograd/tape.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/shape.h"
#include "multihead/ops/softmax.h"
#include "multihead/testing/matchers.h"

namespace multihead {
namespace {

using testing::SameBits;
using testing::TensorNear;

const Tensor kTargets = Tensor::of<int64_t>({2, 3}, {4, 0, -100, 6, 6, 2});

TEST(LossTest, IsTheMeanOfLogProbabilities) {
  Rng rng(1);
  const Tensor x = randn({2, 3, 7}, rng, Dtype::f64);
  const Tensor p = log_softmax(x);
  const double expected =
      -(p.at({0, 0, 4}) + p.at({0, 1, 0}) + p.at({1, 0, 6}) + p.at({1, 1, 6}) + p.at({1, 2, 2})) / 5;
  EXPECT_NEAR(cross_entropy(x, kTargets).item(), expected, 1e-14);
  EXPECT_NEAR(cross_entropy(x, kTargets, {.reduction = Reduction::sum}).item(), 5 * expected, 1e-13);
  const Tensor each = cross_entropy(x, kTargets, {.reduction = Reduction::none});
  EXPECT_EQ(each.shape(), kTargets.shape());
  EXPECT_EQ(each.at({0, 2}), 0);
  EXPECT_NEAR(each.at({1, 2}), -p.at({1, 2, 2}), 1e-14);
}

TEST(LossTest, IntegerTypesAndStridesOfTargetsAreEqual) {
  Rng rng(2);
  const Tensor x = randn({3, 2, 7}, rng);
  const Tensor t = transpose(kTargets, 0, 1);
  const Tensor loss = cross_entropy(x, t.contiguous());
  EXPECT_THAT(cross_entropy(x, t), SameBits(loss));
  EXPECT_THAT(cross_entropy(x, t.to(Dtype::i32)), SameBits(loss));
}

TEST(LossTest, AllIgnoredIsZeroWithZeroGradient) {
  const Tensor x = Tensor::ones({2, 5}).set_requires_grad(), t = Tensor::full({2}, -100, Dtype::i64);
  for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
    x.set_grad({});
    Tape tape;
    const Tensor loss = cross_entropy(x, t, {.reduction = reduction});
    EXPECT_EQ(loss.item(), 0);
    tape.backward(loss);
    EXPECT_THAT(x.grad(), SameBits(Tensor::zeros({2, 5})));
  }
  EXPECT_EQ(cross_entropy(Tensor::zeros({0, 5}), Tensor::zeros({0}, Dtype::i64)).item(), 0);
}

// A result passed on directly is overwritten by its gradient; one that is still held is not.
TEST(LossTest, InPlaceOnlyWhereNobodyLooks) {
  Rng rng(3);
  const Tensor value = randn({5, 11}, rng), t = Tensor::of<int64_t>({5}, {1, 10, 3, 3, 0});
  const auto gradient = [&](auto&& loss_of) {
    const Tensor x = value.clone().set_requires_grad();
    Tape tape;
    tape.backward(loss_of(x));
    return x.grad();
  };
  const Tensor held = gradient([&](const Tensor& x) {
    const Tensor logits = scale(x, 2), copy = logits.clone();
    const Tensor loss = cross_entropy(logits, t);
    EXPECT_THAT(logits, SameBits(copy));
    return loss;
  });
  const Tensor passed = gradient([&](const Tensor& x) { return cross_entropy(scale(x, 2), t); });
  EXPECT_THAT(passed, SameBits(held));
  // exp keeps its result for the backward, so it must not be overwritten.
  const Tensor saved = gradient([&](const Tensor& x) { return cross_entropy(exp(x), t); });
  const Tensor reference = gradient([&](const Tensor& x) {
    const Tensor logits = exp(x);
    return cross_entropy(logits, t);
  });
  EXPECT_THAT(saved, SameBits(reference));
}

TEST(LossTest, ChunkedEqualsWhole) {
  Rng rng(4);
  // 3 chunks of 4 Mi / 700001 = 5 rows.
  const int64_t rows = 13, classes = 700001, width = 3;
  const Tensor xv = randn({rows, width}, rng), wv = randn({classes, width}, rng),
               t = Tensor::empty({rows}, Dtype::i64);
  for (int64_t i = 0; i < rows; ++i) t.data<int64_t>()[i] = i == 6 ? -100 : i * 53849;
  const auto run = [&](bool chunked) {
    const Tensor x = xv.clone().set_requires_grad(), w = wv.clone().set_requires_grad();
    Tape tape;
    const CrossEntropyOptions options{.label_smoothing = 0.1};
    const Tensor loss =
        chunked ? linear_cross_entropy(x, w, t, options) : cross_entropy(linear(x, w), t, options);
    tape.backward(scale(loss, 4));  // a power of two commutes with every rounding
    return std::vector<Tensor>{loss.detach(), x.grad(), w.grad()};
  };
  const auto chunked = run(true), whole = run(false);
  // Results of one row do not depend on how rows are grouped; sums over rows are added up per chunk.
  EXPECT_THAT(chunked[0], SameBits(whole[0]));
  EXPECT_THAT(chunked[1], SameBits(whole[1]));
  EXPECT_THAT(chunked[2], TensorNear(whole[2], 2e-7, 1e-6));
}

TEST(LossTest, LargeVocabularyStaysWithinOneChunk) {
  Rng rng(5);
  const Tensor x = randn({300, 4}, rng).set_requires_grad(), w = randn({50257, 4}, rng).set_requires_grad();
  const Tensor t = Tensor::zeros({300}, Dtype::i64);
  release_cached_memory();
  reset_peak_memory();
  const int64_t before = memory_stats().live_bytes;
  {
    Tape tape;
    tape.backward(linear_cross_entropy(x, w, t));
  }
  // 16 MiB of logits, the gradient of w and change; all logits would take 60 MB.
  EXPECT_LT(memory_stats().peak_bytes - before, 20 << 20);
}

TEST(LossTest, BadInputIsNamed) {
  const Tensor x = Tensor::ones({2, 3, 7});
  EXPECT_MESSAGE(cross_entropy(x, Tensor::full({2, 3}, 7, Dtype::i64)), ValueError,
                 "cross_entropy: targets must be in [0, 7) or -100 (ignore_index), got 7 at position 0");
  EXPECT_MESSAGE(cross_entropy(x, Tensor::full({2, 3}, -1, Dtype::i32)), ValueError, "got -1");
  EXPECT_MESSAGE(cross_entropy(x, Tensor::zeros({6}, Dtype::i64)), ShapeError,
                 "targets must be [2, 3], got [6]");
  EXPECT_MESSAGE(cross_entropy(x, Tensor::zeros({2, 3})), DtypeError, "targets must be i64 or i32, got f32");
  EXPECT_MESSAGE(cross_entropy(x.to(Dtype::i64), kTargets), DtypeError, "logits must be f32 or f64, got i64");
  EXPECT_MESSAGE(cross_entropy(x, kTargets, {.label_smoothing = 1.5}), ValueError,
                 "label_smoothing must be in [0, 1]");
  EXPECT_MESSAGE(linear_cross_entropy(x, Tensor::ones({5, 6}), kTargets), ShapeError, "weight [V, E]");
  EXPECT_MESSAGE(linear_cross_entropy(x, Tensor::ones({9, 7}), kTargets, {.reduction = Reduction::none}),
                 ValueError, "reduction must be mean or sum");
}

}  // namespace
}  // namespace multihead
