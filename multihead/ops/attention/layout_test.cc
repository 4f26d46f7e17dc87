// The same numbers wherever the axes lie: strides, [B, T, H, D], packed projections, ragged batches.
#include <gtest/gtest.h>

#include <cmath>

#include "multihead/autograd/tape.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/testing/option_cases.h"

namespace multihead {
namespace {

using Floats = std::vector<float>;

// Axes 1 and 2 exchanged, a view.
Tensor swapped(const Tensor& x) {
  const Shape &n = x.shape(), &s = x.strides();
  return x.as_strided({n[0], n[2], n[1], n[3]}, {s[0], s[2], s[1], s[3]});
}

// The same elements with room between them, NaN in the gaps; `inner` is the distance on the last axis.
Tensor spread(const Tensor& x, int64_t inner) {
  const Shape n = x.shape();
  const Tensor memory = Tensor::full({n[0] + 1, n[1] + 2, n[2] + 1, n[3] * inner + 3}, NAN, x.dtype());
  Shape strides = memory.strides();
  strides[3] = inner;
  const Tensor view = memory.as_strided(n, strides, 5 * memory.strides()[2] / 5);
  view.copy_from(x);
  return view;
}

// The same elements, every axis but the last reversed in memory: negative strides.
Tensor reversed(const Tensor& x) {
  const Tensor memory = empty_like(x);
  const Shape &n = x.shape(), &s = memory.strides();
  const Tensor view = memory.as_strided(n, {-s[0], -s[1], -s[2], s[3]},
                                        (n[0] - 1) * s[0] + (n[1] - 1) * s[1] + (n[2] - 1) * s[2]);
  view.copy_from(x);
  return view;
}

struct Pass {
  Floats out, dq, dk, dv;
  bool operator==(const Pass&) const = default;
};

Pass run(Tensor q, Tensor k, Tensor v, const Tensor& seed, AttentionOptions options) {
  Rng rng(9);
  options.rng = &rng;
  q.set_requires_grad(), k.set_requires_grad(), v.set_requires_grad();
  Tape tape;
  const Tensor y = attention(q, k, v, options);
  tape.backward(y, seed);
  return {y.to_vector<float>(), q.grad().to_vector<float>(), k.grad().to_vector<float>(),
          v.grad().to_vector<float>()};
}

class AttentionLayoutTest : public ::testing::Test {
 protected:
  AttentionLayoutTest() {
    Rng rng(2);
    q = randn({2, 4, 17, 8}, rng), k = randn({2, 2, 19, 8}, rng), v = randn({2, 2, 19, 5}, rng);
    seed = randn({2, 4, 17, 5}, rng);
    options = {.mask = causal(), .dropout_p = 0.2f};
    expected = run(q.clone(), k.clone(), v.clone(), seed, options);
  }
  Tensor q, k, v, seed;
  AttentionOptions options;
  Pass expected;
};

TEST_F(AttentionLayoutTest, AnyStridesGiveTheSameBits) {
  EXPECT_EQ(run(spread(q, 1), spread(k, 1), spread(v, 1), seed, options), expected);
  EXPECT_EQ(run(spread(q, 2), spread(k, 3), spread(v, 2), seed, options), expected);
  EXPECT_EQ(run(reversed(q), reversed(k), reversed(v), seed, options), expected);
  EXPECT_EQ(run(swapped(swapped(q).clone()), swapped(swapped(k).clone()), swapped(swapped(v).clone()), seed,
                options),
            expected);
}

TEST_F(AttentionLayoutTest, BroadcastInputsHaveStrideZero) {
  const Tensor one_k = k.as_strided({2, 2, 19, 8}, {0, 0, 8, 1}),
               one_v = v.as_strided({2, 2, 19, 5}, {0, 0, 5, 1});
  EXPECT_EQ(run(q.clone(), one_k, one_v, seed, options),
            run(q.clone(), one_k.clone(), one_v.clone(), seed, options));
  const Tensor same_key = k.as_strided({2, 2, 33, 8}, {304, 152, 0, 1});  // 33 times one key
  const Tensor y = attention(q, same_key, Tensor::ones({2, 2, 33, 3}));
  for (const float value : y.to_vector<float>()) EXPECT_NEAR(value, 1, 1e-6);
}

TEST_F(AttentionLayoutTest, AxesOfSizeOneMayHaveAnyStride) {
  const Tensor x = Tensor::ones({1, 1, 3, 4}), weird = x.as_strided({1, 1, 3, 4}, {-999, 12345678, 4, 1});
  EXPECT_EQ(attention(weird, weird, weird).to_vector<float>(), attention(x, x, x).to_vector<float>());
  const Tensor thin = Tensor::ones({1, 1, 3, 1}).as_strided({1, 1, 3, 1}, {3, 3, 1, 777});
  EXPECT_EQ(attention(thin, thin, thin).to_vector<float>(), Floats(3, 1.0f));
}

TEST_F(AttentionLayoutTest, OutputFollowsTheQuery) {
  const Tensor tokens_first = swapped(q).clone();
  const Tensor y = attention(swapped(tokens_first), k, v);
  EXPECT_TRUE(swapped(y).is_contiguous()) << "[B, T, H, Dv] view, so that joining the heads is free";
  EXPECT_TRUE(attention(q, k, v).is_contiguous());
}

TEST_F(AttentionLayoutTest, TokensBeforeHeads) {
  Tensor bq = swapped(q).clone().set_requires_grad(), bk = swapped(k).clone().set_requires_grad();
  Tensor bv = swapped(v).clone().set_requires_grad();
  AttentionOptions o = options;
  Rng rng(9);
  o.rng = &rng;
  o.layout = Layout::bthd;
  Tape tape;
  const Tensor y = attention(bq, bk, bv, o);
  EXPECT_EQ(y.shape(), (Shape{2, 17, 4, 5}));
  tape.backward(y, swapped(seed).clone());
  EXPECT_EQ(swapped(y).to_vector<float>(), expected.out);
  EXPECT_EQ(swapped(bq.grad()).to_vector<float>(), expected.dq);
  EXPECT_EQ(swapped(bk.grad()).to_vector<float>(), expected.dk);
  EXPECT_EQ(swapped(bv.grad()).to_vector<float>(), expected.dv);
}

TEST_F(AttentionLayoutTest, PackedEqualsSeparate) {
  for (const int64_t kv : {4, 2, 1}) {
    for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16}) {
      const int64_t h = 4, d = 8, t = 23, width = (h + 2 * kv) * d;
      Rng random(3);
      const Tensor wide = randn({2, t, width}, random);
      Tensor qkv = wide.to(dtype).set_requires_grad();
      const auto part = [&](const Tensor& x, int64_t first, int64_t heads) {
        return x.as_strided({2, heads, t, d}, {t * width, d, width, 1}, first * d).clone();
      };
      const Tensor weight = randn({2, t, h * d}, random, dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32);
      Rng rng(9);
      AttentionOptions o = {.mask = causal() & window(7, 0), .dropout_p = 0.1f, .rng = &rng};
      Tape tape;
      const Tensor y = attention_packed(qkv, {.num_heads = h, .num_kv_heads = kv == h ? 0 : kv}, o);
      tape.backward(y, weight.to(dtype));

      Tensor sq = part(qkv, 0, h).set_requires_grad(), sk = part(qkv, h, kv).set_requires_grad();
      Tensor sv = part(qkv, h + kv, kv).set_requires_grad();
      Rng same(9);
      o.rng = &same;
      Tape second;
      const Tensor z = attention(sq, sk, sv, o);
      second.backward(z,
                      swapped(weight.to(dtype).as_strided({2, t, h, d}, {t * h * d, h * d, d, 1})).clone());

      EXPECT_EQ(swapped(y.as_strided({2, t, h, d}, {t * h * d, h * d, d, 1})).to_vector<double>(),
                z.to_vector<double>());
      EXPECT_EQ(qkv.grad().shape(), qkv.shape());
      EXPECT_TRUE(qkv.grad().is_contiguous());
      EXPECT_EQ(part(qkv.grad(), 0, h).to_vector<double>(), sq.grad().to_vector<double>());
      EXPECT_EQ(part(qkv.grad(), h, kv).to_vector<double>(), sk.grad().to_vector<double>());
      EXPECT_EQ(part(qkv.grad(), h + kv, kv).to_vector<double>(), sv.grad().to_vector<double>());
    }
  }
}

