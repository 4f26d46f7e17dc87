// Sparsemax and entmax-1.5 against sorting each row, and finite differences.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/sanitizers.h"

namespace multihead {
namespace {

using Doubles = std::vector<double>;

// The weights of a row of scores: the threshold is that of the k largest ones that leaves all k above it.
Doubles weights_of(const Doubles& scores, bool squared) {
  Doubles x = scores;
  for (double& v : x) v *= squared ? 0.5 : 1;
  Doubles sorted = x;
  std::sort(sorted.rbegin(), sorted.rend());
  double t = 0, sum = 0, squares = 0;
  for (size_t k = 1; k <= sorted.size(); ++k) {
    const auto n = static_cast<double>(k);
    sum += sorted[k - 1], squares += sorted[k - 1] * sorted[k - 1];
    const double mean = sum / n, spread = squares / n - mean * mean, rest = (1 - n * spread) / n;
    if (squared && rest < 0) break;
    const double next = squared ? mean - std::sqrt(rest) : (sum - 1) / n;
    if (next >= sorted[k - 1]) break;
    t = next;
  }
  for (double& v : x) v = v > t ? (squared ? (v - t) * (v - t) : v - t) : 0;
  return x;
}

struct BiasedInputs {
  Tensor query, key, value, bias;
};

BiasedInputs inputs_of(int64_t queries, int64_t keys, Dtype dtype, uint64_t seed) {
  Rng rng(seed);
  return {scale(randn({2, 4, queries, 8}, rng), 3).to(dtype), randn({2, 2, keys, 8}, rng).to(dtype),
          randn({2, 2, keys, 6}, rng).to(dtype), randn({4, queries, keys}, rng).to(dtype)};
}

Doubles reference(const BiasedInputs& in, bool squared, bool is_causal) {
  const int64_t queries = in.query.size(2), keys = in.key.size(2);
  Doubles out;
  for (int64_t row = 0; row < 2 * 4 * queries; ++row) {
    const int64_t b = row / (4 * queries), h = row / queries % 4, i = row % queries;
    Doubles s;
    for (int64_t j = 0; j < (is_causal ? i + keys - queries + 1 : keys); ++j) {
      double dot = 0;
      for (int64_t c = 0; c < 8; ++c) dot += in.query.at({b, h, i, c}) * in.key.at({b, h / 2, j, c});
      s.push_back(dot / std::sqrt(8.0) + in.bias.at({h, i, j}));
    }
    const Doubles w = weights_of(s, squared);
    for (int64_t c = 0; c < 6; ++c) {
      double sum = 0;
      for (size_t j = 0; j < w.size(); ++j) sum += w[j] * in.value.at({b, h / 2, static_cast<int64_t>(j), c});
      out.push_back(sum);
    }
  }
  return out;
}

Tensor call(const BiasedInputs& in, Normalise normalise, bool is_causal, Tensor* lse = nullptr) {
  AttentionOptions options = {.mask = is_causal ? causal() : Mask(), .bias = in.bias};
  options.normalise = normalise, options.lse = lse;
  return attention(in.query, in.key, in.value, options);
}

TEST(ThresholdsTest, WeightsAreThoseOfSortedRows) {
  for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{1, 1}, {5, 70}, {131, 131}, {7, 300}}) {
    if (testing::kSanitized && queries * keys > 10'000) continue;
    for (const Normalise normalise : {Normalise::sparsemax, Normalise::entmax15}) {
      for (const bool is_causal : {false, true}) {
        const BiasedInputs in = inputs_of(queries, keys, Dtype::f64, 5);
        const Doubles want = reference(in, normalise == Normalise::entmax15, is_causal);
        const Doubles wide = call(in, normalise, is_causal).to_vector<double>();
        const BiasedInputs narrow = inputs_of(queries, keys, Dtype::f32, 5);
        const Doubles fused = call(narrow, normalise, is_causal).to_vector<double>();
        ASSERT_EQ(want.size(), wide.size());
        for (size_t i = 0; i < want.size(); ++i) {
          ASSERT_NEAR(wide[i], want[i], 1e-12) << queries << "x" << keys;
          ASSERT_NEAR(fused[i], want[i], 3e-5) << queries << "x" << keys;
        }
      }
    }
  }
}

TEST(ThresholdsTest, GradientsAreThoseOfFiniteDifferences) {
  for (const Normalise normalise : {Normalise::sparsemax, Normalise::entmax15}) {
    const BiasedInputs in = inputs_of(9, 12, Dtype::f64, 8);
    Rng rng(2);
    const Tensor weight = randn({2, 4, 9, 6}, rng, Dtype::f64), of_t = randn({2, 4, 9}, rng, Dtype::f64);
    const auto loss = [&] {
      Tensor t;
      const Tensor out = call(in, normalise, true, &t);
      return add(sum(mul(out, weight)), sum(mul(t, of_t)));
    };
    for (Tensor x : {in.query, in.key, in.value, in.bias}) x.set_requires_grad();
    {
      Tape tape;
      tape.backward(loss());
    }
    for (const Tensor& x : {in.query, in.key, in.value, in.bias}) {
      const Doubles gradient = x.grad().to_vector<double>();
      for (size_t i = 0; i < gradient.size(); i += 1 + gradient.size() / 40) {
        double& at = x.data<double>()[i];
        const double kept = at, step = 1e-6;
        at = kept + step;
        const double above = loss().item();
        at = kept - step;
        const double below = loss().item();
        at = kept;
        EXPECT_NEAR(gradient[i], (above - below) / (2 * step), 1e-7) << i;
      }
    }
  }
}

// A row's threshold does not depend on when the others' are found.
TEST(ThresholdsTest, ARowAloneHasItsBits) {
  for (const Normalise normalise : {Normalise::sparsemax, Normalise::entmax15}) {
    const BiasedInputs in = inputs_of(70, 300, Dtype::f32, 4);
    const Doubles all = call(in, normalise, true).to_vector<double>();
    for (int64_t row : {0, 33, 69}) {
      const int64_t keys = 300 - 70 + row + 1;
      const auto part = [](const Tensor& x, int64_t begin, int64_t end) { return slice(x, 2, begin, end); };
      const BiasedInputs one = {part(in.query, row, row + 1), part(in.key, 0, keys), part(in.value, 0, keys),
                                slice(slice(in.bias, 1, row, row + 1), 2, 0, keys)};
      const Doubles alone = call(one, normalise, true).to_vector<double>();
      for (int64_t n = 0; n < 2 * 4; ++n) {
        for (int64_t c = 0; c < 6; ++c)
          EXPECT_EQ(alone[static_cast<size_t>(n * 6 + c)], all[static_cast<size_t>((n * 70 + row) * 6 + c)]);
      }
    }
  }
}

TEST(ThresholdsTest, OtherFormsOfCall) {
  const BiasedInputs in = inputs_of(60, 60, Dtype::f32, 4);
  AttentionOptions options = {.mask = causal()};
  options.normalise = Normalise::sparsemax;
  const Doubles want = attention(in.query, in.key, slice(concat({in.value, in.value}, 3), 3, 0, 8), options)
                           .to_vector<double>();
  const auto swap = [](const Tensor& x) {
    return reshape(contiguous(transpose(x, 1, 2)), {2, 60, x.size(1) * x.size(3)});
  };
  const Tensor values = slice(concat({in.value, in.value}, 3), 3, 0, 8);
  const Tensor packed =
      attention_packed(concat({swap(in.query), swap(in.key), swap(values)}, 2), {4, 2}, options);
  const auto rows = [](const Tensor& x) {
    return reshape(contiguous(transpose(x, 1, 2)), {120, x.size(1), x.size(3)});
  };
  const Tensor ends = Tensor::of<int64_t>({3}, {0, 60, 120});
  const Tensor ragged = attention_ragged(rows(in.query), rows(in.key), rows(values), ends, ends, options);
  EXPECT_EQ(packed.to_vector<double>(), ragged.to_vector<double>());
  EXPECT_EQ(contiguous(transpose(reshape(packed, {2, 60, 4, 8}), 1, 2)).to_vector<double>(), want);
  EXPECT_THROW(
      attention(in.query, in.key, in.value, options, score_mod([](auto s, ScoreIndex) { return s; })),
      ValueError);
  options.sinks = Tensor::zeros({4});
  EXPECT_THROW(attention(in.query, in.key, in.value, options), ValueError);
}

}  // namespace
}  // namespace multihead
