#include "multihead/ops/attention/masked_softmax.h"

#include <gtest/gtest.h>

#include <cmath>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/softmax.h"

namespace multihead {
namespace {

using Floats = std::vector<float>;

Tensor lens(const Shape& shape, const std::vector<int64_t>& values) {
  return Tensor::of<int64_t>(shape, values);
}

TEST(MaskedSoftmaxTest, ScoresBehindTheLengthAreReplacedInANewTensor) {
  const Tensor x = Tensor::of<float>({2, 2, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  EXPECT_EQ(masked_scores(x, lens({2}, {1, 3})).to_vector<float>(),
            (Floats{1, -1e6, -1e6, 4, -1e6, -1e6, 7, 8, 9, 10, 11, 12}));
  EXPECT_EQ(masked_scores(x, lens({2, 2}, {2, 0, 0, 3}), 0).to_vector<float>(),
            (Floats{1, 2, 0, 0, 0, 0, 0, 0, 0, 10, 11, 12}));
  EXPECT_EQ(x.to_vector<float>()[1], 2);
  const Tensor transposed = Tensor::of<float>({2, 3, 2}, Floats(12, 1)).as_strided({2, 2, 3}, {6, 1, 2});
  EXPECT_EQ(masked_scores(transposed, lens({2}, {2, 2}), 5).to_vector<float>()[2], 5);
}

TEST(MaskedSoftmaxTest, RowsAreTheSoftmaxOfWhatIsValid) {
  const Tensor x = Tensor::of<float>({1, 3, 4}, {1, 2, 3, NAN, -1, 0, INFINITY, 2, NAN, NAN, NAN, NAN});
  const auto got = masked_softmax(x, lens({1, 3}, {3, 2, 0})).to_vector<float>();
  const auto expected = softmax(Tensor::of<float>({1, 3}, {1, 2, 3})).to_vector<float>();
  for (size_t k = 0; k < 3; ++k) EXPECT_EQ(got[k], expected[k]);
  EXPECT_NEAR(got[4] + got[5], 1, 1e-6);
  for (const size_t k : {3u, 6u, 7u, 8u, 9u, 10u, 11u}) EXPECT_EQ(got[k], 0) << k;
}

TEST(MaskedSoftmaxTest, ALengthOfZeroHasNoGradient) {
  const Tensor x = Tensor::of<float>({2, 1, 2}, {1, 2, NAN, 4}).set_requires_grad();
  Tape tape;
  tape.backward(sum(square(masked_softmax(x, lens({2}, {2, 0})))));
  const auto grad = x.grad().to_vector<float>();
  EXPECT_NE(grad[0], 0);
  EXPECT_EQ(grad[2], 0);
  EXPECT_EQ(grad[3], 0);
}

TEST(MaskedSoftmaxTest, ErrorsNameTheArgument) {
  const Tensor x = Tensor::zeros({2, 3, 4});
  EXPECT_THROW(masked_scores(x, lens({3}, {1, 1, 1})), ShapeError);
  EXPECT_THROW(masked_softmax(x, lens({2, 4}, std::vector<int64_t>(8, 1))), ShapeError);
  EXPECT_THROW(masked_softmax(Tensor::zeros({3, 4}), lens({3}, {1, 1, 1})), ShapeError);
  EXPECT_THROW(masked_softmax(x, Tensor::ones({2})), DtypeError);
  EXPECT_THROW(masked_scores(Tensor::zeros({2, 3, 4}, Dtype::i64), lens({2}, {1, 1})), DtypeError);
  for (const int64_t length : {-1, 5}) {
    EXPECT_THROW(masked_scores(x, lens({2}, {1, length})), ValueError) << length;
    EXPECT_THROW(masked_softmax(x, lens({2, 3}, {4, 0, 1, 2, 3, length})), ValueError) << length;
  }
}

}  // namespace
}  // namespace multihead
