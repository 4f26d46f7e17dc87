#include "multihead/core/tensor/tensor.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "multihead/core/error.h"

namespace multihead {
namespace {

TEST(ShapeTest, NumelIsTheProductAndOverflowIsAnError) {
  EXPECT_EQ((Shape{2, 3, 5}).numel(), 30);
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_EQ((Shape{int64_t{1} << 62, 0, int64_t{1} << 62}).numel(), 0);
  EXPECT_THROW((Shape{int64_t{1} << 40, int64_t{1} << 40}).numel(), ValueError);
  EXPECT_THROW((Shape{1, 2, 3, 4, 5, 6, 7, 8, 9}), ShapeError);
}

TEST(ShapeTest, BroadcastFollowsTheRightAlignedRule) {
  EXPECT_EQ(broadcast_shapes({3, 1, 5}, {2, 1}), (Shape{3, 2, 5}));
  EXPECT_EQ(broadcast_shapes({}, {7}), (Shape{7}));
  EXPECT_THROW(broadcast_shapes({2}, {3}), ShapeError);
}

TEST(TensorTest, PrintsItsElements) {
  EXPECT_EQ(to_string(Tensor::full({}, 2.5)), "Tensor([], f32, 2.5)");
  EXPECT_EQ(to_string(Tensor::of<float>({2, 3}, {1, 2, 3, 4, 5, 6}).as_strided({3, 2}, {1, 3})),
            "Tensor([3, 2], f32,\n[[1, 4],\n [2, 5],\n [3, 6]])");
  EXPECT_EQ(to_string(Tensor::of<int64_t>({1}, {12345678})), "Tensor([1], i64, [12345678])");
  EXPECT_EQ(to_string(Tensor::arange(9)), "Tensor([9], i64, [0, 1, 2, …, 6, 7, 8])");
  EXPECT_EQ(to_string(Tensor::zeros({2, 0})), "Tensor([2, 0], f32,\n[[],\n []])");
}

TEST(TensorTest, CopiesShareMemoryAndClonesDoNot) {
  const Tensor a = Tensor::of<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor b = a;
  const Tensor c = a.clone();
  a.data<float>()[4] = 50;
  EXPECT_EQ(b.at({1, 1}), 50);
  EXPECT_EQ(c.at({1, 1}), 5);
}

TEST(TensorTest, StridedViewsReadTheRightElements) {
  const Tensor a = Tensor::of<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor transposed = a.as_strided({3, 2}, {1, 3});
  EXPECT_FALSE(transposed.is_contiguous());
  EXPECT_EQ(transposed.to_vector<int32_t>(), (std::vector<int32_t>{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(a.as_strided({2, 2}, {0, 1}, 1).to_vector<int32_t>(), (std::vector<int32_t>{2, 3, 2, 3}));
  EXPECT_EQ(transposed.contiguous().to_vector<int32_t>(), transposed.to_vector<int32_t>());
}

TEST(TensorTest, ViewsStayInTheirMemory) {
  const Tensor a = Tensor::arange(6, Dtype::f32), end = a.as_strided({2}, {1}, 4);
  EXPECT_EQ(a.as_strided({2, 3}, {-3, -1}, 5).to_vector<int32_t>(), (std::vector<int32_t>{5, 4, 3, 2, 1, 0}));
  EXPECT_EQ(end.as_strided({3}, {-2}, 1).to_vector<int32_t>(), (std::vector<int32_t>{5, 3, 1}));
  EXPECT_EQ(a.as_strided({0, 9}, {100, 100}, 50).numel(), 0);
  constexpr int64_t kFar = std::numeric_limits<int64_t>::max();
  EXPECT_THROW(a.as_strided({4}, {1000000000}), ValueError);
  EXPECT_THROW(a.as_strided({2, 3}, {3, 1}, 1), ValueError);
  EXPECT_THROW(a.as_strided({2}, {-1}), ValueError);
  EXPECT_THROW(a.as_strided({1}, {1}, -1), ValueError);
  EXPECT_THROW(a.as_strided({3}, {kFar}), ValueError);
  EXPECT_THROW(a.as_strided({2, 2}, {kFar, kFar}), ValueError);
  EXPECT_THROW(a.as_strided({2}, {1}, kFar), ValueError);
  EXPECT_THROW(a.as_strided({2}, {1, 1}), ShapeError);
  EXPECT_THROW(end.as_strided({3}, {1}), ValueError);
}

TEST(TensorTest, ValuesComeFromArraysOfTheElementTypes) {
  const std::array<float, 2> array = {1, 2};
  const double plain[] = {3, 4};
  std::vector<int64_t> vector = {5, 6};
  EXPECT_EQ(Tensor::of({2}, array).to_vector<float>(), (std::vector<float>{1, 2}));
  EXPECT_EQ(Tensor::of({2}, plain).dtype(), Dtype::f64);
  EXPECT_EQ(Tensor::of({2}, std::span(vector)).to_vector<float>(), (std::vector<float>{5, 6}));
  EXPECT_EQ(Tensor::of({2}, std::vector<bool>{true, false}).dtype(), Dtype::boolean);
  static_assert(Element<BFloat16> && !Element<size_t> && !Element<uint8_t> && !Element<const float>);
}

TEST(TensorTest, IntegersAreNotFilledWithWhatTheyDoNotHold) {
  EXPECT_EQ(Tensor::full({1}, -2147483648.0, Dtype::i32).item(), -2147483648.0);
  EXPECT_THROW(Tensor::full({1}, 3e9, Dtype::i32), ValueError);
  EXPECT_THROW(Tensor::full({1}, NAN, Dtype::i64), ValueError);
  EXPECT_THROW(Tensor::zeros({1}, Dtype::i64).fill(0x1p63), ValueError);
  EXPECT_TRUE(std::isinf(Tensor::full({1}, 1e39).item()));
}

TEST(TensorTest, ACopyFromItsOwnMemoryIsWhatWasThere) {
  const Tensor a = Tensor::of<float>({2, 2}, {1, 2, 3, 4});
  a.copy_from(a.as_strided({2, 2}, {1, 2}));
  EXPECT_EQ(a.to_vector<float>(), (std::vector<float>{1, 3, 2, 4}));
  const Tensor b = Tensor::of<float>({5}, {1, 2, 3, 4, 5});
  b.as_strided({4}, {1}, 1).copy_from(b.as_strided({4}, {1}));
  EXPECT_EQ(b.to_vector<float>(), (std::vector<float>{1, 1, 2, 3, 4}));
}

TEST(TensorTest, WrongDtypeAndUndefinedAreErrors) {
  EXPECT_THROW(Tensor::zeros({2}).data<double>(), DtypeError);
  EXPECT_THROW(Tensor().shape(), ValueError);
  EXPECT_THROW(Tensor::empty({-1}), ValueError);
  EXPECT_THROW(Tensor::empty({int64_t{1} << 62}), ValueError);
  EXPECT_THROW(Tensor::zeros({2}, Dtype::i64).set_requires_grad(), DtypeError);
}

TEST(DtypeTest, HalfFormatsRoundToNearestEvenAndBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    Float16 half;
    half.bits = static_cast<uint16_t>(bits);
    const float value = static_cast<float>(half);
    if (!std::isnan(value)) {
      EXPECT_EQ(Float16(value).bits, bits);
    }
    BFloat16 brain;
    brain.bits = static_cast<uint16_t>(bits);
    const float wide = static_cast<float>(brain);
    if (!std::isnan(wide)) {
      EXPECT_EQ(BFloat16(wide).bits, bits);
    }
  }
  EXPECT_EQ(static_cast<float>(Float16(2049.0f)), 2048.0f);
  EXPECT_EQ(static_cast<float>(Float16(2051.0f)), 2052.0f);
  EXPECT_TRUE(std::isinf(static_cast<float>(Float16(65520.0f))));
  EXPECT_EQ(static_cast<float>(Float16(65519.0f)), 65504.0f);
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(StorageTest, SecondRoundOfTheSameShapesAsksTheSystemForNothing) {
  const auto round = [] {
    for (int64_t n = 1; n < 40; ++n) {
      const Tensor a = Tensor::empty({n, 1000});
      const Tensor b = Tensor::empty({n, 777});
    }
  };
  round();
  const int64_t before = memory_stats().system_allocations;
  round();
  EXPECT_EQ(memory_stats().system_allocations, before);
}

TEST(TensorTest, NoMemoryHoldsNoElements) {
  EXPECT_THROW(Tensor::borrow(nullptr, {2, 2}, {2, 1}, Dtype::f32), ValueError);
  EXPECT_EQ(Tensor::borrow(nullptr, {0, 2}, {2, 1}, Dtype::f32).numel(), 0);
}

}  // namespace
}  // namespace multihead
