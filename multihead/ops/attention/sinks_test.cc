// A sink is a key of its own score and no value: what the ops say of that key, sinks must say, too.
#include <gtest/gtest.h>

#include <cmath>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/ops/attention/composed.h"
#include "multihead/ops/attention/testing-inl.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"

namespace multihead {
namespace {

struct SinkInputs {
  Tensor query, key, value, sinks, weight;
};

constexpr int64_t kSinks = 6, kQueries = 13, kKeys = 19;

SinkInputs make_inputs(Dtype dtype, int64_t keys = kKeys) {
  Rng rng(5);
  const Dtype wide = dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32;
  SinkInputs in = {randn({2, kSinks, kQueries, 8}, rng, wide).to(dtype),
                   randn({2, 3, keys, 8}, rng, wide).to(dtype), randn({2, 3, keys, 5}, rng, wide).to(dtype),
                   randn({kSinks}, rng, wide), randn({2, kSinks, kQueries, 5}, rng, wide)};
  for (Tensor* x : {&in.query, &in.key, &in.value, &in.sinks}) x->set_requires_grad();
  return in;
}

void expect_near(const Tensor& a, const Tensor& b, double tolerance, const char* what) {
  ASSERT_TRUE(a.defined() && b.defined()) << what;
  ASSERT_EQ(a.shape(), b.shape()) << what;
  const auto x = a.to_vector<double>(), y = b.to_vector<double>();
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i]) continue;  // the same infinity
    ASSERT_NEAR(x[i], y[i], tolerance) << what << " at " << i;
  }
}

template <class F>
Result run(const SinkInputs& in, F&& f) {
  for (const Tensor& x : {in.query, in.key, in.value, in.sinks}) x.set_grad({});
  Result r;
  Tape tape;
  r.out = f(in, &r.lse);
  tape.backward(r.out, in.weight);
  for (const Tensor& x : {in.query, in.key, in.value, in.sinks}) r.gradients.push_back(x.grad());
  return r;
}

// The output, or the entropy in its shape.
Tensor result_of(const Tensor& out, const AttentionCapture* capture) {
  if (capture == nullptr) return out;
  return expand(reshape(capture->entropy, {2, kSinks, kQueries, 1}), out.shape());
}

// Keys and values get a row of zeros, and its scores are the sinks by way of the bias.
Result with_extra_key(const SinkInputs& in, const Tensor& flags, double dropout_p = 0,
                      AttentionCapture* capture = nullptr) {
  return run(in, [&](const SinkInputs& x, Tensor* lse) {
    const Dtype dtype = x.query.dtype();
    const Tensor zeros = Tensor::zeros({2, kSinks, kQueries, kKeys}, dtype);
    const Tensor bias =
        concat({zeros, expand(reshape(x.sinks, {1, kSinks, 1, 1}), {2, kSinks, kQueries, 1})}, 3);
    const Tensor all = Tensor::full({kQueries, 1}, 1, Dtype::boolean);
    Rng rng(77);
    const Tensor out = attention(x.query, concat({x.key, Tensor::zeros({2, 3, 1, 8}, dtype)}, 2),
                                 concat({x.value, Tensor::zeros({2, 3, 1, 5}, dtype)}, 2),
                                 {.mask = keep(concat({flags, all}, 1)),
                                  .bias = bias,
                                  .dropout_p = static_cast<float>(dropout_p),
                                  .rng = &rng,
                                  .capture = capture,
                                  .lse = lse});
    return result_of(out, capture);
  });
}

Result with_sinks(const SinkInputs& in, const Tensor& flags, double dropout_p = 0,
                  AttentionCapture* capture = nullptr) {
  return run(in, [&](const SinkInputs& x, Tensor* lse) {
    Rng rng(77);
    const Tensor out = attention(x.query, x.key, x.value,
                                 {.mask = keep(flags),
                                  .sinks = x.sinks,
                                  .dropout_p = static_cast<float>(dropout_p),
                                  .rng = &rng,
                                  .capture = capture,
                                  .lse = lse});
    return result_of(out, capture);
  });
}

