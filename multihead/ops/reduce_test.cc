#include "multihead/ops/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "multihead/autograd/tape.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/ops/operators.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/matchers.h"

namespace multihead {
namespace {

using testing::SameBits;

const Tensor kX = Tensor::of<float>({2, 3}, {1, 6, 3, 4, 5, 2});

TEST(ReduceTest, OverOneAxisSeveralAndAll) {
  EXPECT_THAT(sum(kX, {0, 1}), SameBits(Tensor::full({}, 21)));
  EXPECT_THAT(sum(kX, {-1}, true), SameBits(Tensor::of<float>({2, 1}, {10, 11})));
  EXPECT_THAT(mean(kX, 0), SameBits(Tensor::of<float>({3}, {2.5, 5.5, 2.5})));
  EXPECT_THAT(mean(kX, {1, 0}, true), SameBits(Tensor::full({1, 1}, 3.5)));
  EXPECT_THAT(max(kX, 1), SameBits(Tensor::of<float>({2}, {6, 5})));
  EXPECT_THAT(min(kX, 0, true), SameBits(Tensor::of<float>({1, 3}, {1, 5, 2})));
  EXPECT_EQ(max(kX).item(), 6);
  EXPECT_EQ(min(kX).item(), 1);
  EXPECT_THAT(argmax(kX, 0), SameBits(Tensor::of<int64_t>({3}, {1, 0, 0})));
  EXPECT_THAT(argmin(kX, -1, true), SameBits(Tensor::of<int64_t>({2, 1}, {0, 2})));
  EXPECT_THAT(max(Tensor::arange(24).as_strided({2, 3, 4}, {12, 4, 1}), {0, 2}),
              SameBits(Tensor::of<int64_t>({3}, {15, 19, 23})));
}

// Rounded once, whatever the number of axes; gradients are those of f32.
TEST(ReduceTest, NarrowSumsAreThoseOfF32Rounded) {
  Rng rng(3);
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    const Tensor x = randn({5, 67, 33}, rng).to(dtype), seed = randn({5, 1, 1}, rng);
    for (const std::vector<int>& axes : {std::vector<int>{}, {0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}}) {
      const Tensor wide = x.to(Dtype::f32);
      EXPECT_THAT(sum(x, axes), SameBits(sum(wide, axes).to(dtype)));
      EXPECT_THAT(mean(x, axes, true), SameBits(mean(wide, axes, true).to(dtype)));
    }
    Tensor leaf = x.clone();
    leaf.set_requires_grad();
    Tape tape;
    tape.backward(sum(leaf, {1, 2}, true), seed.to(dtype));
    EXPECT_THAT(leaf.grad(), SameBits(expand(seed.to(dtype).to(Dtype::f32), {5, 67, 33})));
  }
}

TEST(ReduceTest, OtherTypes) {
  EXPECT_THAT(max(Tensor::of<int64_t>({2, 2}, {5, -7, 2, 9}), 1), SameBits(Tensor::of<int64_t>({2}, {5, 9})));
  EXPECT_EQ(argmin(Tensor::of<int32_t>({3}, {4, 1, 1}), 0).item(), 1);
  const Tensor narrow = kX.to(Dtype::bf16);
  EXPECT_EQ(mean(narrow, 1).dtype(), Dtype::bf16);
  EXPECT_THAT(max(narrow, 1).to(Dtype::f32), SameBits(Tensor::of<float>({2}, {6, 5})));
  EXPECT_THAT(argmax(narrow, 1), SameBits(Tensor::of<int64_t>({2}, {1, 1})));
}

TEST(ReduceTest, NanWinsAndEqualElementsShareTheGradient) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor with_nan = Tensor::of<float>({4}, {1, nan, 3, nan});
  EXPECT_EQ(argmax(with_nan, 0).item(), 1);
  EXPECT_EQ(argmin(with_nan, 0).item(), 1);
  EXPECT_TRUE(std::isnan(min(with_nan).item()));
  Tensor x = Tensor::of<float>({2, 2}, {1, 1, 1, 0}).set_requires_grad();
  Tape tape;
  tape.backward(max(x, {0, 1}) * 3);
  EXPECT_THAT(x.grad(), SameBits(Tensor::of<float>({2, 2}, {1, 1, 1, 0})));
}

TEST(ReduceTest, NothingAndWhatIsWrong) {
  EXPECT_THAT(mean(Tensor::zeros({2, 0}), 1), SameBits(Tensor::zeros({2})));
  EXPECT_EQ(max(Tensor::zeros({0, 3}), 1).shape(), Shape({0}));
  EXPECT_MESSAGE(max(Tensor::zeros({0, 3}), 0), ShapeError, "max: there must be an element to find");
  EXPECT_MESSAGE(mean(kX, {0, -2}), ShapeError, "mean: an axis of [2, 3] is named twice");
  EXPECT_MESSAGE(max(kX, 2), ShapeError, "axis 2");
  EXPECT_MESSAGE(max(Tensor::zeros({2}, Dtype::boolean)), DtypeError, "max: x must be f32 or f64, got bool");
}

TEST(OperatorsTest, AreTheFunctions) {
  Rng rng(1);
  const Tensor a = randn({3, 5}, rng), b = randn({5}, rng);
  EXPECT_THAT(a + b, SameBits(add(a, b)));
  EXPECT_THAT(a - b, SameBits(sub(a, b)));
  EXPECT_THAT(a * b, SameBits(mul(a, b)));
  EXPECT_THAT(a / b, SameBits(div(a, b)));
  EXPECT_THAT(-a, SameBits(neg(a)));
  EXPECT_THAT(2 * a - a * 2 + 1, SameBits(Tensor::ones({3, 5})));
  EXPECT_THAT(1 - (a - 1), SameBits(add_scalar(neg(a - 1), 1)));
  EXPECT_THAT(kX / 3, SameBits(div(kX, Tensor::full({2, 3}, 3))));
  EXPECT_THAT(1 / kX, SameBits(div(Tensor::ones({2, 3}), kX)));
  const Tensor half = Tensor::of<float>({2}, {100, 3}).to(Dtype::f16);  // which holds no 70000
  EXPECT_THAT(half / 70000, SameBits(scale(half.to(Dtype::f32), 1.0 / 70000).to(Dtype::f16)));
  EXPECT_EQ((1e5 / half).at({0}), 1000);
}

TEST(ErrorTest, AllHaveOneBase) {
  try {
    max(kX, 7);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("axis 7"), std::string::npos);
  }
  EXPECT_THROW(max(kX, 7), std::invalid_argument);
}

TEST(TensorTest, OfBits) {
  EXPECT_THAT(Tensor::of({3}, std::vector<bool>{true, false, true}),
              SameBits(Tensor::of<bool>({3}, {true, false, true})));
}

}  // namespace
}  // namespace multihead
