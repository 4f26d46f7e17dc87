#include "multihead/ops/shape.h"

#include <gtest/gtest.h>

#include "multihead/autograd/tape.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/ops/elementwise.h"
#include "multihead/testing/matchers.h"

namespace multihead {
namespace {

using testing::SameBits;

Tensor counted(const Shape& shape) {
  const Tensor x = Tensor::arange(shape.numel(), Dtype::f32);
  return x.as_strided(shape, contiguous_strides(shape));
}
bool shares_memory(const Tensor& a, const Tensor& b) { return a.raw() == b.raw(); }

TEST(ShapeOpsTest, ReshapeIsAViewWhereItCanBe) {
  const Tensor x = counted({2, 3, 4, 5});
  EXPECT_TRUE(shares_memory(reshape(x, {6, -1}), x));
  // Heads split off a strided row stay a view; merging transposed axes is a copy.
  const Tensor view = slice(x, 3, 0, 4);
  EXPECT_TRUE(shares_memory(reshape(view, {6, 4, 2, 2}), x));
  EXPECT_TRUE(shares_memory(reshape(view, {2, 12, 1, 4}), x));
  const Tensor swapped = transpose(x, 1, 2);
  EXPECT_FALSE(shares_memory(reshape(swapped, {2, 12, 5}), x));
  EXPECT_TRUE(shares_memory(reshape(swapped, {2, 2, 2, 3, 5}), x));
}

// Against copying first, for every pair of a strided source and a target.
TEST(ShapeOpsTest, ReshapeKeepsTheOrderOfElements) {
  const Tensor x = counted({4, 6, 2, 3});
  const Tensor sources[] = {x,
                            transpose(x, 0, 1),
                            transpose(x, 1, 3),
                            permute(x, {3, 2, 1, 0}),
                            slice(x, 1, 1, 5),
                            slice(transpose(x, 0, 3), 3, 0, 2),
                            expand(slice(x, 0, 1, 2), {4, 6, 2, 3})};
  for (const Tensor& source : sources) {
    const int64_t n = source.numel();
    for (const Shape& target : {Shape{n}, Shape{n / 2, 2}, Shape{2, n / 2}, Shape{n / 6, 3, 2},
                                Shape{2, 1, n / 4, 2}, Shape{1, n / 12, 1, 12, 1}, Shape{4, n / 24, 6}}) {
      EXPECT_THAT(reshape(source, target),
                  SameBits(source.contiguous().as_strided(target, contiguous_strides(target))));
    }
  }
  EXPECT_EQ(reshape(Tensor::zeros({0, 3}), {3, -1}).shape(), Shape({3, 0}));
  EXPECT_EQ(reshape(Tensor::ones({1, 1}), {}).shape(), Shape({}));
}

TEST(ShapeOpsTest, TransposePermuteSlice) {
  const Tensor x = counted({2, 3, 5});
  EXPECT_EQ(transpose(x, 0, -1).at({4, 1, 1}), x.at({1, 1, 4}));
  EXPECT_EQ(permute(x, {1, 2, 0}).at({2, 3, 1}), x.at({1, 2, 3}));
  EXPECT_EQ(slice(x, 1, 1, 3).at({1, 0, 4}), x.at({1, 1, 4}));
  EXPECT_EQ(slice(x, 1, 2, 2).shape(), Shape({2, 0, 5}));
}

TEST(ShapeOpsTest, ConcatAndSplitAreInverse) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::i64, Dtype::boolean}) {
    const Tensor x = counted({3, 7, 5}).to(dtype);
    for (const int axis : {0, 1, 2}) {
      const int64_t first = 2, rest = x.size(axis) - first;
      EXPECT_THAT(concat(split(x, {first, 0, rest}, axis), axis), SameBits(x));
    }
  }
}

