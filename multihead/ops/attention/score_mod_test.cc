#include "multihead/ops/attention/score_mod.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <string>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/ops/attention/inspect/captured_score_mod.h"
#include "multihead/ops/attention/masks/mask_mod.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"

namespace multihead {
namespace {

// Every function that a Dual knows, against central differences.
template <class F>
void check_derivative(const char* name, F f, double low, double high) {
  for (int i = 0; i <= 10; ++i) {
    const double x = low + (high - low) * i / 10, step = 1e-6;
    const Dual<double> y = f(Dual<double>(x, 1));
    EXPECT_NEAR(y.value, f(Dual<double>(x)).value, 0) << name;
    const double expected = (f(Dual<double>(x + step)).value - f(Dual<double>(x - step)).value) / (2 * step);
    EXPECT_NEAR(y.derivative, expected, 1e-8 * (1 + std::abs(expected))) << name << " at " << x;
  }
}

TEST(DualTest, DerivativesAreThoseOfFiniteDifferences) {
  using D = Dual<double>;
  check_derivative(
      "arithmetic", [](D x) { return (x * x - 3.0) / (x + 5.0) + 2.0 * -x; }, -2, 2);
  check_derivative(
      "compound",
      [](D x) {
        D y = x;
        y += 2.0;
        y *= x;
        y -= 1.0;
        y /= x + 9.0;
        return y;
      },
      -2, 2);
  check_derivative(
      "exp", [](D x) { return exp(x); }, -3, 3);
  check_derivative(
      "log", [](D x) { return log(x); }, 0.5, 4);
  check_derivative(
      "log1p", [](D x) { return log1p(x); }, -0.5, 4);
  check_derivative(
      "expm1", [](D x) { return expm1(x); }, -2, 2);
  check_derivative(
      "sqrt", [](D x) { return sqrt(x); }, 0.5, 4);
  check_derivative(
      "sin", [](D x) { return sin(x); }, -3, 3);
  check_derivative(
      "cos", [](D x) { return cos(x); }, -3, 3);
  check_derivative(
      "atan", [](D x) { return atan(x); }, -3, 3);
  check_derivative(
      "tanh", [](D x) { return tanh(x); }, -3, 3);
  check_derivative(
      "erf", [](D x) { return erf(x); }, -3, 3);
  check_derivative(
      "pow", [](D x) { return pow(x, 2.5); }, 0.5, 4);
  check_derivative(
      "abs", [](D x) { return abs(x) + fabs(x); }, -2.03, 2);
  check_derivative(
      "max", [](D x) { return max(x, 0.25 * x) + min(x, D(0.5)); }, -2.03, 2);
}

TEST(ScoreModTest, AlibiByHandEqualsTheBuiltIn) {
  const std::vector<float> slope = {0.5f, 0.25f, 0.125f};
  const auto alibi = [&](auto score, ScoreIndex at) {
    return score - slope[static_cast<size_t>(at.head)] * static_cast<float>(std::abs(at.query - at.key));
  };
  Rng rng(3);
  const Tensor q = randn({2, 3, 37, 8}, rng), k = randn({2, 3, 53, 8}, rng), v = randn({2, 3, 53, 5}, rng);
  const Tensor by_hand = attention(q, k, v, {.mask = causal()}, score_mod(alibi));
  const Tensor built_in =
      attention(q, k, v, {.mask = causal(), .alibi_slopes = Tensor::of<float>({3}, slope)});
  const std::vector<double> a = by_hand.to_vector<double>(), b = built_in.to_vector<double>();
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-6);
}

// The instruction set of the clone must not show in the bits.
TEST(ScoreModTest, SameBitsOnEveryTarget) {
  const kernels::Isa best = kernels::best_isa();
  const auto curve = [](auto score, ScoreIndex at) {
    return score * score * 0.3f - score * 1.7f + 0.01f * static_cast<float>(at.row);
  };
  detail::ScoreContext context;
  const auto f = std::make_shared<const decltype(curve)>(curve);
  context.function = f.get();
  std::vector<float> results[2], slopes[2];
  for (int pass = 0; pass < 2; ++pass) {
    kernels::set_isa(pass == 0 ? kernels::Isa::baseline : best);
    std::vector<float>& x = results[pass];
    for (int i = 0; i < 5 * 40; ++i) x.push_back(std::sin(static_cast<float>(i)));
    slopes[pass].assign(x.size(), NAN);
    const auto bound = ScoreMod(f).bind(Dtype::f32, &context);
    bound.apply_with_derivative(bound.context, {x.data(), 40, 1, 2, 3, 37, 4, 5}, slopes[pass].data());
    std::vector<float> plain;
    for (int i = 0; i < 5 * 40; ++i) plain.push_back(std::sin(static_cast<float>(i)));
    bound.apply(bound.context, {plain.data(), 40, 1, 2, 3, 37, 4, 5});
    EXPECT_EQ(plain, x);
  }
  kernels::set_isa(best);
  EXPECT_EQ(results[0], results[1]);
  for (size_t i = 0; i < slopes[0].size(); ++i) {
    if (i % 40 < 37) {
      EXPECT_EQ(slopes[0][i], slopes[1][i]);
      EXPECT_NEAR(slopes[0][i], 0.6f * std::sin(static_cast<float>(i)) - 1.7f, 1e-6);
    } else {
      EXPECT_TRUE(std::isnan(slopes[0][i])) << "wrote outside the tile";
      EXPECT_EQ(results[0][i], std::sin(static_cast<float>(i)));
    }
  }
}

TEST(ScoreModTest, PositionsCountFromTheFirstKey) {
  // Chunked prefill with a function of positions equals the whole.
  const auto f = [](auto score, ScoreIndex at) {
    return score - 0.3f * static_cast<float>(at.query - at.key);
  };
  Rng rng(5);
  const Tensor q = randn({1, 2, 11, 4}, rng), k = randn({1, 2, 11, 4}, rng), v = randn({1, 2, 11, 4}, rng);
  const Tensor whole = attention(q, k, v, {.mask = causal()}, score_mod(f));
  for (int64_t t = 0; t < 11; ++t) {
    const Tensor one =
        attention(q.as_strided({1, 2, 1, 4}, q.strides(), t * 4), k.as_strided({1, 2, t + 1, 4}, k.strides()),
                  v.as_strided({1, 2, t + 1, 4}, v.strides()), {.mask = causal()}, score_mod(f));
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t d = 0; d < 4; ++d) EXPECT_EQ(one.at({0, h, 0, d}), whole.at({0, h, t, d}));
    }
  }
}

