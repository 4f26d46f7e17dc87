// Properties of attention(): what must hold whatever the kernel is.
#include "multihead/ops/attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/ops/attention/masks/mask_mod.h"
#include "multihead/ops/attention/testing-inl.h"
#include "multihead/testing/tensors.h"

namespace multihead {
namespace {

using testing::expect_near;

struct Qkv {
  Tensor q, k, v;
};

Qkv random_qkv(int64_t batch, int64_t heads, int64_t kv_heads, int64_t queries, int64_t keys, int64_t dim,
               int64_t value_dim, Dtype dtype = Dtype::f32) {
  Rng rng(11);
  return {randn({batch, heads, queries, dim}, rng, dtype), randn({batch, kv_heads, keys, dim}, rng, dtype),
          randn({batch, kv_heads, keys, value_dim}, rng, dtype)};
}

Tensor sample(const Tensor& x, int64_t b) {
  return x.as_strided({1, x.size(1), x.size(2), x.size(3)}, x.strides(), b * x.strides()[0]);
}

void expect_equal(const Tensor& a, const Tensor& b, const char* what = "") {
  ASSERT_EQ(a.shape(), b.shape()) << what;
  EXPECT_EQ(a.to_vector<float>(), b.to_vector<float>()) << what;
}

TEST(AttentionTest, ValuesOfOnesGiveOnes) {
  const Qkv x = random_qkv(2, 4, 2, 67, 131, 24, 24);
  const Tensor out = attention(x.q, x.k, Tensor::ones({2, 2, 131, 7}), {.mask = causal()});
  for (const float y : out.to_vector<float>()) ASSERT_NEAR(y, 1, 1e-6);
}

TEST(AttentionTest, OneKeyGivesItsValueExactly) {
  const Qkv x = random_qkv(3, 2, 2, 5, 1, 1, 9);
  const Tensor out = attention(x.q, x.k, x.v);
  for (int64_t i = 0; i < 5; ++i) expect_equal(tokens(out, i, i + 1), x.v);
}

TEST(AttentionTest, FutureKeysCannotChangeThePast) {
  const Qkv x = random_qkv(1, 3, 3, 97, 97, 16, 16);
  const Tensor before = attention(x.q, x.k, x.v, {.mask = causal()});
  for (const int64_t changed : {96, 64, 31, 1}) {
    tokens(x.k, changed, 97).fill(changed == 64 ? kInf : 17);
    tokens(x.v, changed, 97).fill(changed == 64 ? NAN : -5);
    const Tensor after = attention(x.q, x.k, x.v, {.mask = causal()});
    expect_equal(tokens(after, 0, changed), tokens(before, 0, changed));
  }
}

TEST(AttentionTest, PermutingKeysChangesNothing) {
  const Qkv x = random_qkv(1, 2, 2, 13, 41, 8, 6);
  Tensor k = empty_like(x.k), v = empty_like(x.v);
  for (int64_t j = 0; j < 41; ++j) {
    tokens(k, j * 17 % 41, j * 17 % 41 + 1).copy_from(tokens(x.k, j, j + 1));
    tokens(v, j * 17 % 41, j * 17 % 41 + 1).copy_from(tokens(x.v, j, j + 1));
  }
  expect_near(attention(x.q, k, v), attention(x.q, x.k, x.v), 1e-6);
}

TEST(AttentionTest, GroupedHeadsEqualRepeatedHeads) {
  const Qkv x = random_qkv(2, 6, 2, 19, 23, 8, 5);
  const auto repeat = [](const Tensor& kv) {  // each head three times, without a copy
    const Shape& s = kv.strides();
    return kv.as_strided({2, 2, 3, kv.size(2), kv.size(3)}, {s[0], s[1], 0, s[2], s[3]})
        .clone()
        .as_strided({2, 6, kv.size(2), kv.size(3)}, contiguous_strides({2, 6, kv.size(2), kv.size(3)}));
  };
  expect_equal(attention(x.q, x.k, x.v, {.mask = causal()}),
               attention(x.q, repeat(x.k), repeat(x.v), {.mask = causal()}));
}

TEST(AttentionTest, PrefillInChunksEqualsTheWhole) {
  const Qkv x = random_qkv(2, 4, 2, 83, 83, 16, 12);
  for (const bool windowed : {false, true}) {
    const Mask mask = windowed ? causal() & window(9, 0) : causal();
    const Tensor slopes = Tensor::of<float>({4}, {0.5f, 0.25f, 0.125f, 0.0625f});
    const AttentionOptions options = {.mask = mask, .alibi_slopes = slopes};
    const Tensor whole = attention(x.q, x.k, x.v, options);
    for (const int64_t chunk : {1, 7, 64}) {
      for (int64_t begin = 0; begin < 83; begin += chunk) {
        const int64_t end = std::min<int64_t>(83, begin + chunk);
        expect_equal(attention(tokens(x.q, begin, end), tokens(x.k, 0, end), tokens(x.v, 0, end), options),
                     tokens(whole, begin, end), "chunk");
      }
    }
  }
}

TEST(AttentionTest, ARowIsTheSameAloneAndInABatch) {
  const Qkv x = random_qkv(5, 2, 1, 29, 37, 8, 8);
  const Tensor all = attention(x.q, x.k, x.v, {.mask = lengths(ints({37, 1, 20, 33, 7}))});
  const int64_t valid[] = {37, 1, 20, 33, 7};
  for (int64_t b = 0; b < 5; ++b) {
    const Tensor alone =
        attention(sample(x.q, b), tokens(sample(x.k, b), 0, valid[b]), tokens(sample(x.v, b), 0, valid[b]));
    expect_equal(sample(all, b), alone, "padding or batch changed the bits");
  }
}

TEST(AttentionTest, ThreadsDoNotChangeTheBits) {
  const int before = num_threads();
  Qkv x = random_qkv(1, 2, 1, 150, 300, 16, 16);
  for (Tensor* t : {&x.q, &x.k, &x.v}) t->set_requires_grad();
  std::vector<std::vector<float>> first;
  for (const int threads : {1, 2, 3, 8}) {
    set_num_threads(threads);
    Rng rng(2);
    Tape tape;
    const Tensor y = attention(x.q, x.k, x.v, {.mask = causal(), .dropout_p = 0.1f, .rng = &rng});
    for (const Tensor* t : {&x.q, &x.k, &x.v}) t->set_grad({});
    tape.backward(y, Tensor::ones(y.shape()));
    const std::vector<std::vector<float>> result = {y.to_vector<float>(), x.q.grad().to_vector<float>(),
                                                    x.k.grad().to_vector<float>(),
                                                    x.v.grad().to_vector<float>()};
    if (first.empty()) first = result;
    EXPECT_EQ(result, first) << threads << " threads";
  }
  set_num_threads(before);
}

TEST(AttentionTest, EmptyRowsAreZeroWithZeroGradients) {
  for (const Dtype dtype : {Dtype::f32, Dtype::f64}) {
    Qkv x = random_qkv(2, 2, 2, 5, 7, 4, 3, dtype);
    for (Tensor* t : {&x.q, &x.k, &x.v}) t->set_requires_grad();
    Tensor bias = Tensor::zeros({5, 7}, dtype).set_requires_grad();
    Tensor lse;
    Rng rng(1);
    Tape tape;
    const Mask mask = lengths(Tensor::of<int64_t>({2, 5}, {0, 7, 0, 3, 1, 0, 0, 0, 0, 0}));
    const Tensor y =
        attention(x.q, x.k, x.v, {.mask = mask, .bias = bias, .dropout_p = 0.25f, .rng = &rng, .lse = &lse});
    tape.backward(y, Tensor::ones(y.shape(), dtype));
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t i : {0, 2}) {
        EXPECT_EQ(lse.at({0, h, i}), -kInf);
        for (int64_t d = 0; d < 3; ++d) EXPECT_EQ(y.at({0, h, i, d}), 0);
        for (int64_t d = 0; d < 4; ++d) EXPECT_EQ(x.q.grad().at({0, h, i, d}), 0);
      }
    }
    for (const double g : sample(x.k.grad(), 1).to_vector<double>()) EXPECT_EQ(g, 0);
    for (const double g : sample(x.v.grad(), 1).to_vector<double>()) EXPECT_EQ(g, 0);
    for (int64_t j = 0; j < 7; ++j) EXPECT_EQ(bias.grad().at({0, j}), 0);
    for (const Tensor* t : {&x.q, &x.k, &x.v, &bias}) {
      for (const double g : t->grad().to_vector<double>()) EXPECT_TRUE(std::isfinite(g));
    }
  }
}

