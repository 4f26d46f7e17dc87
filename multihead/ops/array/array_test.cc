// The ops that arrays have: values, corners and errors; gradients are checked over testing/op_list_array.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/ops/array/compare.h"
#include "multihead/ops/array/gather.h"
#include "multihead/ops/array/scan.h"
#include "multihead/ops/array/solve.h"
#include "multihead/ops/array/sort.h"
#include "multihead/ops/array/windows.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/matchers.h"

namespace multihead {
namespace {

using ::testing::ElementsAre;
using testing::SameBits;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<double> numbers(const Tensor& x) { return x.contiguous().to(Dtype::f64).to_vector<double>(); }

TEST(ArrayOpsTest, ComparisonsBroadcastAndKnowNaN) {
  const Tensor a = Tensor::of<float>({3, 1}, {1, 2, static_cast<float>(kNan)}),
               b = Tensor::of<float>({2}, {1, 2});
  EXPECT_THAT(numbers(equal(a, b)), ElementsAre(1, 0, 0, 1, 0, 0));
  EXPECT_THAT(numbers(not_equal(a, b)), ElementsAre(0, 1, 1, 0, 1, 1));
  EXPECT_THAT(numbers(less(a, b)), ElementsAre(0, 1, 0, 0, 0, 0));
  EXPECT_THAT(numbers(less_equal(a, b)), ElementsAre(1, 1, 0, 1, 0, 0));
  EXPECT_THAT(numbers(greater(a, b)), ElementsAre(0, 0, 1, 0, 0, 0));
  EXPECT_THAT(numbers(greater_equal(a, b)), ElementsAre(1, 0, 1, 1, 0, 0));
  EXPECT_THAT(numbers(less(a.to(Dtype::bf16), b.to(Dtype::bf16))), ElementsAre(0, 1, 0, 0, 0, 0));
  const Tensor i = Tensor::of<int64_t>({2}, {(int64_t{1} << 60) + 1, 3});
  EXPECT_THAT(numbers(equal(i, Tensor::of<int64_t>({}, {int64_t{1} << 60}))), ElementsAre(0, 0));
  EXPECT_THROW(equal(a, b.to(Dtype::f64)), DtypeError);
  EXPECT_THROW(less(Tensor::zeros({3}), Tensor::zeros({2})), ShapeError);
}

TEST(ArrayOpsTest, ExtremesAndPowers) {
  for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16}) {
    const Tensor a = Tensor::of<double>({4}, {1, -2, kNan, 0}).to(dtype);
    const Tensor b = Tensor::of<double>({4}, {3, -5, 1, kNan}).to(dtype);
    for (const bool swap : {false, true}) {
      const std::vector<double> high = numbers(swap ? maximum(b, a) : maximum(a, b));
      EXPECT_EQ(high[0], 3);
      EXPECT_EQ(high[1], -2);
      EXPECT_TRUE(std::isnan(high[2]) && std::isnan(high[3])) << dtype;
      const std::vector<double> low = numbers(swap ? minimum(b, a) : minimum(a, b));
      EXPECT_EQ(low[0], 1);
      EXPECT_TRUE(std::isnan(low[2]) && std::isnan(low[3])) << dtype;
    }
    EXPECT_THAT(numbers(pow(Tensor::of<double>({3}, {2, -3, 4}).to(dtype), 3)), ElementsAre(8, -27, 64));
  }
  EXPECT_THAT(numbers(clamp(Tensor::of<double>({3}, {-2, 0.5, 9}), -1, 1)), ElementsAre(-1, 0.5, 1));
  EXPECT_THROW(clamp(Tensor::zeros({1}), 1, 0), ValueError);
  const double root = pow(Tensor::of<float>({1}, {2.0f}), 0.5).item();
  EXPECT_EQ(root, static_cast<double>(static_cast<float>(std::sqrt(2.0))));
}