TEST(ScoreModTest, IndicesAreThoseOfThePair) {
  const Tensor zeros = Tensor::zeros({2, 3, 5, 2});
  AttentionCapture capture;
  capture.stage = CaptureStage::scores;
  const auto encode = [](auto, ScoreIndex at) {
    return static_cast<float>(at.batch * 1000 + at.head * 100 + at.row * 10 + at.key);
  };
  attention(zeros, zeros, zeros, {.capture = &capture}, score_mod(encode));
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < 3; ++h) {
      for (int64_t i = 0; i < 5; ++i) {
        for (int64_t j = 0; j < 5; ++j) {
          EXPECT_EQ(capture.weights.at({b, h, i, j}), static_cast<double>(b * 1000 + h * 100 + i * 10 + j));
        }
      }
    }
  }
}

TEST(ScoreModTest, ExceptionsReachTheCaller) {
  const auto f = [](auto score, ScoreIndex at) {
    if (at.key == 3) throw std::runtime_error("from inside");
    return score;
  };
  const Tensor x = Tensor::ones({2, 2, 5, 4});
  EXPECT_THROW(attention(x, x, x, {}, score_mod(f)), std::runtime_error);
}

TEST(ScoreModTest, KeepsItsOwnCopyForTheBackward) {
  Rng rng(1);
  Tensor x = randn({1, 1, 4, 3}, rng).set_requires_grad();
  Tape tape;
  Tensor y;
  {
    std::vector<float> slope = {0.5f};
    y = attention(x, x, x, {}, score_mod([slope](auto score, ScoreIndex) { return score * slope[0]; }));
  }
  tape.backward(y, Tensor::ones(y.shape()));
  const std::vector<float> by_function = x.grad().to_vector<float>();
  x.set_grad({});
  Tape second;
  const Tensor z = attention(x, x, x, {.scale = 0.5f / std::sqrt(3.0f)});
  second.backward(z, Tensor::ones(z.shape()));
  const std::vector<float> by_scale = x.grad().to_vector<float>();
  for (size_t i = 0; i < by_scale.size(); ++i) EXPECT_NEAR(by_function[i], by_scale[i], 1e-6);
}

// Every function of positions is called within the tensors only, on every path: tables of exactly their size
// are enough.
TEST(ScoreModTest, IsCalledForRowsAndKeysThatExist) {
  Rng rng(3);
  for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16}) {
    const Dtype wide = dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32;
    for (const int64_t queries : {1, 2, 5, 15, 16, 17, 37, 70, 130}) {
      for (const int64_t keys : {1, 7, 20, 37, 130, 300}) {
        if (testing::kSanitized && (queries + keys) % 3 == 0) continue;
        const auto inside = [=](ScoreIndex at) {
          if (at.row < 0 || at.row >= queries || at.key < 0 || at.key >= keys || at.batch < 0 ||
              at.batch >= 2 || at.head < 0 || at.head >= 4 || at.query != at.row + keys - queries) {
            throw std::out_of_range("row " + std::to_string(at.row) + ", key " + std::to_string(at.key));
          }
        };
        const auto f = [=](auto score, ScoreIndex at) {
          inside(at);
          return score * 0.5f;
        };
        const auto g = [=](ScoreIndex at) {
          inside(at);
          return (at.row + at.key) % 5 != 0;
        };
        const auto tensor = [&](int64_t heads, int64_t rows) {
          return randn({2, heads, rows, 16}, rng, wide).to(dtype).clone().set_requires_grad();
        };
        const Tensor q = tensor(4, queries), k = tensor(2, keys), v = tensor(2, keys);
        Tape tape;
        AttentionCapture capture{.want_entropy = true};
        Tensor y;
        ASSERT_NO_THROW(y = attention(q, k, v, {.mask = mask_mod(g), .capture = &capture}, score_mod(f)))
            << dtype << ", " << queries << " x " << keys;
        ASSERT_NO_THROW(tape.backward(y, Tensor::ones(y.shape(), wide)))
            << dtype << ", " << queries << " x " << keys;
      }
    }
  }
}

