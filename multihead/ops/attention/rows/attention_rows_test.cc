#include "multihead/ops/attention/rows/attention_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/ops/array/scan.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"
#include "multihead/ops/softmax.h"
#include "multihead/testing/everywhere.h"

namespace multihead {
namespace {

using ::testing::HasSubstr;
using Tensors = std::vector<Tensor>;

Tensor normal_rows(const Shape& shape, uint64_t seed, Dtype dtype = Dtype::f32) {
  return Tensor::of<float>(shape, testing::normal_floats(shape.numel(), seed)).to(dtype);
}

Tensor softmax_of(const ScoreRows& rows, const Tensors&) { return softmax(rows.scores); }

Tensor stick_breaking(const ScoreRows& rows, const Tensors&) {
  const Tensor left = log_sigmoid(scale(rows.scores, -1));
  return exp(add(log_sigmoid(rows.scores), sub(cumsum(left, 3, true), left)));
}

double largest_difference(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  double largest = x.size() == y.size() ? 0 : 1e30;
  for (size_t i = 0; i < x.size() && i < y.size(); ++i) largest = std::max(largest, std::abs(x[i] - y[i]));
  return largest;
}

// The output and the gradients of query, key and value.
template <class F>
Tensors with_gradients(Tensors x, const F& f) {
  Tape tape;
  for (Tensor& leaf : x) (leaf = leaf.detach()).set_requires_grad();
  const Tensor out = f(x[0], x[1], x[2]);
  tape.backward(out, normal_rows(out.shape(), 9, out.dtype()));
  return {out.detach(), x[0].grad(), x[1].grad(), x[2].grad()};
}

TEST(AttentionRowsTest, SoftmaxIsAttentionUnderEveryMask) {
  const int64_t rows = 70, keys = 300;
  const Tensors x = {normal_rows({2, 4, rows, 8}, 1, Dtype::f64), normal_rows({2, 2, keys, 8}, 2, Dtype::f64),
                     normal_rows({2, 2, keys, 5}, 3, Dtype::f64)};
  Tensor flags = Tensor::zeros({2, 4, rows, keys}, Dtype::boolean);
  for (int64_t i = 0; i < flags.numel(); ++i) flags.data<bool>()[i] = i * 7919 % 5 < 3 || i % keys == 0;
  const Tensor every_second = Tensor::of({1, 4, 5, 19}, [] {
    std::vector<bool> on(4 * 5 * 19);
    for (size_t i = 0; i < on.size(); ++i) on[i] = i % 2 == 0;
    return on;
  }());
  for (const Mask& mask : {Mask(), causal(), window(20, 3), causal(Align::start), keep(flags) & causal(),
                           blocks(every_second, 16, 16), lengths(Tensor::of<int64_t>({2}, {300, 17})),
                           query_lengths(Tensor::of<int64_t>({2}, {3, 70}))}) {
    const Tensors got = with_gradients(x, [&](const Tensor& q, const Tensor& k, const Tensor& v) {
      return attention_rows(q, k, v, softmax_of, {.mask = mask, .scale = 0.7});
    });
    const Tensors want = with_gradients(x, [&](const Tensor& q, const Tensor& k, const Tensor& v) {
      return attention(q, k, v, {.mask = mask, .scale = 0.7});
    });
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_LT(largest_difference(got[i], want[i]), 1e-12) << mask.to_string() << ", tensor " << i;
    }
  }
}

TEST(AttentionRowsTest, ChunksAndSamplesHaveTheBitsOfTheWhole) {
  const Tensor q = normal_rows({2, 2, 300, 16}, 1), k = normal_rows({2, 1, 300, 16}, 2),
               v = normal_rows({2, 1, 300, 16}, 3);
  testing::everywhere([&](const std::string& where) {
    for (const RowWeights& weights : {RowWeights(stick_breaking), RowWeights(softmax_of)}) {
      const Tensor whole = attention_rows(q, k, v, weights, {.mask = causal()});
      for (const auto& chunk : {std::pair<int64_t, int64_t>{0, 1}, {10, 90}, {255, 258}, {299, 300}}) {
        const int64_t begin = chunk.first, end = chunk.second;
        for (const int64_t b : {0, 1}) {
          const auto part = [&](const Tensor& x, int64_t from) {
            return slice(slice(x, 0, b, b + 1), 2, from, end);
          };
          const Tensor rows =
              attention_rows(part(q, begin), part(k, 0), part(v, 0), weights, {.mask = causal()});
          EXPECT_EQ(rows.to_vector<float>(), part(whole, begin).to_vector<float>())
              << where << ", rows from " << begin << " of sample " << b;
        }
      }
    }
  });
}

TEST(AttentionRowsTest, RefusesByName) {
  const Tensor x = normal_rows({1, 2, 3, 4}, 1);
  const auto refused = [&](const RowWeights& weights, const char* text) {
    try {
      attention_rows(x, x, x, weights);
      ADD_FAILURE() << "expected: " << text;
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr(text));
    }
  };
  refused(nullptr, "attention_rows: weights must be a function");
  refused([](const ScoreRows& rows, const Tensors&) { return slice(rows.scores, 3, 0, 3); },
          "attention_rows: weights must return [B, H, rows, keys] = [1, 2, 3, 256], got [1, 2, 3, 3]");
  refused([](const ScoreRows& rows, const Tensors&) { return rows.scores.to(Dtype::f64); },
          "attention_rows: weights must return f32, as the scores are, got f64");
  Tape tape;
  Tensor table = normal_rows({1}, 2);
  table.set_requires_grad();
  refused([&](const ScoreRows& rows, const Tensors&) { return mul(softmax(rows.scores), table); },
          "attention_rows: weights reads a tensor that needs a gradient; give it among inputs");
}

TEST(AttentionRowsTest, RowsAndSizesOfZero) {
  const Tensor none = normal_rows({1, 2, 0, 4}, 1), x = normal_rows({1, 2, 3, 4}, 2);
  EXPECT_EQ(attention_rows(none, x, x, softmax_of).shape(), Shape({1, 2, 0, 4}));
  EXPECT_EQ(attention_rows(x, none, none, softmax_of).to_vector<float>(), std::vector<float>(24, 0.0f));
}

}  // namespace
}  // namespace multihead