TEST(ArrayOpsTest, EqualOnesShareTheGradientAndAPowerOfZeroHasOne) {
  const Tensor a = Tensor::of<double>({2}, {1, 0}).set_requires_grad();
  const Tensor b = Tensor::of<double>({2}, {1, 2}).set_requires_grad();
  Tape tape;
  tape.backward(sum(add(maximum(a, b), pow(a, b))));
  EXPECT_THAT(numbers(a.grad()), ElementsAre(1.5, 0));  // 1/2 + 1, 0 + 0
  EXPECT_THAT(numbers(b.grad()), ElementsAre(0.5, 1));
}

TEST(ArrayOpsTest, RunningSums) {
  const Tensor x = Tensor::of<float>({2, 3}, {1, 2, 3, 10, 20, 30});
  EXPECT_THAT(numbers(cumsum(x, 1)), ElementsAre(1, 3, 6, 10, 30, 60));
  EXPECT_THAT(numbers(cumsum(x, -1, true)), ElementsAre(6, 5, 3, 60, 50, 30));
  EXPECT_THAT(numbers(cumsum(x, 0)), ElementsAre(1, 2, 3, 11, 22, 33));
  // In f64, so that many small numbers count.
  const Tensor many = Tensor::full({1 << 16}, 0.1f);
  EXPECT_NEAR(cumsum(many, 0).at({(1 << 16) - 1}), 6553.6, 1e-3);
  // Rows side by side have the sums of each alone.
  const Tensor rows =
      square(add_scalar(Tensor::arange(19 * 5, Dtype::f32), -40.3)).as_strided({19, 5}, {5, 1}, 0);
  for (const bool reverse : {false, true}) {
    const Tensor all = cumsum(rows, 1, reverse);
    for (int64_t r = 0; r < 19; ++r)
      EXPECT_THAT(slice(all, 0, r, r + 1), SameBits(cumsum(slice(rows, 0, r, r + 1), 1, reverse))) << r;
  }
}

TEST(ArrayOpsTest, SortsWithNaNLastAndEqualOnesInOrder) {
  const Tensor x = Tensor::of<float>({5}, {2, static_cast<float>(kNan), 1, 2, -1});
  EXPECT_THAT(numbers(argsort(x)), ElementsAre(4, 2, 0, 3, 1));
  EXPECT_THAT(numbers(argsort(x, 0, true)), ElementsAre(1, 0, 3, 2, 4));
  const std::vector<Tensor> least = topk(x, 2, 0, false);
  EXPECT_THAT(numbers(least[0]), ElementsAre(-1, 1));
  EXPECT_THAT(numbers(least[1]), ElementsAre(4, 2));
  const Tensor table = Tensor::of<int64_t>({2, 3}, {5, 7, 7, 1, 0, 1});
  EXPECT_THAT(numbers(sort(table, 0)), ElementsAre(1, 0, 1, 5, 7, 7));
  EXPECT_THROW(topk(x, 6), ShapeError);
}

TEST(ArrayOpsTest, TakesByIndices) {
  const Tensor x = reshape(Tensor::arange(24), {2, 3, 4}), i = Tensor::of<int64_t>({2}, {2, -3});
  EXPECT_THAT(take(x, i, 1), SameBits(concat({slice(x, 1, 2, 3), slice(x, 1, 0, 1)}, 1)));
  const Tensor rows = Tensor::of<int64_t>({2, 1}, {1, 0}), columns = Tensor::of<int32_t>({2}, {3, 0});
  EXPECT_THAT(numbers(index(x, {Tensor(), rows, columns})), ElementsAre(7, 4, 3, 0, 19, 16, 15, 12));
  EXPECT_THAT(numbers(index(x, {rows, Tensor(), columns})),  // [2, 2, 3]: the indexed axes come first
              ElementsAre(15, 19, 23, 12, 16, 20, 3, 7, 11, 0, 4, 8));
  const std::vector<Tensor> places = nonzero(equal(x, Tensor::of<int64_t>({}, {17})));
  EXPECT_EQ(places[0].at({0}), 1);
  EXPECT_EQ(places[1].at({0}), 1);
  EXPECT_EQ(places[2].at({0}), 1);
  EXPECT_THROW(take(x, Tensor::of<int64_t>({1}, {3}), 1), ValueError);
  EXPECT_THROW(take(x, Tensor::zeros({1}), 1), DtypeError);
  EXPECT_THROW(take_along_axis(x, rows, 1), ShapeError);
}

