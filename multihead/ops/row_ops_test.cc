// Softmax, norms, activations, embedding and dropout as ops: what their kernels' tests cannot see.
#include <gtest/gtest.h>

#include "multihead/autograd/tape.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/elementwise/dropout.h"
#include "multihead/ops/activation.h"
#include "multihead/ops/dropout.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/embedding.h"
#include "multihead/ops/norm.h"
#include "multihead/ops/shape.h"
#include "multihead/ops/softmax.h"
#include "multihead/testing/matchers.h"

namespace multihead {
namespace {

using testing::SameBits;
using testing::TensorNear;

TEST(SoftmaxOpsTest, RowsSumToOneOnAnyAxis) {
  Rng rng(1);
  const Tensor x = randn({3, 5, 7}, rng);
  for (const int axis : {0, 1, 2, -1, -2}) {
    const Tensor y = softmax(x, axis);
    EXPECT_THAT(sum(y, axis), TensorNear(Tensor::ones(x.shape().erased(axis)), 3e-7, 0));
    EXPECT_THAT(log_softmax(x, axis), TensorNear(log(y), 1e-6, 1e-6));
    EXPECT_THAT(softmax(x, axis),
                SameBits(transpose(softmax(transpose(x, axis, -1).contiguous()), axis, -1).contiguous()));
  }
  EXPECT_EQ(softmax(Tensor::zeros({0, 3})).shape(), Shape({0, 3}));
  EXPECT_EQ(softmax(Tensor::zeros({3, 0})).shape(), Shape({3, 0}));
}

TEST(NormOpsTest, ResultsHaveUnitMoments) {
  Rng rng(2);
  const Tensor x = add_scalar(scale(randn({11, 129}, rng), 5), 3);
  const Tensor y = layer_norm(x);
  EXPECT_THAT(scale(sum(y, -1), 1.0 / 129), TensorNear(Tensor::zeros({11}), 1e-6, 0));
  EXPECT_THAT(scale(sum(square(y), -1), 1.0 / 129), TensorNear(Tensor::ones({11}), 1e-5, 0));
  EXPECT_THAT(scale(sum(square(rms_norm(x)), -1), 1.0 / 129), TensorNear(Tensor::ones({11}), 1e-5, 0));
}

TEST(NormOpsTest, FusedEqualsComposed) {
  Rng rng(3);
  const Tensor values[] = {randn({5, 3, 33}, rng), randn({5, 3, 33}, rng), randn({33}, rng),
                           randn({33}, rng)};
  const Tensor seed = randn({5, 3, 33}, rng), other_seed = randn({5, 3, 33}, rng);
  for (const bool layer : {true, false}) {
    const auto run = [&](bool fused) {
      std::vector<Tensor> x;
      for (const Tensor& v : values) x.push_back(v.clone().set_requires_grad());
      Tape tape;
      AddNorm r;
      if (fused) {
        r = layer ? add_layer_norm(x[0], x[1], x[2], x[3]) : add_rms_norm(x[0], x[1], x[2]);
      } else {
        r.sum = add(x[0], x[1]);
        r.normed = layer ? layer_norm(r.sum, x[2], x[3]) : rms_norm(r.sum, x[2]);
      }
      std::vector<Tensor> out = {r.sum.detach(), r.normed.detach()};
      tape.backward(sum(add(mul(r.sum, seed), mul(r.normed, other_seed))));
      for (size_t i = 0; i < (layer ? 4u : 3u); ++i) out.push_back(x[i].grad());
      return out;
    };
    const auto fused = run(true), composed = run(false);
    EXPECT_THAT(fused[0], SameBits(composed[0]));
    EXPECT_THAT(fused[1], SameBits(composed[1]));
    for (size_t i = 2; i < fused.size(); ++i) EXPECT_THAT(fused[i], TensorNear(composed[i], 2e-6, 2e-6));
  }
}

TEST(EmbeddingOpsTest, LooksUpEveryDtype) {
  const Tensor table = Tensor::of<float>({3, 2}, {1, 2, 3, 4, 5, 6}),
               ids = Tensor::of<int64_t>({2, 2}, {2, 0, 0, 1});
  const Tensor expected = Tensor::of<float>({2, 2, 2}, {5, 6, 1, 2, 1, 2, 3, 4});
  for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16, Dtype::i32}) {
    EXPECT_THAT(embedding(table.to(dtype), ids), SameBits(expected.to(dtype)));
    EXPECT_THAT(embedding(table.to(dtype), ids.to(Dtype::i32)), SameBits(expected.to(dtype)));
  }
  EXPECT_THAT(embedding(table, transpose(ids, 0, 1)), SameBits(contiguous(transpose(expected, 0, 1))));
  EXPECT_EQ(embedding(table, Tensor::zeros({0}, Dtype::i64)).shape(), Shape({0, 2}));
}

TEST(EmbeddingOpsTest, GradientHasTheSameBitsAtAnyThreadCount) {
  Rng rng(4);
  const Tensor ids = Tensor::empty({1009}, Dtype::i64);
  for (int64_t i = 0; i < 1009; ++i) ids.data<int64_t>()[i] = i * i % 37;
  const Tensor seed = randn({1009, 67}, rng), weight = randn({37, 67}, rng);
  const int before = num_threads();
  Tensor first;
  for (const int threads : {1, 2, 3, 8}) {
    set_num_threads(threads);
    const Tensor w = weight.clone().set_requires_grad();
    Tape tape;
    tape.backward(embedding(w, ids), seed);
    if (!first.defined()) first = w.grad();
    EXPECT_THAT(w.grad(), SameBits(first));
  }
  set_num_threads(before);
}