TEST_F(AttentionLayoutTest, PackedGradientIsWrittenEverywhere) {
  // Rows that no query and no key reaches still get zeros, not old memory.
  Tensor qkv = Tensor::ones({2, 9, 12}).set_requires_grad();
  for (int i = 0; i < 4; ++i) Tensor::full({2, 9, 12}, NAN);
  const Mask mask =
      lengths(Tensor::of<int64_t>({2}, {0, 4})) & query_lengths(Tensor::of<int64_t>({2}, {3, 5}));
  Tape tape;
  const Tensor y = attention_packed(qkv, {.num_heads = 2}, {.mask = mask});
  tape.backward(y, Tensor::ones(y.shape()));
  for (const float g : qkv.grad().to_vector<float>()) ASSERT_TRUE(std::isfinite(g));
  for (int64_t c = 0; c < 12; ++c) {
    EXPECT_EQ(qkv.grad().at({0, 2, c}), 0);
    EXPECT_EQ(qkv.grad().at({1, 8, c}), 0);
  }
}

// --- ragged ----------------------------------------------------------------------------------------------

// Rows [begin, end) of packed [N, H, D] as [1, H, T, D].
Tensor sequence(const Tensor& x, int64_t begin, int64_t end) {
  const Shape& s = x.strides();
  return x.as_strided({1, x.size(1), end - begin, x.size(2)}, {0, s[1], s[0], s[2]}, begin * s[0]).clone();
}