TEST(AttentionTest, EmptyRowRules) {
  const Qkv x = random_qkv(1, 1, 1, 3, 4, 2, 2);
  const Mask mask = lengths(Tensor::of<int64_t>({1, 3}, {2, 0, 4}));
  const Tensor uniform = attention(x.q, x.k, x.v, {.mask = mask, .empty_row = EmptyRow::uniform});
  for (int64_t d = 0; d < 2; ++d) {
    double mean = 0;
    for (int64_t j = 0; j < 4; ++j) mean += x.v.at({0, 0, j, d}) / 4;
    EXPECT_NEAR(uniform.at({0, 0, 1, d}), mean, 1e-6);
  }
  const Tensor nan = attention(x.q, x.k, x.v, {.mask = mask, .empty_row = EmptyRow::nan});
  for (int64_t d = 0; d < 2; ++d) {
    EXPECT_TRUE(std::isnan(nan.at({0, 0, 1, d})));
    EXPECT_EQ(nan.at({0, 0, 0, d}), uniform.at({0, 0, 0, d}));
    EXPECT_EQ(nan.at({0, 0, 2, d}), uniform.at({0, 0, 2, d}));
  }
  EXPECT_THROW(attention(x.q, x.k, x.v, {.mask = mask, .empty_row = EmptyRow::error}), ValueError);
  EXPECT_NO_THROW(attention(x.q, x.k, x.v, {.mask = causal(), .empty_row = EmptyRow::error}));
  EXPECT_NO_THROW(attention(x.q, x.k, x.v, {.mask = query_lengths(ints({1})), .empty_row = EmptyRow::error}));
}

