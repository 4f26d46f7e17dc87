#include "multihead/ops/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "multihead/autograd/tape.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/matchers.h"

namespace multihead {
namespace {

using testing::SameBits;
using testing::TensorNear;

TEST(ElementwiseOpsTest, BroadcastingIsNumPys) {
  const Tensor a = Tensor::of<float>({2, 1, 3}, {1, 2, 3, 4, 5, 6}), b = Tensor::of<float>({2, 1}, {10, 20});
  EXPECT_THAT(add(a, b),
              SameBits(Tensor::of<float>({2, 2, 3}, {11, 12, 13, 21, 22, 23, 14, 15, 16, 24, 25, 26})));
  EXPECT_THAT(sub(b, a), SameBits(Tensor::of<float>({2, 2, 3}, {9, 8, 7, 19, 18, 17, 6, 5, 4, 16, 15, 14})));
  EXPECT_THAT(mul(a, Tensor::full({}, 2)), SameBits(scale(a, 2)));
  EXPECT_EQ(div(Tensor::zeros({0, 3}), Tensor::ones({3})).shape(), Shape({0, 3}));
}

TEST(ElementwiseOpsTest, StridedEqualsContiguous) {
  Rng rng(1);
  const Tensor a = randn({17, 5, 33}, rng), b = randn({33, 17, 5}, rng);
  const Tensor view = permute(b, {1, 2, 0});
  EXPECT_THAT(add(a, view), SameBits(add(a, view.contiguous())));
  EXPECT_THAT(exp(view), SameBits(exp(view.contiguous())));
  EXPECT_THAT(sum(view, 1), SameBits(sum(view.contiguous(), 1)));
  EXPECT_THAT(add(slice(a, 2, 3, 20), slice(a, 2, 7, 24)),
              SameBits(add(slice(a, 2, 3, 20).contiguous(), slice(a, 2, 7, 24).contiguous())));
}

// Operands that lie alike are computed in the order in which they lie.
TEST(ElementwiseOpsTest, OperandsThatLieAlikeEqualContiguousOnes) {
  Rng rng(1);
  using View = Tensor (*)(const Tensor&);
  const View views[] = {
      [](const Tensor& x) { return transpose(x, 0, 2); },
      [](const Tensor& x) {
        return permute(x, {1, 2, 0, 3});
      },
      [](const Tensor& x) {
        return permute(slice(x, 2, 3, 20), {2, 3, 0, 1});
      },
      [](const Tensor& x) { return transpose(slice(x, 1, 1, 2), 2, 3); },
      [](const Tensor& x) { return transpose(slice(x, 3, 2, 3), 1, 2); },
      [](const Tensor& x) {
        return transpose(expand(slice(x, 1, 1, 2), {3, 9, 21, 5}), 1, 3);
      },
      [](const Tensor& x) { return transpose(slice(x, 0, 0, 0), 1, 2); },
  };
  for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16}) {
    const Tensor x = randn({3, 4, 21, 5}, rng).to(dtype), y = randn({3, 4, 21, 5}, rng).to(dtype);
    for (const View view : views) {
      const Tensor a = view(x), b = view(y);
      for (const auto op : {add, sub, mul, div}) {
        const Tensor result = op(a, b);
        EXPECT_TRUE(result.is_contiguous());
        EXPECT_THAT(result, SameBits(op(a.contiguous(), b.contiguous())))
            << a.shape() << a.strides() << dtype;
      }
    }
  }
}

TEST(ElementwiseOpsTest, SumsAndMeans) {
  const Tensor x = Tensor::of<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(sum(x).item(), 21);
  EXPECT_EQ(mean(x).item(), 3.5);
  EXPECT_EQ(mean(Tensor::zeros({0})).item(), 0);
  EXPECT_THAT(sum(x, 0), SameBits(Tensor::of<float>({3}, {5, 7, 9})));
  EXPECT_THAT(sum(x, -1, true), SameBits(Tensor::of<float>({2, 1}, {6, 15})));
  EXPECT_THAT(sum_to(x, {1, 3}), SameBits(Tensor::of<float>({1, 3}, {5, 7, 9})));
  EXPECT_THAT(sum_to(x, {}), SameBits(Tensor::full({}, 21)));
  EXPECT_THAT(sum(Tensor::zeros({3, 0}), 1), SameBits(Tensor::zeros({3})));
}

