#include "multihead/nn/attention.h"

#include <gtest/gtest.h>

#include <limits>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/tensors.h"

namespace multihead::nn {
namespace {

using testing::expect_near;
using testing::normal;

void expect_bits(const Tensor& a, const Tensor& b) {
  ASSERT_EQ(a.shape(), b.shape());
  EXPECT_EQ(a.to_vector<float>(), b.to_vector<float>());
}

// Copies the packed weights of one module into the separate ones of another.
void copy_packed_to_separate(const MultiHeadAttention& packed, MultiHeadAttention& separate) {
  int64_t row = 0;
  for (Linear* projection : {&separate.q_proj, &separate.k_proj, &separate.v_proj}) {
    const int64_t rows = projection->out_features();
    projection->weight.copy_from(slice(packed.in_proj_weight, 0, row, row + rows));
    if (projection->bias.defined())
      projection->bias.copy_from(slice(packed.in_proj_bias, 0, row, row + rows));
    row += rows;
  }
  separate.out_proj.weight.copy_from(packed.out_proj.weight);
  separate.out_proj.bias.copy_from(packed.out_proj.bias);
}

// The sizes of the lecture notes: every sample sees its valid keys, as if the others were not there.
TEST(MultiHeadAttentionTest, ValidLengthsOfTheLectureNotes) {
  Rng rng(1);
  const MultiHeadAttention attention({.embed_dim = 4, .num_heads = 2, .value_dim = 6}, rng);
  const Tensor q = normal({2, 4, 4}, 2), k = normal({2, 6, 4}, 3), v = normal({2, 6, 6}, 4);
  const int64_t valid[] = {3, 2};
  const Tensor y = attention(q, k, v, {.mask = lengths(Tensor::of<int64_t>({2}, valid))});
  EXPECT_EQ(y.shape(), (Shape{2, 4, 4}));
  for (int64_t b = 0; b < 2; ++b) {
    const auto sample = [b](const Tensor& x, int64_t count) {
      return slice(slice(x, 0, b, b + 1), 1, 0, count).contiguous();
    };
    expect_bits(sample(y, 4), attention(sample(q, 4), sample(k, valid[b]), sample(v, valid[b])));
  }
}

TEST(MultiHeadAttentionTest, ACallLeavesTheModuleWhatIsItsOwn) {
  Rng rng(1);
  const MultiHeadAttention attention({.embed_dim = 8, .num_heads = 2}, rng);
  const Tensor x = normal({1, 3, 8}, 2);
  EXPECT_THROW(attention(x, x, x, {.dropout_p = 0.5f}), ValueError);
  EXPECT_THROW(attention(x, x, x, {.layout = Layout::bthd}), ValueError);
  expect_bits(attention(x, x, x, {.scale = 0.5}), [&] {
    Rng same(1);
    return MultiHeadAttention({.embed_dim = 8, .num_heads = 2, .scale = 0.5}, same)(x, x, x);
  }());
}

TEST(MultiHeadAttentionTest, NamesAndShapesAreThoseOfPyTorch) {
  Rng rng(1);
  MultiHeadAttention packed({.embed_dim = 12, .num_heads = 3}, rng);
  const auto names = named_parameters(packed);
  ASSERT_EQ(names.size(), 4u);
  EXPECT_EQ(names[0].name, "in_proj_weight");
  EXPECT_EQ(names[0].tensor.shape(), (Shape{36, 12}));
  EXPECT_EQ(names[1].name, "in_proj_bias");
  EXPECT_EQ(names[2].name, "out_proj.weight");
  EXPECT_EQ(names[3].name, "out_proj.bias");
  MultiHeadAttention separate({.embed_dim = 12, .num_heads = 3, .key_dim = 5, .value_dim = 7}, rng);
  EXPECT_EQ(parameter_count(separate), 12 * 12 + 12 * 5 + 12 * 7 + 12 * 12 + 4 * 12);
  EXPECT_EQ(named_parameters(separate)[2].name, "k_proj.weight");
}

TEST(MultiHeadAttentionTest, PackedSelfAttentionEqualsTheGeneralPath) {
  for (const int64_t kv_heads : {4, 2, 1}) {
    Rng rng(3);
    const MultiHeadAttention attention({.embed_dim = 20, .num_heads = 4, .num_kv_heads = kv_heads}, rng);
    const Tensor x = normal({2, 7, 20}, 5);
    const AttentionOptions call = {.mask = causal()};
    // A clone is another tensor, so the packed path is not taken.
    expect_bits(attention(x, x, x, call), attention(x, x.clone(), x.clone(), call));
  }
}

TEST(MultiHeadAttentionTest, PackedWeightsEqualSeparateOnesAndSoDoGradients) {
  Rng rng(3);
  MultiHeadAttention packed({.embed_dim = 12, .num_heads = 3}, rng);
  // Bias flags that differ force the separate form.
  MultiHeadAttention separate({.embed_dim = 12, .num_heads = 3, .value_bias = false}, rng);
  ASSERT_FALSE(separate.in_proj_weight.defined());
  packed.in_proj_bias.fill(0);
  copy_packed_to_separate(packed, separate);
  separate.q_proj.bias.fill(0);
  separate.k_proj.bias.fill(0);
  Tensor x = normal({2, 5, 12}, 7).set_requires_grad();
  Tensor x2 = x.clone().set_requires_grad();
  const Tensor dy = normal({2, 5, 12}, 8);
  {
    Tape tape;
    tape.backward(packed(x, x, x), dy);
  }
  {
    Tape tape;
    tape.backward(separate(x2, x2, x2), dy);
  }
  expect_near(x.grad(), x2.grad(), 1e-5);
  expect_near(slice(packed.in_proj_weight.grad(), 0, 24, 36), separate.v_proj.weight.grad(), 1e-5);
}

TEST(MultiHeadAttentionTest, TokenByTokenEqualsTheWholeBitForBit) {
  Rng rng(3);
  const MultiHeadAttention attention({.embed_dim = 24, .num_heads = 4, .num_kv_heads = 2}, rng);
  const int64_t length = 19;
  const Tensor x = normal({1, length, 24}, 5);
  const RotaryTable table = rotary_table(length, {0}, rotary_frequencies(6));
  const Tensor whole = attention(x, x, x, {{.mask = causal()}, &table});
  for (const int64_t chunk : {1, 5}) {
    KvCache cache{Tensor::full({1, 2, 32, 6}, 99), Tensor::full({1, 2, 32, 6}, 99)};
    for (int64_t t = 0; t < length; t += chunk) {
      const int64_t count = std::min(chunk, length - t);
      const RotaryTable part = rotary_table(count, {t}, rotary_frequencies(6));
      const std::vector<int64_t> before = {t}, fresh = {count};
      const Tensor y = attention.decode(slice(x, 1, t, t + count).contiguous(), {&cache, before, fresh},
                                        {.rotary = &part});
      expect_bits(y, slice(whole, 1, t, t + count).contiguous());
    }
  }
}

// softmax(norm(q)·norm(k)) by the ops it is made of, for self-, cross- and cached attention.
TEST(MultiHeadAttentionTest, NormedQueriesAndKeysEqualTheComposition) {
  Rng rng(3);
  MultiHeadAttention attention({.embed_dim = 24, .num_heads = 4, .num_kv_heads = 2, .qk_norm = true}, rng);
  ASSERT_EQ(named_parameters(attention)[4].name, "q_norm.weight");
  ASSERT_EQ(named_parameters(attention)[5].tensor.shape(), (Shape{6}));
  attention.q_norm.weight.copy_from(normal({6}, 11));
  attention.k_norm.weight.copy_from(normal({6}, 12));
  const Tensor x = normal({2, 7, 24}, 5), memory = normal({2, 5, 24}, 6);
  const RotaryTable table = rotary_table(7, {0}, rotary_frequencies(6));
  const auto part = [&](const Tensor& from, int64_t begin, int64_t heads) {
    const Tensor weight = slice(attention.in_proj_weight, 0, begin, begin + heads * 6);
    return reshape(linear(from, weight, slice(attention.in_proj_bias, 0, begin, begin + heads * 6)),
                   {2, from.size(1), heads, 6});
  };
  const Tensor q = rms_norm(part(x, 0, 4), attention.q_norm.weight);
  const auto attended = [&](const Tensor& query, const Tensor& key, const Tensor& value, const Mask& mask) {
    const Tensor out = multihead::attention(query, key, value, {.mask = mask, .layout = Layout::bthd});
    return attention.out_proj(reshape(out, {2, 7, 24}));
  };
  const Tensor cross =
      attended(q, rms_norm(part(memory, 24, 2), attention.k_norm.weight), part(memory, 36, 2), {});
  expect_near(attention(x, memory, memory), cross, 1e-6);
  expect_near(attention.attend(x, attention.project_memory(memory, memory)), cross, 1e-6);
  const Tensor k = rotary(rms_norm(part(x, 24, 2), attention.k_norm.weight), table);
  const Tensor whole = attention(x, x, x, {{.mask = causal()}, &table});
  expect_near(whole, attended(rotary(q, table), k, part(x, 36, 2), causal()), 1e-6);
  KvCache cache{Tensor::full({2, 2, 8, 6}, 99), Tensor::full({2, 2, 8, 6}, 99)};
  for (int64_t t = 0; t < 7; ++t) {
    const RotaryTable one = rotary_table(1, {t}, rotary_frequencies(6));
    const std::vector<int64_t> before = {t, t}, fresh = {1, 1};
    const Tensor token = slice(x, 1, t, t + 1).contiguous();
    expect_bits(attention.decode(token, {&cache, before, fresh}, {.rotary = &one}),
                slice(whole, 1, t, t + 1).contiguous());
  }
}

TEST(MultiHeadAttentionTest, NormsMakeTheSizeOfQueriesAndKeysIrrelevant) {
  Rng rng(3);
  MultiHeadAttention attention({.embed_dim = 12,
                                .num_heads = 3,
                                .query_bias = false,
                                .key_bias = false,
                                .value_bias = false,
                                .qk_norm = true,
                                .qk_norm_eps = 0},
                               rng);
  const Tensor x = normal({1, 5, 12}, 7);
  const Tensor before = attention(x, x, x);
  const Tensor rows = slice(attention.in_proj_weight, 0, 0, 24);
  rows.copy_from(scale(rows.clone(), 8));  // a power of two leaves every bit of the norms
  expect_bits(attention(x, x, x), before);
  Tensor trained = x.clone().set_requires_grad();
  Tape tape;
  tape.backward(sum(square(attention(trained, trained, trained))));
  for (const NamedTensor& p : named_parameters(attention)) EXPECT_TRUE(p.tensor.grad().defined()) << p.name;
}

TEST(MultiHeadAttentionTest, ResidualIsAdded) {
  Rng rng(3);
  const MultiHeadAttention attention({.embed_dim = 12, .num_heads = 3}, rng);
  const Tensor x = normal({2, 5, 12}, 7);
  expect_near(attention(x, x, x, {.residual = x}), add(attention(x, x, x), x), 1e-6);
}

TEST(MultiHeadAttentionTest, NoKeysNoQueriesAndNoRowsAreSizesToo) {
  Rng rng(3);
  const MultiHeadAttention attention({.embed_dim = 12, .num_heads = 3}, rng);
  const Tensor x = normal({2, 5, 12}, 7), none = Tensor::zeros({2, 0, 12}),
               no_rows = Tensor::zeros({0, 5, 12});
  const Tensor nothing = attention(x, none, none);
  for (int64_t i = 0; i < nothing.numel(); ++i)
    EXPECT_EQ(nothing.to_vector<float>()[i], attention.out_proj.bias.to_vector<float>()[i % 12]);
  EXPECT_EQ(attention(none, x, x).shape(), none.shape());
  EXPECT_EQ(attention(no_rows, no_rows, no_rows).shape(), no_rows.shape());
  EXPECT_EQ(attention.attend(no_rows, attention.project_memory(no_rows, no_rows)).shape(), no_rows.shape());
}

TEST(MultiHeadAttentionTest, WrongSizesAreNamed) {
  Rng rng(3);
  EXPECT_THROW(MultiHeadAttention({.embed_dim = 10, .num_heads = 3}, rng), ValueError);
  EXPECT_THROW(MultiHeadAttention({.embed_dim = 12, .num_heads = 4, .num_kv_heads = 3}, rng), ValueError);
  EXPECT_THROW(MultiHeadAttention({.embed_dim = 12, .num_heads = 0}, rng), ValueError);
  EXPECT_THROW(MultiHeadAttention({.embed_dim = 12, .num_heads = 4, .dropout_p = 1.5}, rng), ValueError);
  EXPECT_THROW(MultiHeadAttention({.embed_dim = 12, .num_heads = 4, .qk_norm = true, .qk_norm_eps = -1}, rng),
               ValueError);
  EXPECT_THROW(MultiHeadAttention({.embed_dim = 12, .num_heads = 4, .qk_norm_eps = 1e-5}, rng), ValueError);
  EXPECT_THROW(MultiHeadAttention({.embed_dim = 12, .num_heads = 4, .scale = NAN}, rng), ValueError);
  EXPECT_THROW(LayerNorm(4, -1e-5), ValueError);
  EXPECT_THROW(RMSNorm(4, INFINITY), ValueError);
  const MultiHeadAttention attention({.embed_dim = 12, .num_heads = 3}, rng);
  const Tensor x = Tensor::zeros({2, 5, 12}), narrow = Tensor::zeros({2, 5, 11}),
               other = Tensor::zeros({3, 5, 12});
  EXPECT_THROW(attention(narrow, narrow, narrow), ShapeError);
  EXPECT_THROW(attention(x, other, other), ShapeError);
  KvCache cache{Tensor::zeros({2, 3, 6, 4}), Tensor::zeros({2, 3, 6, 4})};
  const std::vector<int64_t> full = {4, 4}, five = {5, 5};
  EXPECT_THROW(attention.decode(x, {&cache, full, five}), ValueError);
  const std::vector<int64_t> one = {1, 1}, before = {0, -1},
                             beyond = {0, std::numeric_limits<int64_t>::max()};
  EXPECT_THROW(attention.decode(x, {&cache, before, one}), ValueError);
  EXPECT_THROW(attention.decode(x, {&cache, beyond, one}), ValueError);
  EXPECT_THROW(attention.decode(x, {nullptr, one, one}), ValueError);
  EXPECT_THROW(attention.decode(x, {&cache, one, one, -4}), ValueError);
}

}  // namespace
}  // namespace multihead::nn