// Excluded keys must not leak, whatever they hold; attended ones must.
TEST(AttentionTest, NothingLeaksOutOfExcludedKeys) {
  const std::vector<Mask> masks = {
      lengths(ints({60, 33})),
      lengths(Tensor::full({2, 50}, 33, Dtype::i64)),
      causal_offset(-17),  // the last query sees key 32
      keep([] {
        const Tensor flags = Tensor::zeros({1, 70}, Dtype::boolean);
        flags.as_strided({33}, {1}).fill(1);
        return flags;
      }()),
      mask_mod([](ScoreIndex at) { return at.key < 33; }),
      documents(Tensor::zeros({50}, Dtype::i64),
                [] {
                  const Tensor ids = Tensor::ones({70}, Dtype::i64);
                  ids.as_strided({33}, {1}).fill(0);
                  return ids;
                }()),
      window(-1, -1) & prefix(33, Align::start) & lengths(ints({33, 33})),
  };
  for (size_t n = 0; n < masks.size(); ++n) {
    for (const double poison : {static_cast<double>(NAN), kInf, -kInf, 1e30}) {
      Qkv x = random_qkv(2, 2, 1, 50, 70, 8, 8);
      for (Tensor* t : {&x.q, &x.k, &x.v}) t->set_requires_grad();
      const auto run = [&] {
        Tape tape;
        const Tensor y = attention(x.q, x.k, x.v, {.mask = masks[n]});
        for (const Tensor* t : {&x.q, &x.k, &x.v}) t->set_grad({});
        tape.backward(y, Tensor::ones(y.shape()));
        return std::vector<std::vector<float>>{y.to_vector<float>(), x.q.grad().to_vector<float>(),
                                               x.k.grad().to_vector<float>(), x.v.grad().to_vector<float>()};
      };
      const auto clean = run();
      const int64_t first = n == 0 ? 60 : 33;
      tokens(x.k, first, 70).fill(poison);
      tokens(x.v, first, 70).fill(poison);
      const auto poisoned = run();
      const std::string what = masks[n].to_string() + " with " + std::to_string(poison);
      EXPECT_TRUE(poisoned[0] == clean[0]) << what;
      for (size_t part = 0; part < 4; ++part) {  // a kernel may round gradients otherwise on its careful path
        for (size_t i = 0; i < clean[part].size(); ++i) {
          ASSERT_NEAR(poisoned[part][i], clean[part][i], 2e-6 * (1 + std::abs(clean[part][i])))
              << what << ", result " << part << " at " << i;
        }
      }
    }
  }
}