TEST(DropoutOpsTest, ActsOnlyWithAnRng) {
  const Tensor x = Tensor::ones({1000});
  Rng rng(5);
  EXPECT_TRUE(dropout(x, 0.5, nullptr).is_same(x));
  EXPECT_TRUE(dropout(x, 0, &rng).is_same(x));
  EXPECT_EQ(rng.drawn(), 0u) << "no stream is taken where nothing is random";
  EXPECT_THAT(dropout(x, 1, &rng), SameBits(Tensor::zeros({1000})));
  EXPECT_THAT(add_dropout(x, x, 0.5, nullptr), SameBits(scale(x, 2)));
}

TEST(DropoutOpsTest, MaskIsThatOfTheHeader) {
  Rng rng(6);
  const RandomStream stream = Rng(6).next();
  const Tensor x = Tensor::ones({3, 171}), y = dropout(x, 0.25, &rng);
  for (int64_t i = 0; i < x.numel(); ++i) {
    EXPECT_EQ(y.data<float>()[i], kernels::dropout_keeps(stream, 0.25, i) ? 1 / 0.75f : 0);
  }
  EXPECT_FALSE(testing::same_bits(dropout(x, 0.25, &rng), y)) << "every call draws its own";
}

TEST(DropoutOpsTest, FusedEqualsComposed) {
  Rng values(7);
  const Tensor x = randn({7, 131}, values), residual = randn({7, 131}, values);
  Rng a(8), b(8);
  EXPECT_THAT(add_dropout(residual, x, 0.3, &a), SameBits(add(residual, dropout(x, 0.3, &b))));
}

TEST(DropoutTest, WithAnActivationItEqualsTheTwoSteps) {
  Rng numbers(4);
  const Tensor x = randn({7, 131}, numbers);
  for (const Activation activation : {Activation::relu, Activation::gelu, Activation::silu}) {
    Rng a(9), b(9);
    EXPECT_THAT(activate_dropout(x, activation, 0.3, &a),
                SameBits(dropout(activate(x, activation), 0.3, &b)));
    EXPECT_THAT(activate_dropout(x, activation, 0.3, nullptr), SameBits(activate(x, activation)));
  }
}

TEST(DropoutOpsTest, GradientUsesTheSameMask) {
  const Tensor x = Tensor::ones({5, 77}).set_requires_grad();
  Rng rng(9);
  Tape tape;
  const Tensor y = dropout(x, 0.4, &rng);
  const Tensor kept = y.clone();
  tape.backward(sum(y));
  EXPECT_THAT(x.grad(), SameBits(kept));
}

TEST(RowOpsTest, BadInputIsNamed) {
  const Tensor x = Tensor::ones({2, 6}), whole = Tensor::ones({2, 6}, Dtype::i64);
  Rng rng(1);
  EXPECT_MESSAGE(softmax(whole), DtypeError, "softmax: x must be f32 or f64, got i64");
  EXPECT_MESSAGE(log_softmax(x, 5), ShapeError, "axis 5");
  EXPECT_MESSAGE(softmax(Tensor::ones({})), ShapeError, "softmax: x must have at least one axis");
  EXPECT_MESSAGE(layer_norm(x, Tensor::ones({5})), ShapeError,
                 "layer_norm: weight must be [6] to match x [2, 6], got [5]");
  EXPECT_MESSAGE(layer_norm(x, {}, Tensor::ones({1, 6})), ShapeError, "layer_norm: bias must be [6]");
  EXPECT_MESSAGE(rms_norm(x, Tensor::ones({6}, Dtype::f64)), DtypeError,
                 "rms_norm: x is f32 but weight is f64: convert x to f64 or weight to f32");
  EXPECT_MESSAGE(rms_norm(x, {}, -1), ValueError, "rms_norm: eps must be >= 0, got -1");
  EXPECT_MESSAGE(add_layer_norm(x, Tensor::ones({6})), ShapeError, "add_layer_norm: residual must be [2, 6]");
  EXPECT_MESSAGE(gelu(whole), DtypeError, "activate: x must be f32 or f64, got i64");
  EXPECT_MESSAGE(glu(Tensor::ones({2, 5}), Activation::silu), ShapeError, "glu: the last axis must be even");
  EXPECT_MESSAGE(gated(x, Tensor::ones({6}), Activation::silu), ShapeError, "gated: up must be [2, 6]");
  EXPECT_MESSAGE(dropout(x, 1.1, &rng), ValueError, "dropout: p must be in [0, 1], got 1.1");
  EXPECT_MESSAGE(dropout(x, std::nan(""), &rng), ValueError, "dropout: p must be in [0, 1]");
  EXPECT_MESSAGE(add_dropout(Tensor::ones({6}), x, 0.1, &rng), ShapeError,
                 "add_dropout: residual must be [2, 6]");
  const Tensor ids = Tensor::of<int64_t>({3}, {0, 1, 2});
  EXPECT_MESSAGE(embedding(x, ids), ValueError, "embedding: ids must be in [0, 2), got 2 at position 2");
  EXPECT_MESSAGE(embedding(x, Tensor::full({1}, -1, Dtype::i32)), ValueError, "got -1 at position 0");
  EXPECT_MESSAGE(embedding(x, x), DtypeError, "embedding: ids must be i64 or i32, got f32");
  EXPECT_MESSAGE(embedding(Tensor::ones({3}), ids), ShapeError, "embedding: weight must be [V, E], got [3]");
}

}  // namespace
}  // namespace multihead
