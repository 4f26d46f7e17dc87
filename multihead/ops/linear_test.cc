#include "multihead/ops/linear.h"

#include <gtest/gtest.h>

#include "multihead/autograd/tape.h"
#include "multihead/core/memory/storage.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/norm.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/matchers.h"

namespace multihead {
namespace {

using testing::SameBits;
using testing::TensorNear;

// a · b by the definition, in f64.
Tensor plain_matmul(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(Dtype::f64), y = b.to(Dtype::f64);
  Shape batch = broadcast_shapes(x.shape().erased(-1).erased(-1), y.shape().erased(-1).erased(-1)),
        shape = batch;
  shape.push_back(x.size(-2));
  shape.push_back(y.size(-1));
  Shape wide_x = batch, wide_y = batch;
  for (const int axis : {-2, -1}) {
    wide_x.push_back(x.size(axis));
    wide_y.push_back(y.size(axis));
  }
  const Tensor p = contiguous(expand(x, wide_x)), q = contiguous(expand(y, wide_y));
  const Tensor c = Tensor::zeros(shape, Dtype::f64);
  const int64_t m = x.size(-2), k = x.size(-1), n = y.size(-1);
  for (int64_t g = 0; g < batch.numel(); ++g) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t l = 0; l < k; ++l) {
          sum += p.data<double>()[(g * m + i) * k + l] * q.data<double>()[(g * k + l) * n + j];
        }
        c.data<double>()[(g * m + i) * n + j] = sum;
      }
    }
  }
  return c;
}

void check_product(const Tensor& a, const Tensor& b) {
  EXPECT_THAT(matmul(a, b), TensorNear(plain_matmul(a, b), 1e-5, 1e-5));
  EXPECT_THAT(matmul(a.to(Dtype::f64), b.to(Dtype::f64)), TensorNear(plain_matmul(a, b), 1e-12, 1e-12));
  EXPECT_THAT(matmul(a, b), SameBits(matmul(a.contiguous(), b.contiguous()))) << "strides must not matter";
}

TEST(LinearOpsTest, MatmulOfEveryLayout) {
  Rng rng(1);
  const auto r = [&](const Shape& shape) { return randn(shape, rng); };
  check_product(r({3, 7}), r({7, 5}));
  check_product(r({2, 3, 17}), r({17, 5}));
  check_product(r({3, 17}), r({2, 17, 5}));
  check_product(r({2, 1, 3, 7}), r({5, 7, 2}));
  check_product(r({3, 2, 5, 7}), transpose(r({3, 2, 11, 7}), -1, -2));
  check_product(transpose(r({2, 7, 3}), 1, 2), r({2, 7, 5}));
  // [B, T, H, D] heads, read in place.
  check_product(transpose(r({2, 5, 3, 7}), 1, 2), permute(r({2, 11, 3, 7}), {0, 2, 3, 1}));
  // Neither rows nor columns contiguous; broadcast matrices; reversed batch axes.
  check_product(slice(r({3, 7, 4}), 2, 1, 2), r({1, 5}));
  check_product(permute(r({7, 2, 3}), {1, 2, 0}), permute(r({5, 7, 2}), {2, 1, 0}));
  check_product(expand(r({3, 1}), {3, 7}), expand(r({1, 5}), {7, 5}));
  check_product(transpose(r({3, 2, 5, 7}), 0, 1), transpose(r({3, 2, 7, 11}), 0, 1));
  check_product(r({1, 1}), r({1, 1}));
}

TEST(LinearOpsTest, EmptyProducts) {
  EXPECT_EQ(matmul(Tensor::ones({0, 3}), Tensor::ones({3, 5})).shape(), Shape({0, 5}));
  EXPECT_EQ(matmul(Tensor::ones({0, 2, 3}), Tensor::ones({3, 5})).shape(), Shape({0, 2, 5}));
  EXPECT_THAT(matmul(Tensor::ones({3}), Tensor::full({2, 3, 5}, 2)), SameBits(Tensor::full({2, 5}, 6)));
  EXPECT_THAT(matmul(Tensor::full({4, 2, 3}, 2), Tensor::ones({3})), SameBits(Tensor::full({4, 2}, 6)));
  EXPECT_THAT(matmul(Tensor::ones({3}), Tensor::ones({3})), SameBits(Tensor::full({}, 3)));
  EXPECT_THAT(matmul(Tensor::ones({2, 0}), Tensor::ones({0, 3})), SameBits(Tensor::zeros({2, 3})));
  const Tensor x = Tensor::ones({0, 3}), w = Tensor::ones({5, 3}).set_requires_grad(),
               b = Tensor::ones({5}).set_requires_grad();
  Tape tape;
  const Tensor y = linear(x, w, b);
  EXPECT_EQ(y.shape(), Shape({0, 5}));
  tape.backward(sum(y));
  EXPECT_THAT(w.grad(), SameBits(Tensor::zeros({5, 3})));
  EXPECT_THAT(b.grad(), SameBits(Tensor::zeros({5})));
}

TEST(LinearOpsTest, AnEmptyInnerAxisHasEmptyGradients) {
  const Tensor a = Tensor::ones({2, 3, 0}).set_requires_grad(), b = Tensor::ones({0, 4}).set_requires_grad();
  Tape tape;
  const Tensor c = matmul(a, b);
  EXPECT_THAT(c.detach(), SameBits(Tensor::zeros({2, 3, 4})));
  tape.backward(sum(c));
  EXPECT_EQ(a.grad().shape(), a.shape());
  EXPECT_EQ(b.grad().shape(), b.shape());
}