TEST(ShapeOpsTest, SplitWritesOneGradient) {
  const Tensor x = counted({2, 6}).set_requires_grad();
  Tape tape;
  const auto parts = split(x, {4, 2}, 1);
  tape.backward(sum(scale(parts[1], 3)));
  EXPECT_THAT(x.grad(), SameBits(Tensor::of<float>({2, 6}, {0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 3, 3})));
}

TEST(ShapeOpsTest, ExpandRepeatsWithoutMemory) {
  const Tensor x = counted({3, 1}), y = expand(x, {2, 3, 4});
  EXPECT_TRUE(shares_memory(x, y));
  EXPECT_EQ(y.at({1, 2, 3}), 2);
  EXPECT_THAT(contiguous(y), SameBits(add(x, Tensor::zeros({2, 3, 4}))));
}

TEST(ShapeOpsTest, ContiguousOfEveryDtype) {
  for (const Dtype dtype :
       {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16, Dtype::i64, Dtype::i32, Dtype::boolean}) {
    const Tensor x = counted({5, 7}).to(dtype);
    const Tensor y = contiguous(transpose(x, 0, 1));
    EXPECT_TRUE(y.is_contiguous());
    EXPECT_EQ(y.at({6, 4}), x.at({4, 6}));
    EXPECT_THAT(transpose(y, 0, 1).contiguous(), SameBits(x));
  }
}

TEST(ShapeOpsTest, CastConvertsTheGradientBack) {
  const Tensor x = counted({5}).set_requires_grad();
  {
    Tape tape;
    tape.backward(sum(square(cast(x, Dtype::f64))));
  }
  EXPECT_EQ(x.grad().dtype(), Dtype::f32);
  EXPECT_THAT(x.grad(), SameBits(scale(x.detach(), 2)));
  EXPECT_EQ(cast(x, Dtype::bf16).dtype(), Dtype::bf16);
  EXPECT_FALSE(cast(x, Dtype::i64).requires_grad());
}

TEST(ShapeOpsTest, BadInputIsNamed) {
  const Tensor x = counted({2, 3});
  EXPECT_MESSAGE(reshape(x, {4, 2}), ShapeError, "reshape: cannot shape [2, 3]");
  EXPECT_MESSAGE(reshape(x, {-1, -1}), ShapeError, "at most one size may be -1");
  EXPECT_MESSAGE(reshape(x, {-1, 4}), ShapeError, "reshape: cannot shape");
  EXPECT_MESSAGE(reshape(x, {-2, -3}), ShapeError, "negative");
  EXPECT_MESSAGE(reshape(x, {-1, 0}), ShapeError, "reshape: cannot shape");
  EXPECT_MESSAGE(transpose(x, 0, 2), ShapeError, "axis 2");
  EXPECT_MESSAGE(permute(x, {0, 0}), ShapeError, "named twice");
  EXPECT_MESSAGE(permute(x, {0}), ShapeError, "expected 2 axes");
  EXPECT_MESSAGE(slice(x, 1, 2, 1), ShapeError, "slice: expected 0 <= begin");
  EXPECT_MESSAGE(slice(x, 1, 0, 4), ShapeError, "slice: expected 0 <= begin");
  EXPECT_MESSAGE(split(x, {1, 1}, 1), ShapeError, "must add up to 3");
  EXPECT_MESSAGE(split(x, {5, -2}, 1), ShapeError, "exceed");
  EXPECT_MESSAGE(concat({x, counted({2, 4})}, 0), ShapeError, "concat: parts must agree outside axis 0");
  EXPECT_MESSAGE(concat({x, x.to(Dtype::f64)}, 0), DtypeError,
                 "concat: the first part is f32 but another is f64");
  EXPECT_MESSAGE(concat(std::vector<Tensor>{}, 0), ValueError, "at least one");
  EXPECT_MESSAGE(expand(x, {3, 3}), ShapeError, "expand: cannot expand [2, 3] to [3, 3]");
}

}  // namespace
}  // namespace multihead
