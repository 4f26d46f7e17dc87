#include "multihead/autograd/tape.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

#include "multihead/autograd/pending-inl.h"
#include "multihead/autograd/recompute.h"
#include "multihead/core/error.h"

namespace multihead {
namespace {

Tensor leaf(double value) { return Tensor::full({1}, value, Dtype::f64).set_requires_grad(); }

// Two ops that suffice to test the tape.
Tensor multiply(const Tensor& a, const Tensor& b) {
  const Tensor y = Tensor::full({1}, a.item() * b.item(), Dtype::f64);
  return record({a, b}, y, [a = a.detach(), b = b.detach()](const Tensor& dy) -> Gradients {
    return {Tensor::full({1}, dy.item() * b.item(), Dtype::f64),
            Tensor::full({1}, dy.item() * a.item(), Dtype::f64)};
  });
}

Tensor add(const Tensor& a, const Tensor& b) {
  const Tensor y = Tensor::full({1}, a.item() + b.item(), Dtype::f64);
  return record({a, b}, y, [](const Tensor& dy) -> Gradients { return {dy, dy}; });
}

TEST(TapeTest, SharedInputsSumTheirGradients) {
  const Tensor x = leaf(3), y = leaf(5);
  Tape tape;
  const Tensor z = add(multiply(x, x), add(multiply(x, y), x));  // x² + xy + x
  tape.backward(z);
  EXPECT_EQ(x.grad().item(), 2 * 3 + 5 + 1);
  EXPECT_EQ(y.grad().item(), 3);
  EXPECT_EQ(tape.size(), 0u);
}

TEST(TapeTest, ATensorMayBeSetAsItsOwnGradient) {
  const Tensor x = leaf(3);
  x.set_grad(x);
  EXPECT_FALSE(x.grad().requires_grad());  // or x would own itself
  EXPECT_EQ(x.grad().item(), 3);
}

bool is_pending() {
  try {
    detail::refuse_pending_backward("writer");
  } catch (const ValueError&) {
    return true;
  }
  return false;
}

TEST(TapeTest, WhatNoBackwardHasConsumedIsPending) {
  const Tensor x = leaf(3);
  EXPECT_FALSE(is_pending());
  std::optional<Tape> outer(std::in_place);
  EXPECT_FALSE(is_pending());
  const Tensor y = multiply(x, x);
  EXPECT_TRUE(is_pending());
  std::thread([] { EXPECT_FALSE(is_pending()); }).join();
  {
    const NoTape hidden;
    Tape inner;
    EXPECT_TRUE(is_pending());
  }
  int complete = 0;
  outer->backward(y, {}, [&](const GradientSlot&) { complete += is_pending() ? 0 : 1; });
  EXPECT_EQ(complete, 1);
  EXPECT_FALSE(is_pending());
  multiply(x, x);
  EXPECT_TRUE(is_pending());
  outer.reset();
  EXPECT_FALSE(is_pending());
}

TEST(TapeTest, SharingADyNeverMixesGradients) {
  const Tensor x = leaf(2), y = leaf(7);
  Tape tape;
  const Tensor s = add(x, y);
  tape.backward(add(s, multiply(x, x)));
  EXPECT_EQ(x.grad().item(), 1 + 4);
  EXPECT_EQ(y.grad().item(), 1);
}

// A view whose gradient is a view: what transpose() does.
Tensor transposed(const Tensor& x) {
  const auto swap = [](const Tensor& t) {
    return t.as_strided({t.size(1), t.size(0)}, {t.strides()[1], t.strides()[0]});
  };
  return record({x}, swap(x), [swap](const Tensor& dy) -> Gradients { return {swap(dy)}; });
}

TEST(TapeTest, LeavesHaveRowMajorGradientsOfTheirOwn) {
  const Tensor x = Tensor::ones({2, 3}).set_requires_grad();
  const Tensor seed = Tensor::of<float>({3, 2}, {1, 2, 3, 4, 5, 6});
  {
    Tape tape;
    tape.backward(transposed(x), seed);
  }
  const float* gradient = x.grad().data<float>();
  EXPECT_EQ(std::vector<float>(gradient, gradient + 6), (std::vector<float>{1, 3, 5, 2, 4, 6}));
  x.grad().fill(0);
  EXPECT_EQ(seed.at({0, 1}), 2) << "the caller's seed is not the leaf's gradient";

  const Tensor a = leaf(2), b = leaf(7);
  {
    Tape tape;
    tape.backward(add(a, b));
  }
  a.grad().fill(5);
  EXPECT_EQ(b.grad().item(), 1) << "two leaves share one gradient";
}

TEST(TapeTest, GradientsAccumulateOverBackwards) {
  const Tensor x = leaf(3);
  for (int i = 0; i < 2; ++i) {
    Tape tape;
    tape.backward(multiply(x, x));
  }
  EXPECT_EQ(x.grad().item(), 12);
}

// Without the error these would leave no gradients, and it would go unnoticed.
TEST(TapeTest, ALossIsGoneAfterABackwardAndOnOtherTapes) {
  const Tensor x = leaf(3);
  Tape tape;
  const Tensor first = multiply(x, x), second = multiply(x, first);
  tape.backward(first);
  EXPECT_EQ(x.grad().item(), 6);
  EXPECT_THROW(tape.backward(first), ValueError);
  EXPECT_THROW(tape.backward(second), ValueError);
  {
    const Tensor outer = multiply(x, x);
    Tape inner;
    EXPECT_THROW(inner.backward(outer), ValueError);
    const Tensor other = multiply(x, x);
    EXPECT_THROW(tape.backward(other), ValueError);
    EXPECT_EQ(x.grad().item(), 6);
    tape.backward(outer);
    inner.backward(other);
  }
  EXPECT_EQ(x.grad().item(), 18);
  tape.backward(x);  // a leaf is its own loss
  EXPECT_EQ(x.grad().item(), 19);
}

TEST(TapeTest, SaysWhenALeafIsComplete) {
  const Tensor x = leaf(3), y = leaf(5), z = leaf(7);
  std::vector<double> heard;
  const auto complete = [&](const GradientSlot& slot) {
    heard.push_back(slot.gradient.defined() ? slot.gradient.item() : -1);
    if (&slot == y.gradient_slot().get()) y.set_grad({});  // taken away
  };
  {
    Tape tape;
    const Tensor first = multiply(x, y), unused = multiply(z, first);
    tape.backward(add(multiply(first, y), x), {}, complete);  // xy² + x
  }
  // z without a gradient; x with its first use, after y.
  EXPECT_EQ(heard, (std::vector<double>{-1, 26, 30}));
  EXPECT_FALSE(y.grad().defined());
  {
    heard.clear();
    x.set_grad({});
    Tape tape;
    const Tensor inside = checkpoint([&] { return multiply(x, x); });
    tape.backward(multiply(inside, x), {}, complete);
  }
  EXPECT_TRUE(heard.empty()) << "x may have been in the recomputed part";
  EXPECT_EQ(x.grad().item(), 27);
}

TEST(TapeTest, ThreadsShareALeaf) {
  constexpr int kThreads = 4, kRounds = 500;
  const Tensor x = leaf(3);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&x] {
      for (int round = 0; round < kRounds; ++round) {
        Tape tape;
        tape.backward(multiply(x, x));
        EXPECT_TRUE(x.grad().defined());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(x.grad().item(), 6 * kThreads * kRounds);
}

TEST(TapeTest, NothingIsRecordedWithoutTapeOrGradient) {
  const Tensor x = leaf(3), constant = Tensor::full({1}, 2.0, Dtype::f64);
  EXPECT_FALSE(multiply(x, x).requires_grad());
  Tape tape;
  EXPECT_FALSE(multiply(constant, constant).requires_grad());
  {
    const NoTape hidden;
    EXPECT_FALSE(multiply(x, x).requires_grad());
  }
  EXPECT_TRUE(multiply(x, constant).requires_grad());
  EXPECT_EQ(tape.size(), 1u);
  EXPECT_THROW(tape.backward(constant), ValueError);
}

// Results of a tape that is gone would silently be constants.
TEST(TapeTest, ResultsOfATapeThatIsGoneAreRefused) {
  const Tensor x = leaf(3);
  Tensor ended, consumed;
  {
    Tape tape;
    ended = multiply(x, x);
  }
  Tape outer;
  {
    Tape tape;
    consumed = multiply(x, x);
    EXPECT_TRUE(multiply(consumed, x).requires_grad()) << "its own tape lives";
    tape.backward(consumed);
    EXPECT_THROW(multiply(consumed, x), ValueError);
  }
  for (const Tensor& gone : {ended, consumed}) {
    EXPECT_THROW(multiply(gone, x), ValueError);
    EXPECT_FALSE(multiply(gone.detach(), leaf(2).detach()).requires_grad());
    const NoTape silent;
    EXPECT_EQ(multiply(gone, x).item(), 27);
  }
  EXPECT_EQ(outer.size(), 0u);
}

TEST(TapeTest, TapesMayEndInAnyOrder) {
  auto outer = std::make_optional<Tape>(), inner = std::make_optional<Tape>();
  outer.reset();
  EXPECT_EQ(Tape::current(), &*inner);
  inner.reset();
  EXPECT_EQ(Tape::current(), nullptr);
  outer.emplace();
  auto silent = std::make_optional<NoTape>();
  outer.reset();
  silent.reset();
  EXPECT_EQ(Tape::current(), nullptr);
}

TEST(TapeTest, ASeedHasTheTypeOfItsLoss) {
  const Tensor x = leaf(3), half = Tensor::ones({1}, Dtype::bf16).set_requires_grad();
  Tape tape;
  const Tensor y = multiply(x, x);
  EXPECT_THROW(tape.backward(y, Tensor::ones({1})), DtypeError);
  EXPECT_THROW(tape.backward(y, Tensor::ones({1}, Dtype::i64)), DtypeError);
  tape.backward(y, Tensor::ones({1}, Dtype::f64));
  EXPECT_EQ(x.grad().item(), 6);
  tape.backward(half, Tensor::ones({1}));
  tape.backward(half, Tensor::ones({1}, Dtype::bf16));
  EXPECT_EQ(half.grad().item(), 2);
  EXPECT_THROW(checkpoint({}), ValueError);
}

// An inner tape could not bring their gradients further than to themselves.
TEST(TapeTest, ResultsOfAnOuterTapeAreRefusedAndStayUsable) {
  const Tensor x = leaf(3);
  Tape outer;
  const Tensor y = multiply(x, x);
  {
    Tape inner;
    EXPECT_THROW(multiply(y, x), ValueError);
    inner.backward(multiply(y.detach(), x));
  }
  outer.backward(multiply(y, x));
  EXPECT_EQ(x.grad().item(), 9 + 27);
}

}  // namespace
}  // namespace multihead
