#include "multihead/autograd/recompute.h"

#include <gtest/gtest.h>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"

namespace multihead {
namespace {

// x² of a leaf.
Tensor squared(const Tensor& x) {
  Tensor y = x.clone().detach();
  for (int64_t i = 0; i < y.numel(); ++i) y.data<float>()[i] *= y.data<float>()[i];
  return record({x}, y, [x = x.detach()](const Tensor& d) {
    Tensor dx = d.clone();
    for (int64_t i = 0; i < dx.numel(); ++i) dx.data<float>()[i] *= 2 * x.data<float>()[i];
    return Gradients{dx};
  });
}

TEST(RecomputeTest, GradientsAreThoseOfWhatIsRecorded) {
  Tensor x = Tensor::of<float>({2}, {3, -5});
  x.set_requires_grad();
  int calls = 0;
  const auto f = [&] { return ++calls, squared(x); };
  Tape tape;
  const Tensor y = checkpoint(f);
  EXPECT_EQ(tape.size(), 1u);
  EXPECT_EQ(calls, 1);
  tape.backward(y, Tensor::of<float>({2}, {1, 10}));
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{6, -100}));
}

TEST(RecomputeTest, GradientsPassThroughEarlierResults) {
  Tensor x = Tensor::of<float>({1}, {3});
  x.set_requires_grad();
  Tape tape;
  const Tensor y = squared(x);
  tape.backward(checkpoint([&] { return squared(y); }));
  EXPECT_EQ(x.grad().item(), 4 * 27);  // of x⁴
}

TEST(RecomputeTest, WithoutATapeOrALeafNothingIsKept) {
  const Tensor x = Tensor::of<float>({1}, {3});
  EXPECT_EQ(checkpoint([&] { return squared(x); }).item(), 9);
  Tape tape;
  const Tensor y = checkpoint([&] { return squared(x); });
  EXPECT_NO_THROW(tape.backward(y));
}

// The first pass records nothing, so what leaves it otherwise than as the result would be a constant.
TEST(RecomputeTest, WhatLeavesByASideDoorIsRefused) {
  const Tensor x = Tensor::of<float>({2}, {3, -5}).set_requires_grad();
  Tape tape;
  Tensor aside;
  const Tensor y = checkpoint([&] { return squared(aside = squared(x)); });
  EXPECT_THROW(squared(aside), ValueError);
  tape.backward(y, Tensor::ones({2}));
  EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{4 * 27, -4 * 125}));
}

}  // namespace
}  // namespace multihead