// Random, with every key of query 4 excluded.
Tensor make_flags() {
  const Tensor flags = Tensor::empty({kQueries, kKeys}, Dtype::boolean);
  const RandomStream stream{3, 0};
  for (int64_t i = 0; i < kQueries * kKeys; ++i)
    flags.data<bool>()[i] = i / kKeys != 4 && stream.uniform(static_cast<uint64_t>(i)) < 0.7f;
  return flags;
}

TEST(AttentionSinksTest, AreAKeyWithoutValue) {
  const Tensor flags = make_flags();
  for (const Dtype dtype : {Dtype::f64, Dtype::f32}) {
    const double tolerance = dtype == Dtype::f64 ? 1e-13 : 3e-6;
    for (const double dropout_p : {0.0, 0.4}) {
      const SinkInputs in = make_inputs(dtype);
      const Result expected = with_extra_key(in, flags, dropout_p), got = with_sinks(in, flags, dropout_p);
      expect_near(got.out, expected.out, tolerance, "out");
      const char* names[] = {"query", "key", "value", "sinks"};
      for (size_t i = 0; i < 4; ++i)
        expect_near(got.gradients[i], expected.gradients[i], 10 * tolerance, names[i]);
      for (int64_t h = 0; h < kSinks; ++h) {
        EXPECT_EQ(got.lse.at({1, h, 4}), in.sinks.at({h}));  // a row without keys: the sink is all there is
        EXPECT_NEAR(got.lse.at({1, h, 5}), expected.lse.at({1, h, 5}), tolerance);
      }
    }
  }
}

// On every path: a row without keys has output 0 and the sink as its log-sum-exp.
TEST(AttentionSinksTest, AreTheLogSumExpOfRowsWithoutKeys) {
  Rng rng(3);
  const Tensor valid = Tensor::of<int64_t>({2}, {0, 7});
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16}) {
    const Dtype wide = dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32;
    const Tensor sinks = Tensor::of<double>({4}, {0.5, 100, -3e4, -kInf}).to(wide);
    const auto check = [&](const char* path, const Tensor& out, const Tensor& lse, int64_t rows) {
      for (int64_t h = 0; h < 4; ++h) {
        for (int64_t i = 0; i < rows; ++i) {
          EXPECT_EQ(lse.at({0, h, i}), sinks.at({h})) << path << ", " << dtype << ", head " << h;
          EXPECT_GT(lse.at({1, h, i}), -kInf) << path;
        }
      }
      for (const double x : slice(out, 0, 0, 1).to_vector<double>()) EXPECT_EQ(x, 0) << path << ", " << dtype;
    };
    for (const int64_t rows : {1, 3, 70}) {
      for (const int64_t keys : {9, 300}) {
        const Tensor q = randn({2, 4, rows, 16}, rng, wide).to(dtype),
                     k = randn({2, 2, keys, 16}, rng, wide).to(dtype);
        const AttentionOptions options = {.mask = lengths(valid), .sinks = sinks};
        for (const auto& [path, op] : {std::pair{"fused", &attention}, {"composed", &attention_composed}}) {
          AttentionOptions o = options;
          Tensor lse;
          o.lse = &lse;
          const Tensor out = op(q, k, k, o, {});
          check(path, out, lse, rows);
        }
        AttentionOptions swapped = options;
        Tensor lse;
        swapped.lse = &lse, swapped.layout = Layout::bthd;
        const Tensor out = attention(transpose(q, 1, 2), transpose(k, 1, 2), transpose(k, 1, 2), swapped);
        check("bthd", out, lse, rows);
      }
    }
    Tensor lse;
    const Tensor packed =
        attention_packed(randn({2, 7, 8 * 16}, rng, wide).to(dtype), {.num_heads = 4, .num_kv_heads = 2},
                         {.mask = lengths(valid), .sinks = sinks, .lse = &lse});
    check("packed", packed, lse, 7);
    const Tensor x = randn({5, 4, 16}, rng, wide).to(dtype);
    attention_ragged(x, x, x, Tensor::of<int64_t>({3}, {0, 2, 5}), Tensor::of<int64_t>({3}, {0, 0, 5}),
                     {.sinks = sinks, .lse = &lse});
    for (int64_t h = 0; h < 4; ++h) {
      EXPECT_EQ(lse.at({h, 0}), sinks.at({h}));
      EXPECT_EQ(lse.at({h, 1}), sinks.at({h}));
    }
  }
}