TEST(AttentionTest, NanInAttendedInputsSpreads) {
  Qkv x = random_qkv(1, 1, 1, 4, 20, 8, 8);
  tokens(x.k, 7, 8).fill(NAN);
  for (const float y : attention(x.q, x.k, x.v).to_vector<float>()) EXPECT_TRUE(std::isnan(y));
  x = random_qkv(1, 1, 1, 4, 20, 8, 8);
  tokens(x.v, 7, 8).fill(NAN);
  for (const float y : attention(x.q, x.k, x.v).to_vector<float>()) EXPECT_TRUE(std::isnan(y));
}

// Whether each number of output, log-sum-exp and gradients is NaN; `poison` is in query 3 or in key 7.
std::vector<std::vector<bool>> nan_places(Dtype dtype, int64_t keys, const AttentionOptions& options,
                                          double poison, bool in_query) {
  const Qkv made = random_qkv(1, 2, 1, 67, keys, 16, 16);
  const Tensor q = made.q.to(dtype), k = made.k.to(dtype), v = made.v.to(dtype);
  tokens(in_query ? q : k, in_query ? 3 : 7, in_query ? 4 : 8).fill(poison);
  for (Tensor x : {q, k, v}) x.set_requires_grad();
  Tape tape;
  Tensor lse;
  AttentionOptions o = options;
  o.lse = &lse;
  if (o.alibi_slopes.defined()) o.alibi_slopes = o.alibi_slopes.to(dtype);
  const Tensor out = attention(q, k, v, o);
  tape.backward(out, Tensor::ones(out.shape(), dtype));
  std::vector<std::vector<bool>> all;
  for (const Tensor& x : {out, lse, q.grad(), k.grad(), v.grad()}) {
    std::vector<bool>& is_nan = all.emplace_back();
    for (const double number : x.to_vector<double>()) is_nan.push_back(std::isnan(number));
  }
  return all;
}

TEST(AttentionTest, NanSpreadsAsInTheSpecification) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor slopes = Tensor::full({2}, 0.25);
  const std::vector<AttentionOptions> cases = {{},
                                               {.mask = causal()},
                                               {.mask = lengths(Tensor::of<int64_t>({1}, {20}))},
                                               {.mask = causal(), .alibi_slopes = slopes},
                                               {.softcap = 3}};
  for (size_t n = 0; n < cases.size(); ++n) {
    for (const int64_t keys : {67, 300}) {
      for (const double poison : {nan, HUGE_VAL}) {
        for (const bool in_query : {true, false}) {
          const auto expected = nan_places(Dtype::f64, keys, cases[n], poison, in_query);
          for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
            SCOPED_TRACE(concat("case ", n, ", ", keys, " keys, ", poison,
                                in_query ? " in a query, " : " in a key, ", dtype));
            EXPECT_EQ(nan_places(dtype, keys, cases[n], poison, in_query), expected);
          }
        }
      }
    }
  }
}

TEST(AttentionTest, ZeroSizes) {
  const auto shape = [](int64_t b, int64_t h, int64_t kv, int64_t tq, int64_t tk, int64_t dv) {
    return attention(Tensor::ones({b, h, tq, 4}), Tensor::ones({b, kv, tk, 4}), Tensor::ones({b, kv, tk, dv}),
                     {.mask = causal()});
  };
  EXPECT_EQ(shape(0, 2, 1, 3, 5, 4).shape(), (Shape{0, 2, 3, 4}));
  EXPECT_EQ(shape(2, 0, 0, 3, 5, 4).shape(), (Shape{2, 0, 3, 4}));
  EXPECT_EQ(shape(2, 2, 1, 0, 5, 4).shape(), (Shape{2, 2, 0, 4}));
  EXPECT_EQ(shape(2, 2, 1, 3, 5, 0).shape(), (Shape{2, 2, 3, 0}));
  const Tensor no_keys = shape(2, 2, 1, 3, 0, 4);
  EXPECT_EQ(no_keys.shape(), (Shape{2, 2, 3, 4}));
  for (const float y : no_keys.to_vector<float>()) EXPECT_EQ(y, 0);
}