TEST(ArrayOpsTest, SystemsAreSolved) {
  Rng rng(3);
  for (const bool lower : {true, false}) {
    for (const bool transposed : {true, false}) {
      const Tensor a = randn({2, 70, 70}, rng, Dtype::f64), x = randn({2, 70, 67}, rng, Dtype::f64);
      const Tensor triangle = Tensor::zeros({2, 70, 70}, Dtype::f64);
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t i = 0; i < 70; ++i) {
          for (int64_t j = lower ? 0 : i; j < (lower ? i + 1 : 70); ++j) {
            double& value = a.data<double>()[(b * 70 + i) * 70 + j];
            value = i == j ? 2 : value / 20;
            triangle.data<double>()[(b * 70 + i) * 70 + j] = value;
          }
        }
      }
      const Tensor matrix = transposed ? transpose(triangle, 1, 2) : triangle;
      const Tensor found = solve_triangular(a, matmul(matrix, x), {.lower = lower, .transposed = transposed});
      for (int64_t i = 0; i < x.numel(); ++i)
        ASSERT_NEAR(found.data<double>()[i], x.data<double>()[i], 1e-10);
    }
  }
  EXPECT_THROW(solve_triangular(Tensor::zeros({2, 3}), Tensor::zeros({2, 1})), ShapeError);
}

TEST(ArrayOpsTest, WindowsAndConvolutions) {
  EXPECT_EQ(slice(Tensor::arange(6), 0, 0, 6, std::numeric_limits<int64_t>::max()).shape(), Shape({1}));
  const Tensor x = Tensor::of<double>({1, 2, 4}, {1, 2, 3, 4, 10, 20, 30, 40});
  EXPECT_THAT(numbers(slice(shift(x, 1, -1, 7), 1, 0, 1)), ElementsAre(7, 1, 2, 3));
  EXPECT_THAT(numbers(slice(shift(x, -3, -1), 1, 0, 1)), ElementsAre(4, 0, 0, 0));
  EXPECT_THAT(numbers(slice(roll(x, -5, 2), 1, 0, 1)), ElementsAre(2, 3, 4, 1));
  EXPECT_THAT(numbers(slice(x, 2, 1, 4, 2)), ElementsAre(2, 4, 20, 40));
  const Tensor w = Tensor::of<double>({1, 2, 2}, {1, -1, 0, 0.5}), bias = Tensor::of<double>({1}, {100});
  EXPECT_THAT(numbers(conv1d(x, w, bias)), ElementsAre(109, 114, 119));
  EXPECT_THAT(numbers(conv1d(x, w, {}, {.stride = 2, .padding = 1})), ElementsAre(4, 14, 4));
  EXPECT_THROW(conv1d(x, w, {}, {.groups = 2}), ShapeError);
  EXPECT_THROW(conv1d(x, Tensor::zeros({1, 2, 9}, Dtype::f64)), ShapeError);
}

TEST(ArrayOpsTest, ThreadsChangeNoBit) {
  Rng rng(5);
  const Tensor x = randn({3, 500, 70}, rng), d = randn({3, 900, 70}, rng);
  const Tensor places = Tensor::empty({900}, Dtype::i64);
  for (int64_t i = 0; i < 900; ++i) places.data<int64_t>()[i] = i * i % 500;
  const auto run = [&] {
    const Tensor leaf = x.clone().set_requires_grad();
    Tape tape;
    tape.backward(take(cumsum(leaf, 1), places, 1), d);
    return leaf.grad();
  };
  const int before = num_threads();
  set_num_threads(1);
  const Tensor one = run();
  set_num_threads(4);
  EXPECT_THAT(run(), SameBits(one));
  set_num_threads(before);
}

}  // namespace
}  // namespace multihead