// The sink counts in one chunk of the keys, also where that has none to offer.
TEST(AttentionSinksTest, SurviveTheMergeOfChunks) {
  Rng rng(3);
  const Tensor q = randn({2, 2, 4, 8}, rng), k = randn({2, 2, 10, 8}, rng), v = randn({2, 2, 10, 5}, rng);
  const Tensor sinks = Tensor::of<float>({2}, {1, 2}), valid = Tensor::of<int64_t>({2}, {5, 0});
  const auto part = [&](int64_t begin, int64_t end, AttentionOptions options) {
    AttentionPart p;
    options.lse = &p.lse;
    p.out = attention(q, slice(k, 2, begin, end), slice(v, 2, begin, end), options);
    return p;
  };
  const AttentionPart first = part(0, 5, {.mask = lengths(valid), .sinks = sinks}), second = part(5, 10, {});
  const Tensor flags = Tensor::full({2, 1, 1, 10}, 1, Dtype::boolean);
  for (int64_t j = 0; j < 5; ++j) flags.data<bool>()[10 + j] = false;
  const AttentionPart whole = part(0, 10, {.mask = keep(flags), .sinks = sinks});
  for (const AttentionPart& merged : {merge_attention(first, second), merge_attention(second, first)}) {
    expect_near(merged.out, whole.out, 1e-6, "out");
    expect_near(merged.lse, whole.lse, 1e-6, "lse");
  }
}

TEST(AttentionSinksTest, EqualTheDefinition) {
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16}) {
    const SinkInputs in = make_inputs(dtype);
    const auto by = [&](auto op) {
      return run(in, [&](const SinkInputs& x, Tensor* lse) {
        return op(x.query, x.key, x.value, AttentionOptions{.mask = causal(), .sinks = x.sinks, .lse = lse},
                  ScoreMod());
      });
    };
    const Result fused = by(attention), composed = by(attention_composed);
    const double tolerance = dtype == Dtype::f64    ? 1e-13
                             : dtype == Dtype::f32  ? 3e-6
                             : dtype == Dtype::bf16 ? 0.06
                                                    : 0.01;
    expect_near(fused.out, composed.out, tolerance, "out");
    expect_near(fused.lse, composed.lse, dtype == Dtype::f64 ? 1e-13 : 3e-6, "lse");
    for (size_t i = 0; i < 4; ++i)
      expect_near(fused.gradients[i], composed.gradients[i], 10 * tolerance, "d");
  }
}

TEST(AttentionSinksTest, ZerosAddOneToTheSum) {
  const SinkInputs in = make_inputs(Dtype::f32);
  Tensor lse;
  const Tensor plain = attention(in.query, in.key, in.value, {.lse = &lse}).detach();
  const Tensor out = attention(in.query, in.key, in.value, {.sinks = Tensor::zeros({kSinks})}).detach();
  const Tensor share = sigmoid(reshape(lse, {2, kSinks, kQueries, 1}));  // e^lse / (1 + e^lse)
  expect_near(out, mul(plain, share), 1e-6, "out");
}