TEST(AttentionTest, ZeroSizesHaveGradients) {
  for (const int64_t keys : {0, 3}) {
    Tensor q = Tensor::ones({1, 1, 3 - keys, 2}).set_requires_grad();
    Tensor k = Tensor::ones({1, 1, keys, 2}).set_requires_grad(),
           v = Tensor::ones({1, 1, keys, 2}).set_requires_grad();
    Tape tape;
    const Tensor y = attention(q, k, v);
    tape.backward(y, Tensor::ones(y.shape()));
    EXPECT_EQ(q.grad().shape(), q.shape());
    EXPECT_EQ(k.grad().shape(), k.shape());
    for (const Tensor* t : {&q, &k, &v}) {
      for (const float g : t->grad().to_vector<float>()) EXPECT_EQ(g, 0);
    }
  }
}

TEST(AttentionTest, HugeScoresStayFinite) {
  for (const double size : {88.0, 1e4, 3e37}) {
    Qkv x = random_qkv(1, 1, 1, 9, 33, 4, 4);
    x.q.fill(1);
    for (int64_t j = 0; j < 33; ++j) tokens(x.k, j, j + 1).fill(j % 2 ? size : -size);
    const Tensor y = attention(x.q, x.k, Tensor::ones({1, 1, 33, 3}), {.scale = 0.25f});
    for (const float value : y.to_vector<float>()) EXPECT_NEAR(value, 1, 1e-6) << size;
  }
}

TEST(AttentionTest, ScaleIsADouble) {
  for (const Dtype dtype : {Dtype::f32, Dtype::f64}) {
    const Qkv x = random_qkv(2, 3, 3, 5, 7, 11, 4, dtype);
    const double scale = 1 / std::sqrt(11.0);
    EXPECT_EQ(attention(x.q, x.k, x.v, {.scale = scale}).to_vector<double>(),
              attention(x.q, x.k, x.v).to_vector<double>());
  }
}

TEST(AttentionTest, MoreKeysThanSixteenBitsCount) {
  const int64_t keys = 70001;
  Rng rng(3);
  const Tensor q = Tensor::ones({1, 1, 2, 4}), k = Tensor::zeros({1, 1, keys, 4}),
               v = Tensor::zeros({1, 1, keys, 3});
  tokens(k, keys - 1, keys).fill(100);  // the last key takes all the weight
  tokens(v, keys - 1, keys).fill(7);
  for (const float y : attention(q, k, v).to_vector<float>()) EXPECT_NEAR(y, 7, 1e-6);
  const Tensor past = attention(q, k, v, {.mask = causal()});
  EXPECT_EQ(past.at({0, 0, 0, 0}), 0);
  EXPECT_NEAR(past.at({0, 0, 1, 0}), 7, 1e-6);
}

TEST(AttentionTest, DropoutIsUnbiasedAndActsOnlyWithAGenerator) {
  const Qkv x = random_qkv(2, 4, 4, 64, 128, 8, 1);
  const Tensor ones = Tensor::ones({2, 4, 128, 1});
  expect_equal(attention(x.q, x.k, ones, {.dropout_p = 0.3f}), attention(x.q, x.k, ones));
  Rng rng(4), same(4);
  const Tensor a = attention(x.q, x.k, ones, {.dropout_p = 0.3f, .rng = &rng});
  EXPECT_EQ(rng.drawn(), 1u);
  expect_equal(a, attention(x.q, x.k, ones, {.dropout_p = 0.3f, .rng = &same}));
  const std::vector<double> y = a.to_vector<double>();
  EXPECT_NEAR(std::accumulate(y.begin(), y.end(), 0.0) / static_cast<double>(y.size()), 1, 0.02);
  const Tensor b = attention(x.q, x.k, ones, {.dropout_p = 0.3f, .rng = &rng});
  EXPECT_NE(a.to_vector<float>(), b.to_vector<float>());
  for (const float z : attention(x.q, x.k, ones, {.dropout_p = 1.0f, .rng = &rng}).to_vector<float>())
    EXPECT_EQ(z, 0);
}