TEST(ScoreModTest, RaggedAndPackedRowsExistToo) {
  Rng rng(3);
  const std::vector<int64_t> sizes = {2, 0, 17, 5};
  const Tensor cu = Tensor::of<int64_t>({5}, {0, 2, 2, 19, 24});
  const auto check = [](ScoreIndex at, int64_t rows) {
    if (at.row < 0 || at.row >= rows || at.key < 0 || at.key >= rows) throw std::out_of_range("row");
  };
  const auto ragged = [&](auto score, ScoreIndex at) {
    check(at, sizes[static_cast<size_t>(at.batch)]);
    return score;
  };
  const auto packed = [&](auto score, ScoreIndex at) {
    check(at, 19);
    return score;
  };
  const Tensor x = randn({24, 4, 16}, rng).set_requires_grad(),
               qkv = randn({2, 19, 128}, rng).set_requires_grad();
  Tape tape;
  const Tensor y = attention_ragged(x, x, x, cu, cu, {.mask = causal()}, score_mod(ragged));
  tape.backward(y, Tensor::ones(y.shape()));
  const Tensor z =
      attention_packed(qkv, {.num_heads = 4, .num_kv_heads = 2}, {.mask = causal()}, score_mod(packed));
  tape.backward(z, Tensor::ones(z.shape()));
}

// A forgetting gate that learns, against the bias that says the same.
TEST(ScoreModTest, TensorsThatItReadsGetGradients) {
  Rng rng(7);
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16}) {
    const Dtype wide = dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32;
    const Tensor gates = randn({2, 4, 37}, rng, wide).set_requires_grad();
    std::vector<Tensor> leaves = {gates};
    for (const int64_t heads : {4, 2, 2})
      leaves.push_back(randn({2, heads, 37, 8}, rng, wide).to(dtype).clone().set_requires_grad());
    const auto forget = [](auto score, ScoreIndex at, const auto& reads) {
      return score + reads[0](at.batch, at.head, at.row) - reads[0](at.batch, at.head, at.key);
    };
    std::vector<std::vector<double>> results[2];
    for (const bool by_bias : {false, true}) {
      for (const Tensor& x : leaves) x.set_grad({});
      Tape tape;
      const Tensor sums = square(gates);
      const Tensor bias = sub(reshape(sums, {2, 4, 37, 1}), reshape(sums, {2, 4, 1, 37}));
      const Tensor y =
          by_bias ? attention(leaves[1], leaves[2], leaves[3], {.mask = causal(), .bias = bias})
                  : attention(leaves[1], leaves[2], leaves[3], {.mask = causal()}, score_mod(forget, {sums}));
      results[by_bias].push_back(y.to_vector<double>());
      Rng weights(3);
      tape.backward(y, randn(y.shape(), weights, wide));
      for (const Tensor& x : leaves) results[by_bias].push_back(x.grad().to_vector<double>());
    }
    const double tolerance = dtype == Dtype::f64 ? 1e-12 : dtype == Dtype::f32 ? 2e-5 : 0.1;
    for (size_t n = 0; n < results[0].size(); ++n) {
      for (size_t i = 0; i < results[0][n].size(); ++i)
        ASSERT_NEAR(results[0][n][i], results[1][n][i], tolerance) << dtype << ", " << n << " at " << i;
    }
  }
}

TEST(ScoreModTest, ReadsOutsideATensorAreNamed) {
  const Tensor x = Tensor::ones({1, 2, 5, 4}), table = Tensor::ones({4});
  const auto f = [](auto score, ScoreIndex at, const auto& reads) { return score * reads[0](at.key); };
  try {
    attention(x, x, x, {}, score_mod(f, {table}));
    FAIL() << "expected a ShapeError";
  } catch (const ShapeError& e) {
    EXPECT_STREQ(e.what(), "score_mod: the function reads (4) of tensor 0, which is [4]");
  }
  const auto g = [](auto score, ScoreIndex, const auto& reads) { return score * reads[1](0); };
  EXPECT_THROW(attention(x, x, x, {}, score_mod(g, {table})), ValueError);
  EXPECT_THROW(score_mod(f, {Tensor::arange(4)}), DtypeError);
  EXPECT_THROW(score_mod(f, {Tensor()}), ValueError);
}

}  // namespace
}  // namespace multihead
