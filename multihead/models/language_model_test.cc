#include "multihead/models/language_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/memory/memory.h"
#include "multihead/models/testing-inl.h"
#include "multihead/ops/shape.h"

namespace multihead::models {
namespace {

LanguageModelConfig small(Positions positions) {
  LanguageModelConfig c;
  c.vocab_size = 23, c.context = 17, c.num_layers = 2, c.num_heads = 4, c.num_kv_heads = 2, c.embed_dim = 24;
  c.ffn_dim = 29, c.positions = positions, c.init_std = 0.2;
  return c;
}

LanguageModelConfig llama_like() {
  LanguageModelConfig c = small(Positions::rotary);
  c.norm = nn::NormKind::rms, c.gated = true, c.activation = Activation::silu;
  c.attention_bias = c.out_bias = c.ffn_bias = false, c.tie_embeddings = false;
  return c;
}

std::vector<LanguageModelConfig> configs() {
  std::vector<LanguageModelConfig> list;
  for (const Positions p :
       {Positions::none, Positions::learned, Positions::sinusoidal, Positions::rotary, Positions::alibi}) {
    list.push_back(small(p));
  }
  list.push_back(llama_like());
  list.push_back(llama_like());
  list.back().qk_norm = true;
  list.back().rotary_scaling = {.kind = RotaryScaling::Kind::yarn, .factor = 4, .original_context = 5};
  list.push_back(small(Positions::sinusoidal));
  list.back().norm_first = false, list.back().scale_embeddings = true, list.back().head_bias = true;
  return list;
}

TEST(LanguageModelTest, TheFutureCannotChangeThePast) {
  for (const LanguageModelConfig& config : configs()) {
    Rng rng(1);
    const LanguageModel model(config, rng);
    const Tensor x = tokens(1, 13);
    const Tensor before = model(x);
    ASSERT_EQ(before.shape(), (Shape{1, 13, 23}));
    const Tensor changed = x.clone();
    changed.data<int64_t>()[7] = (changed.data<int64_t>()[7] + 1) % 23;
    const Tensor after = model(changed);
    EXPECT_EQ(row(before, 0, 0, 7), row(after, 0, 0, 7));
    EXPECT_NE(row(before, 0, 7, 8), row(after, 0, 7, 8));
  }
}

TEST(LanguageModelTest, RowsOfARaggedBatchDecodeAsTheyWouldAlone) {
  for (const LanguageModelConfig& config : configs()) {
    Rng rng(1);
    const LanguageModel model(config, rng);
    const Tensor x = tokens(2, 11);
    // Row 0 has 4 tokens, row 1 has 9; then both go on by 1 and 2.
    nn::DecodeState together = model.make_state(2);
    const Tensor first = model(slice(x, 1, 0, 9).contiguous(), {.state = &together, .counts = {4, 9}});
    Tensor next = Tensor::zeros({2, 2}, Dtype::i64);
    next.data<int64_t>()[0] = 5, next.data<int64_t>()[2] = 6, next.data<int64_t>()[3] = 7;
    const Tensor second = model(next, {.state = &together, .counts = {1, 2}});
    EXPECT_EQ(together.lengths, (std::vector<int64_t>{5, 11}));

    nn::DecodeState alone = model.make_state(1);
    const Tensor a = model(slice(slice(x, 0, 0, 1), 1, 0, 4).contiguous(), {.state = &alone});
    const Tensor b = model(Tensor::full({1, 1}, 5, Dtype::i64), {.state = &alone});
    EXPECT_EQ(row(first, 0, 0, 4), row(a, 0, 0, 4));
    EXPECT_EQ(row(second, 0, 0, 1), row(b, 0, 0, 1));
  }
}

TEST(LanguageModelTest, AReorderedStateContinuesTheOtherRow) {
  Rng rng(1);
  const LanguageModel model(small(Positions::rotary), rng);
  nn::DecodeState state = model.make_state(2);
  const Tensor x = tokens(2, 5);
  model(x, {.state = &state});
  const nn::DecodeState before = state.fork();
  const std::vector<int64_t> order = {1, 1, 0};
  state.reorder(order);
  const Tensor y = model(Tensor::full({3, 1}, 3, Dtype::i64), {.state = &state});
  nn::DecodeState unordered = before.fork();
  const Tensor z = model(Tensor::full({2, 1}, 3, Dtype::i64), {.state = &unordered});
  EXPECT_EQ(row(y, 0, 0, 1), row(z, 1, 0, 1));
  EXPECT_EQ(row(y, 1, 0, 1), row(z, 1, 0, 1));
  EXPECT_EQ(row(y, 2, 0, 1), row(z, 0, 0, 1));
  state.truncate(2);
  EXPECT_EQ(state.lengths, (std::vector<int64_t>{2, 2, 2}));
}

TEST(LanguageModelTest, ARowOfAnotherStateIsPutWhereOneIsWanted) {
  Rng rng(8);
  const LanguageModel model(llama_like(), rng);
  nn::DecodeState from = model.make_state(2), to = model.make_state({.batch = 3, .capacity = 9});
  model(tokens(2, 5), {.state = &from});
  model(tokens(3, 7, 4), {.state = &to});
  const nn::DecodeState before = to.fork();
  const Tensor next = Tensor::full({3, 1}, 3, Dtype::i64);
  to.put(2, from, 1, 4);
  from.truncate(4);
  EXPECT_EQ(to.lengths, (std::vector<int64_t>{7, 7, 4}));
  nn::DecodeState untouched = before.fork();
  const Tensor y = model(next, {.state = &to}), z = model(next, {.state = &untouched});
  const Tensor x = model(Tensor::full({2, 1}, 3, Dtype::i64), {.state = &from});
  EXPECT_EQ(row(y, 0, 0, 1), row(z, 0, 0, 1));
  EXPECT_EQ(row(y, 2, 0, 1), row(x, 1, 0, 1));
  EXPECT_EQ(before.lengths, (std::vector<int64_t>{7, 7, 7}));
  EXPECT_THROW(to.put(0, from, 0, 6), ValueError);
  EXPECT_THROW(to.put(3, from, 0, 1), ValueError);
  nn::DecodeState small_one = model.make_state(1, 2);
  EXPECT_THROW(small_one.put(0, from, 0, 3), ValueError);
}

TEST(LanguageModelTest, UntrainedLossIsThatOfGuessing) {
  LanguageModelConfig config = small(Positions::learned);
  config.init_std = 0.02;
  Rng rng(1);
  const LanguageModel model(config, rng);
  EXPECT_NEAR(model.loss(tokens(3, 11), tokens(3, 11, 2)).item(), std::log(23.0), 0.05);
}

TEST(LanguageModelTest, TiedEmbeddingsAreOneParameter) {
  Rng rng(1);
  LanguageModel tied(small(Positions::rotary), rng);
  LanguageModelConfig config = small(Positions::rotary);
  config.tie_embeddings = false;
  LanguageModel untied(config, rng);
  EXPECT_EQ(nn::parameter_count(untied) - nn::parameter_count(tied), 23 * 24);
  LanguageModel copy = nn::clone(tied);
  EXPECT_TRUE(copy.head_weight.is_same(copy.token_embedding.weight));
  EXPECT_FALSE(copy.head_weight.is_same(tied.head_weight));
  nn::to(copy, Dtype::f64);
  EXPECT_TRUE(copy.head_weight.is_same(copy.token_embedding.weight));
  EXPECT_EQ(copy.head_weight.dtype(), Dtype::f64);
}

TEST(LanguageModelTest, DropoutActsExactlyWithAnRng) {
  LanguageModelConfig config = small(Positions::learned);
  config.dropout_p = config.attention_dropout_p = config.ffn_dropout_p = 0.3;
  Rng rng(1);
  const LanguageModel model(config, rng);
  const Tensor x = tokens(2, 7);
  Rng a(5), b(5), c(6);
  EXPECT_EQ(model(x).to_vector<float>(), model(x).to_vector<float>());
  const auto dropped = model(x, {.rng = &a}).to_vector<float>();
  EXPECT_EQ(dropped, model(x, {.rng = &b}).to_vector<float>());
  EXPECT_NE(dropped, model(x, {.rng = &c}).to_vector<float>());
  EXPECT_NE(dropped, model(x).to_vector<float>());
}

TEST(LanguageModelTest, TheWeightsOfItsMatricesAreKnownBeforehand) {
  Rng rng(1);
  for (const LanguageModelConfig& c : configs()) {
    LanguageModel model(c, rng);
    int64_t weights = 0;
    for (const Tensor& p : nn::parameters(model)) weights += p.rank() == 2 ? p.numel() : 0;
    EXPECT_EQ(matrix_weights(c), weights);
  }
  LanguageModelConfig huge = small(Positions::rotary);
  huge.num_layers = 1 << 29;  // 8 TB
  EXPECT_THROW(LanguageModel(huge, rng), MemoryError);
}

TEST(LanguageModelTest, BadConfigsAndInputsAreNamed) {
  Rng rng(1);
  const auto refused = [&](auto change) {
    LanguageModelConfig c = small(Positions::rotary);
    change(c);
    EXPECT_THROW(LanguageModel(c, rng), ValueError);
  };
  refused([](auto& c) { c.vocab_size = 0; });
  refused([](auto& c) { c.context = 0; });
  refused([](auto& c) { c.num_heads = 5; });
  refused([](auto& c) { c.num_kv_heads = 3; });
  refused([](auto& c) { c.dropout_p = 1; });
  refused([](auto& c) { c.norm_eps = 0; });
  refused([](auto& c) { c.init_std = std::numeric_limits<double>::quiet_NaN(); });
  refused([](auto& c) { c.rotary_fraction = 0; });
  refused([](auto& c) { c.head_dim = 6, c.rotary_fraction = 0.5; });
  refused([](auto& c) { c.head_dim = 3; });
  refused([](auto& c) { c.rotary_base = -1; });
  refused([](auto& c) { c.position_offset = 2; });
  refused([](auto& c) { c.positions = Positions::alibi, c.rotary_fraction = 0.5; });
  refused(
      [](auto& c) { c.positions = Positions::learned, c.rotary_scaling.kind = RotaryScaling::Kind::linear; });
  for (int64_t LanguageModelConfig::*size :  // sums and products of them are no numbers any more
       {&LanguageModelConfig::vocab_size, &LanguageModelConfig::num_kv_heads, &LanguageModelConfig::head_dim,
        &LanguageModelConfig::ffn_dim, &LanguageModelConfig::num_layers, &LanguageModelConfig::context}) {
    refused([&](auto& c) { c.*size = int64_t{1} << 60; });
  }
  refused([](auto& c) { c.num_layers = int64_t{1} << 31; });
  EXPECT_THROW(language_model_preset("huge"), ValueError);

  const LanguageModel model(small(Positions::learned), rng);
  EXPECT_THROW(model(tokens(1, 18)), ValueError);
  EXPECT_THROW(model(Tensor::full({1, 3}, 23, Dtype::i64)), ValueError);
  EXPECT_THROW(model(Tensor::full({1, 3}, -1, Dtype::i64)), ValueError);
  EXPECT_THROW(model(Tensor::zeros({3}, Dtype::i64)), ShapeError);
  nn::DecodeState state = model.make_state(1, 4);
  EXPECT_THROW(model(tokens(2, 3), {.state = &state}), ShapeError);
  EXPECT_THROW(model(tokens(1, 5), {.state = &state}), ValueError);
  EXPECT_EQ(state.lengths[0], 0);
}

}  // namespace
}  // namespace multihead::models