// The fused epilogue against separate ops: values and every gradient.
TEST(LinearOpsTest, FusedEqualsComposed) {
  Rng rng(2);
  const Tensor values[] = {randn({3, 5, 17}, rng), randn({33, 17}, rng), randn({33}, rng),
                           randn({3, 5, 33}, rng)};
  const Tensor seed = randn({3, 5, 33}, rng);
  for (const Activation activation :
       {Activation::none, Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
    for (const bool residual : {false, true}) {
      const auto run = [&](bool fused) {
        std::vector<Tensor> x;
        for (const Tensor& v : values) x.push_back(v.clone().set_requires_grad());
        Tape tape;
        Tensor y;
        if (fused) {
          y = linear(x[0], x[1], x[2], {.activation = activation, .residual = residual ? x[3] : Tensor()});
        } else {
          y = activate(add(matmul(x[0], transpose(x[1], 0, 1)), x[2]), activation);
          if (residual) y = add(y, x[3]);
        }
        std::vector<Tensor> out = {y.detach()};
        tape.backward(y, seed);
        for (size_t i = 0; i < (residual ? 4u : 3u); ++i) out.push_back(x[i].grad());
        return out;
      };
      const auto fused = run(true), composed = run(false);
      for (size_t i = 0; i < fused.size(); ++i) EXPECT_THAT(fused[i], TensorNear(composed[i], 1e-5, 1e-5));
    }
  }
}

TEST(LinearOpsTest, OnlyNeededGradientsExist) {
  Rng rng(3);
  const Tensor x = randn({4, 3}, rng), w = randn({5, 3}, rng).set_requires_grad();
  Tape tape;
  tape.backward(sum(linear(x, w, Tensor::ones({5}))));
  EXPECT_TRUE(w.grad().defined());
  EXPECT_FALSE(x.grad().defined());
}

// The gradients of linear(norm(x)), and the bytes that wait between forward and backward. A view of the
// norm's result makes linear keep the elements.
struct NormedLinear {
  std::vector<Tensor> gradients;
  int64_t waiting = 0;
};
NormedLinear normed_linear(bool through_a_view) {
  Rng rng(6);
  Tensor x = randn({1031, 257}, rng), w = randn({19, 257}, rng), gain = randn({257}, rng),
         shift = randn({257}, rng);
  for (Tensor* leaf : {&x, &w, &gain, &shift}) leaf->set_requires_grad();
  const int64_t before = memory_stats().live_bytes;
  Tape tape;
  Tensor y;
  {
    const Tensor normed = layer_norm(x, gain, shift);
    y = linear(through_a_view ? reshape(normed, {1031, 1, 257}) : normed, w);
  }
  NormedLinear result{{}, memory_stats().live_bytes - before};
  tape.backward(sum(mul(y, y)));
  for (const Tensor& leaf : {x, w, gain, shift}) result.gradients.push_back(leaf.grad());
  return result;
}

TEST(LinearOpsTest, ANormIsMadeAgainInsteadOfKept) {
  const NormedLinear kept = normed_linear(true), rebuilt = normed_linear(false);
  for (size_t i = 0; i < kept.gradients.size(); ++i) {
    EXPECT_THAT(rebuilt.gradients[i], SameBits(kept.gradients[i])) << i;
  }
  EXPECT_LE(rebuilt.waiting, kept.waiting - 1031 * 257 * 4);
}

TEST(LinearOpsTest, RowsDoNotDependOnTheBatch) {
  Rng rng(4);
  const Tensor x = randn({37, 129}, rng), w = randn({65, 129}, rng), b = randn({65}, rng);
  const Tensor all = linear(x, w, b, {.activation = Activation::gelu});
  for (const int64_t row : {0, 17, 36}) {
    EXPECT_THAT(linear(slice(x, 0, row, row + 1), w, b, {.activation = Activation::gelu}),
                SameBits(slice(all, 0, row, row + 1)));
  }
}

TEST(LinearOpsTest, BadInputIsNamed) {
  const Tensor x = Tensor::ones({2, 3}), w = Tensor::ones({5, 3});
  EXPECT_MESSAGE(linear(x, Tensor::ones({5, 4})), ShapeError,
                 "linear: x must be [..., 4] to match weight [5, 4], got [2, 3]");
  EXPECT_MESSAGE(linear(x, Tensor::ones({5})), ShapeError, "linear: weight must be [out, in], got [5]");
  EXPECT_MESSAGE(linear(x, w, Tensor::ones({3})), ShapeError, "linear: bias must be [5]");
  EXPECT_MESSAGE(linear(x, w, {}, {.residual = Tensor::ones({2, 3})}), ShapeError,
                 "linear: residual must be [2, 5]");
  EXPECT_MESSAGE(linear(x.to(Dtype::f64), w), DtypeError,
                 "linear: x is f64 but weight is f32: convert x to f32 or weight to f64");
  EXPECT_MESSAGE(linear(x.to(Dtype::i64), w), DtypeError, "linear: x must be f32 or f64, got i64");
  EXPECT_MESSAGE(matmul(x, w), ShapeError, "matmul: a [2, 3] and b [5, 3] differ in the inner size");
  EXPECT_MESSAGE(matmul(x, Tensor::ones({2})), ShapeError,
                 "a [2, 3] and b [2, 1] differ in the inner size: 3 and 2");
  EXPECT_MESSAGE(matmul(Tensor::ones({}), x), ShapeError, "must have axes, got [] and [2, 3]");
  EXPECT_MESSAGE(matmul(Tensor::ones({2, 2, 3}), Tensor::ones({5, 3, 2})), ShapeError, "broadcast");
}

}  // namespace
}  // namespace multihead