TEST(AttentionSinksTest, OfMinusInfinityChangeNoBit) {
  const SinkInputs in = make_inputs(Dtype::f32);
  const Tensor none = Tensor::full({kSinks}, -kInf);
  Tensor lse, plain_lse;
  const Tensor out = attention(in.query, in.key, in.value, {.mask = causal(), .sinks = none, .lse = &lse});
  const Tensor plain = attention(in.query, in.key, in.value, {.mask = causal(), .lse = &plain_lse});
  EXPECT_EQ(out.to_vector<float>(), plain.to_vector<float>());
  EXPECT_EQ(lse.to_vector<float>(), plain_lse.to_vector<float>());
}

TEST(AttentionSinksTest, PackedRaggedAndThreadsGiveTheSameBits) {
  Rng rng(3);
  const Tensor sinks = randn({4}, rng), qkv = randn({3, 11, 4 * 3 * 6}, rng);
  const auto heads = [&](int64_t part) {
    return reshape(slice(qkv, 2, part * 24, part * 24 + 24), {3, 11, 4, 6}).contiguous();
  };
  const Tensor q = heads(0), k = heads(1), v = heads(2);
  const AttentionOptions options = {.mask = causal(), .sinks = sinks, .layout = Layout::bthd};
  const std::vector<float> whole = attention(q, k, v, options).to_vector<float>();
  const AttentionOptions plain = {.mask = causal(), .sinks = sinks};
  EXPECT_EQ(attention_packed(qkv, {.num_heads = 4}, plain).to_vector<float>(), whole);
  const Tensor cu = Tensor::of<int64_t>({4}, {0, 11, 22, 33});
  const auto rows = [](const Tensor& x) { return reshape(x, {33, 4, 6}); };
  EXPECT_EQ(attention_ragged(rows(q), rows(k), rows(v), cu, cu, plain).to_vector<float>(), whole);
  const int threads = num_threads();
  for (const int n : {1, 2, 3, 8}) {
    set_num_threads(n);
    EXPECT_EQ(attention(q, k, v, options).to_vector<float>(), whole) << n;
  }
  set_num_threads(threads);
}

TEST(AttentionSinksTest, CapturedWeightsLackTheirShare) {
  const SinkInputs in = make_inputs(Dtype::f32);
  AttentionCapture capture;
  Tensor lse;
  attention(in.query, in.key, in.value, {.sinks = in.sinks, .capture = &capture, .lse = &lse});
  const Tensor sums = sum(capture.weights, 3);
  for (int64_t h = 0; h < kSinks; ++h) {
    const double sink = std::exp(in.sinks.at({h}) - lse.at({0, h, 2}));
    EXPECT_NEAR(sums.at({0, h, 2}), 1 - sink, 1e-5);
  }
}

// The entropy is that of the whole distribution, and so are its gradients.
TEST(AttentionSinksTest, EntropyCountsThem) {
  for (const Dtype dtype : {Dtype::f64, Dtype::f32}) {
    const SinkInputs in = make_inputs(dtype);
    const double tolerance = dtype == Dtype::f64 ? 1e-12 : 2e-5;
    AttentionCapture of_key{.want_weights = false, .want_entropy = true}, of_sink = of_key;
    const Result expected = with_extra_key(in, make_flags(), 0, &of_key);
    const Result got = with_sinks(in, make_flags(), 0, &of_sink);
    expect_near(got.out, expected.out, tolerance, "entropy");
    EXPECT_EQ(of_sink.entropy.at({1, 2, 4}), 0) << "a row without keys: the sink is certain";
    for (const size_t n : {0U, 1U, 3U})
      expect_near(got.gradients[n], expected.gradients[n], tolerance, "gradient");
  }
}

TEST(AttentionSinksTest, WrongOnesAreNamed) {
  const SinkInputs in = make_inputs(Dtype::f32);
  const auto call = [&](const Tensor& sinks) { attention(in.query, in.key, in.value, {.sinks = sinks}); };
  EXPECT_THROW(call(Tensor::zeros({3})), ShapeError);
  EXPECT_THROW(call(Tensor::zeros({2, kSinks})), ShapeError);
  EXPECT_THROW(call(Tensor::zeros({kSinks}, Dtype::f64)), DtypeError);
}

}  // namespace
}  // namespace multihead