TEST(ElementwiseOpsTest, LogSigmoidAndSoftplusNeitherOverflowNorVanish) {
  for (const Dtype dtype : {Dtype::f32, Dtype::f64}) {
    const Tensor x = Tensor::of<double>({5}, {-200, -40, 0, 40, 200}).to(dtype).set_requires_grad();
    Tape tape;
    const Tensor y = log_sigmoid(x);
    EXPECT_NEAR(y.at({0}), -200, 1e-5);
    EXPECT_NEAR(y.at({2}), -std::log(2.0), 1e-7);
    EXPECT_NEAR(y.at({3}) / -std::exp(-40.0), 1, 1e-6);
    EXPECT_NEAR(softplus(x).at({1}) / std::exp(-40.0), 1, 1e-6);
    EXPECT_EQ(softplus(x).at({4}), 200);
    EXPECT_EQ(abs(x).at({0}), 200);
    tape.backward(sum(add(y, abs(x))));
    const Tensor d = x.grad().to(Dtype::f64);
    const double expected[] = {1 - 1, 1 - 1, 0.5, 1, 1};
    for (int i = 0; i < 5; ++i) EXPECT_NEAR(d.at({i}), expected[i], 1e-7) << i;
  }
}

TEST(ElementwiseOpsTest, WhereNeverReadsWhatItDrops) {
  const Tensor mask = Tensor::of<bool>({2}, {true, false});
  const Tensor nan = Tensor::full({2}, std::numeric_limits<double>::quiet_NaN());
  Tensor a = Tensor::of<float>({2}, {1, 2}).set_requires_grad();
  const Tensor y = where(mask, a, nan);
  EXPECT_EQ(y.at({0}), 1);
  Tape tape;
  tape.backward(sum(where(mask, a, Tensor::zeros({2}))));
  EXPECT_THAT(a.grad(), SameBits(Tensor::of<float>({2}, {1, 0})));
}

TEST(ElementwiseOpsTest, NothingIsRecordedForConstants) {
  const Tensor a = Tensor::ones({3});
  Tape tape;
  EXPECT_FALSE(mul(a, a).requires_grad());
  EXPECT_EQ(tape.size(), 0u);
}

TEST(ElementwiseOpsTest, BadInputIsNamed) {
  const Tensor a = Tensor::ones({2, 3});
  EXPECT_MESSAGE(add(a, Tensor::ones({2})), ShapeError, "add: a [2, 3] and b [2] do not broadcast");
  EXPECT_MESSAGE(mul(a, Tensor::ones({2, 3}, Dtype::f64)), DtypeError, "mul: a is f32 but b is f64");
  EXPECT_MESSAGE(exp(Tensor::ones({2}, Dtype::i64)), DtypeError, "exp: x must be f32 or f64, got i64");
  EXPECT_MESSAGE(div(Tensor::ones({2}, Dtype::i64), a), DtypeError, "div: a must be f32 or f64, got i64");
  EXPECT_MESSAGE(sum(Tensor::ones({2}, Dtype::i64)), DtypeError, "sum: x must be f32 or f64, got i64");
  EXPECT_MESSAGE(sum(a, 2), ShapeError, "axis 2");
  EXPECT_MESSAGE(where(a, a, a), DtypeError, "where: mask must be bool");
  EXPECT_MESSAGE(sum_to(a, {2, 2}), ShapeError, "sum_to");
  EXPECT_MESSAGE(add(Tensor(), a), ValueError, "undefined");
}

}  // namespace
}  // namespace multihead
