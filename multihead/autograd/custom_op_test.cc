#include "multihead/autograd/custom_op.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>

#include "multihead/core/error.h"

namespace multihead {
namespace {

using Tensors = std::vector<Tensor>;

// y = (2x, 3x, the number of elements)
Tensors twice_and_thrice(const Tensors& in) {
  const Tensor two = in[0].clone(), three = in[0].clone();
  for (int64_t i = 0; i < in[0].numel(); ++i) {
    two.data<double>()[i] *= 2;
    three.data<double>()[i] *= 3;
  }
  return {two, three, Tensor::of<int64_t>({}, {in[0].numel()})};
}

Gradients backward_of(const Tensors& d, const Tensors& in, const Tensors& results) {
  EXPECT_EQ(Tape::current(), nullptr);
  EXPECT_FALSE(in[0].requires_grad());
  EXPECT_FALSE(d[2].defined());
  EXPECT_EQ(results.size(), 3u);
  const Tensor dx = Tensor::zeros(in[0].shape(), Dtype::f64);
  for (int64_t i = 0; i < dx.numel(); ++i) {
    if (d[0].defined()) dx.data<double>()[i] += 2 * d[0].at({i});
    if (d[1].defined()) dx.data<double>()[i] += 3 * d[1].at({i});
  }
  return {dx, Tensor()};
}

TEST(CustomOpTest, ItsResultsAndGradientsAreTheFunctions) {
  const Tensor x = Tensor::of<double>({2}, {1, -2}).set_requires_grad();
  const Tensor constant = Tensor::of<double>({2}, {5, 5});
  Tape tape;
  const Tensors y = custom_op({x, constant}, twice_and_thrice, backward_of);
  EXPECT_EQ(y[1].at({1}), -6);
  EXPECT_TRUE(y[0].requires_grad() && y[1].requires_grad());
  EXPECT_FALSE(y[2].requires_grad());
  tape.backward(y[1], Tensor::of<double>({2}, {1, 10}));
  EXPECT_EQ(x.grad().at({0}), 3);
  EXPECT_EQ(x.grad().at({1}), 30);
}

TEST(CustomOpTest, WithoutATapeNothingIsRecorded) {
  const Tensor x = Tensor::of<double>({2}, {1, -2}).set_requires_grad();
  EXPECT_FALSE(custom_op({x}, twice_and_thrice, backward_of)[0].requires_grad());
}

TEST(CustomOpTest, AWrongBackwardIsNamed) {
  const auto message = [](const Gradients& wrong) -> std::string {
    const Tensor x = Tensor::of<double>({2}, {1, -2}).set_requires_grad();
    Tape tape;
    const Tensor y = custom_op({x}, twice_and_thrice, [&](auto&, auto&, auto&) { return wrong; })[0];
    try {
      tape.backward(y, Tensor::ones({2}, Dtype::f64));
    } catch (const std::exception& e) {
      return e.what();
    }
    return "no error";
  };
  using testing::HasSubstr;
  EXPECT_THAT(message({}), HasSubstr("custom_op: backward must return one gradient per input, 1, got 0"));
  EXPECT_THAT(message({Tensor::ones({3}, Dtype::f64)}),
              HasSubstr("custom_op: the gradient of input 0 must be [2], got [3]"));
  EXPECT_THAT(message({Tensor::ones({2})}),
              HasSubstr("custom_op: the gradient of input 0 must be f64, got f32"));
}

}  // namespace
}  // namespace multihead