TEST(AttentionRaggedTest, EqualsALoopOverSequences) {
  const int64_t q_at[] = {0, 5, 5, 12, 43}, k_at[] = {0, 9, 13, 13, 50};
  const Tensor cu_q = Tensor::of<int64_t>({5}, std::vector<int64_t>(q_at, q_at + 5));
  const Tensor cu_k = Tensor::of<int32_t>({5}, std::vector<int32_t>(k_at, k_at + 5));
  for (const Dtype dtype : {Dtype::f32, Dtype::f64}) {
    for (const bool functions : {false, true}) {
      Rng rng(6);
      Tensor q = randn({43, 4, 8}, rng, dtype).set_requires_grad(),
             k = randn({50, 2, 8}, rng, dtype).set_requires_grad();
      Tensor v = randn({50, 2, 6}, rng, dtype).set_requires_grad();
      Tensor slopes = rand({4}, rng, dtype).set_requires_grad();
      const Tensor seed = randn({43, 4, 6}, rng, dtype);
      const ScoreMod mod = functions ? score_mod(testing::CurvedMod()) : ScoreMod();
      Tensor lse;
      Tape tape;
      const Tensor y = attention_ragged(
          q, k, v, cu_q, cu_k, {.mask = causal() & window(11, 0), .alibi_slopes = slopes, .lse = &lse}, mod);
      tape.backward(y, seed);
      EXPECT_EQ(lse.shape(), (Shape{4, 43}));

      std::vector<double> slope_gradient(4, 0.0);
      for (int s = 0; s < 4; ++s) {
        Tensor sq = sequence(q, q_at[s], q_at[s + 1]).set_requires_grad();
        Tensor sk = sequence(k, k_at[s], k_at[s + 1]).set_requires_grad();
        Tensor sv = sequence(v, k_at[s], k_at[s + 1]).set_requires_grad();
        Tensor own_slopes = slopes.clone().set_requires_grad();
        // The function sees the sequence's index, here always 0.
        if (functions && s > 0) continue;
        Tape one;
        const Tensor z =
            attention(sq, sk, sv, {.mask = causal() & window(11, 0), .alibi_slopes = own_slopes}, mod);
        one.backward(z, sequence(seed, q_at[s], q_at[s + 1]));
        EXPECT_EQ(sequence(y, q_at[s], q_at[s + 1]).to_vector<double>(), z.to_vector<double>()) << s;
        EXPECT_EQ(sequence(q.grad(), q_at[s], q_at[s + 1]).to_vector<double>(), sq.grad().to_vector<double>())
            << s;
        EXPECT_EQ(sequence(k.grad(), k_at[s], k_at[s + 1]).to_vector<double>(), sk.grad().to_vector<double>())
            << s;
        EXPECT_EQ(sequence(v.grad(), k_at[s], k_at[s + 1]).to_vector<double>(), sv.grad().to_vector<double>())
            << s;
        for (int64_t h = 0; h < 4; ++h) slope_gradient[static_cast<size_t>(h)] += own_slopes.grad().at({h});
      }
      for (int64_t h = 0; h < 4 && !functions; ++h) {
        EXPECT_NEAR(slopes.grad().at({h}), slope_gradient[static_cast<size_t>(h)], 1e-4);
      }
    }
  }
}

TEST(AttentionRaggedTest, EqualsThePaddedBatch) {
  const int64_t valid[] = {7, 1, 4};
  const Tensor cu = Tensor::of<int64_t>({4}, {0, 7, 8, 12}), lens = Tensor::of<int64_t>({3}, {7, 1, 4});
  Rng rng(6), drop_a(1), drop_b(1);
  const Tensor padded = randn({3, 2, 7, 4}, rng), packed = Tensor::empty({12, 2, 4});
  for (int64_t s = 0, row = 0; s < 3; ++s) {
    for (int64_t i = 0; i < valid[s]; ++i, ++row) {
      packed.as_strided({2, 4}, {4, 1}, row * 8)
          .copy_from(padded.as_strided({2, 4}, {28, 1}, s * 56 + i * 4));
    }
  }
  const Tensor a = attention_ragged(packed, packed, packed, cu, cu, {.dropout_p = 0.3f, .rng = &drop_a});
  const Tensor b =
      attention(padded, padded, padded,
                {.mask = lengths(lens) & query_lengths(lens), .dropout_p = 0.3f, .rng = &drop_b});
  for (int64_t s = 0, row = 0; s < 3; ++s) {
    for (int64_t i = 0; i < valid[s]; ++i, ++row) {
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t d = 0; d < 4; ++d)
          EXPECT_EQ(a.at({row, h, d}), b.at({s, h, i, d})) << "dropout or order differs";
      }
    }
  }
}

TEST(AttentionRaggedTest, NoSequences) {
  const Tensor none = Tensor::of<int64_t>({1}, {0});
  const Tensor x = Tensor::ones({0, 2, 4});
  EXPECT_EQ(attention_ragged(x, x, x, none, none, {.mask = causal()}).shape(), (Shape{0, 2, 4}));
}

}  // namespace
}  // namespace multihead