TEST(AttentionTest, SixteenBitStorage) {
  const Qkv wide = random_qkv(2, 4, 2, 19, 23, 8, 5);
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    Qkv x = {wide.q.to(dtype), wide.k.to(dtype), wide.v.to(dtype)};
    Qkv same = {x.q.to(Dtype::f32), x.k.to(Dtype::f32), x.v.to(Dtype::f32)};
    for (Tensor* t : {&x.q, &x.k, &x.v, &same.q, &same.k, &same.v}) t->set_requires_grad();
    Tensor lse;
    Tape tape;
    const Tensor y = attention(x.q, x.k, x.v, {.mask = causal(), .lse = &lse});
    EXPECT_EQ(y.dtype(), dtype);
    EXPECT_EQ(lse.dtype(), Dtype::f32);
    const Tensor exact = attention(same.q, same.k, same.v, {.mask = causal()});
    expect_near(y, exact, dtype == Dtype::bf16 ? 1.6e-2 : 2e-3);
    tape.backward(exact, Tensor::ones(exact.shape()));
    Tape again;
    const Tensor z = attention(x.q, x.k, x.v, {.mask = causal()});
    again.backward(z, Tensor::ones(z.shape(), dtype));
    EXPECT_EQ(x.q.grad().dtype(), Dtype::f32);
    expect_near(x.v.grad(), same.v.grad(), 1e-2);
    expect_near(x.q.grad(), same.q.grad(), 3e-2);
    expect_near(x.k.grad(), same.k.grad(), 3e-2);
  }
}

TEST(AttentionTest, MemoryIsLinear) {
  const int64_t length = 2048;
  Qkv x = random_qkv(1, 1, 1, length, length, 8, 8);
  for (Tensor* t : {&x.q, &x.k, &x.v}) t->set_requires_grad();
  Rng rng(1);
  reset_peak_memory();
  const int64_t before = memory_stats().live_bytes;
  {
    Tape tape;
    const Tensor y =
        attention(x.q, x.k, x.v, {.mask = causal() & window(50, 0), .dropout_p = 0.1f, .rng = &rng});
    tape.backward(y, Tensor::ones(y.shape()));
  }
  // Output, its gradient, three gradients, log-sum-exp: a twentieth of one score matrix of 16 MiB.
  EXPECT_LT(memory_stats().peak_bytes - before, int64_t{1} << 20);
}

// Biases, tables and sinks of the queries' 16-bit type are those numbers in f32.
TEST(AttentionTest, TermsOf16Bits) {
  Rng rng(3);
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    const Tensor q = randn({2, 4, 5, 8}, rng).to(dtype), k = randn({2, 2, 7, 8}, rng).to(dtype);
    for (const auto& [term, shape] : {std::pair{&AttentionOptions::bias, Shape{4, 5, 7}},
                                      {&AttentionOptions::alibi_slopes, Shape{4}},
                                      {&AttentionOptions::relative_bias, Shape{4, 3}},
                                      {&AttentionOptions::relative_key, Shape{1, 3, 8}},
                                      {&AttentionOptions::sinks, Shape{4}}}) {
      AttentionOptions narrow, wide;
      narrow.*term = randn(shape, rng).to(dtype).clone().set_requires_grad();
      wide.*term = (narrow.*term).to(Dtype::f32).clone().set_requires_grad();
      std::vector<std::vector<float>> results[2];
      for (const AttentionOptions* options : {&narrow, &wide}) {
        Tape tape;
        const Tensor y = attention(q, k, k, *options);
        tape.backward(y, Tensor::ones(y.shape()));
        results[options == &wide].push_back(y.to_vector<float>());
        EXPECT_EQ((options->*term).grad().dtype(), Dtype::f32);
        results[options == &wide].push_back((options->*term).grad().to_vector<float>());
      }
      EXPECT_EQ(results[0], results[1]) << dtype;
    }
    EXPECT_THROW(
        attention(q.to(Dtype::f32), k.to(Dtype::f32), k.to(Dtype::f32), {.sinks = Tensor::ones({4}, dtype)}),
        DtypeError);
    EXPECT_THROW(
        attention(q, k, k, {.sinks = Tensor::ones({4}, dtype == Dtype::f16 ? Dtype::bf16 : Dtype::f16)}),
        DtypeError);
  }
}

}  // namespace
}  // namespace multihead
