#include "multihead/models/surgery/prune.h"

#include <gtest/gtest.h>

#include "multihead/core/error.h"
#include "multihead/generate/beam_search.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/models/files/state_file.h"
#include "multihead/models/testing-inl.h"
#include "multihead/nn/points.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/files.h"

namespace multihead::models {
namespace {

LanguageModel language_model(Positions positions, int64_t kv_heads) {
  LanguageModelConfig c;
  c.vocab_size = 31, c.context = 16, c.num_layers = 3, c.num_heads = 4, c.num_kv_heads = kv_heads;
  c.embed_dim = 24, c.ffn_dim = 20, c.positions = positions, c.init_std = 0.3, c.gated = kv_heads < 4;
  Rng rng(3);
  LanguageModel model(c, rng);
  for (Tensor& x : nn::parameters(model)) {
    if (x.rank() == 1) fill_uniform(x, 0.3, 1.2, rng.next());
  }
  return model;
}

Seq2Seq translator() {
  Seq2SeqConfig c;
  c.source_vocab_size = 23, c.max_positions = 12, c.encoder_layers = 2, c.decoder_layers = 3;
  c.num_heads = 4, c.embed_dim = 32, c.ffn_dim = 20, c.init_std = 0.4;
  Rng rng(4);
  Seq2Seq model(c, rng);
  for (Tensor& x : nn::parameters(model)) {
    if (x.rank() == 1) fill_uniform(x, 0.3, 1.2, rng.next());
  }
  return model;
}

Tensor word_ids(int64_t rows, int64_t length, int64_t vocabulary) {
  const Tensor x = Tensor::empty({rows, length}, Dtype::i32);
  for (int64_t i = 0; i < x.numel(); ++i)
    x.data<int32_t>()[i] = static_cast<int32_t>((7 * i * i + 3 * i + 2) % vocabulary);
  return x;
}

// Zeros in place of the heads [B, T, H, D] or units [B, T, F] of a point.
void silence(nn::Points& points, const std::string& name, const std::vector<int64_t>& which) {
  if (which.empty()) return;
  points.edit(name, [=](const std::string&, const Tensor& x) {
    const Tensor zeroed = x.clone();
    for (const int64_t i : which) slice(zeroed, 2, i, i + 1).fill(0);
    return zeroed;
  });
}

void silence(nn::Points& points, const std::string& stack, const char* point,
             const std::vector<std::vector<int64_t>>& lists) {
  for (size_t i = 0; i < lists.size(); ++i)
    silence(points, concat(stack, "layers.", i, ".", point), lists[i]);
}

const Pruning kUneven = {.heads = {{0, 1}, {}, {1, 3}}, .units = {{0, 7}, {2, 3}, {18, 19}}};

TEST(PruneTest, LanguageModelsAreThoseWithZeros) {
  for (const Positions positions : {Positions::learned, Positions::rotary, Positions::alibi}) {
    for (const int64_t kv_heads : {4, 2}) {
      const LanguageModel model = language_model(positions, kv_heads);
      LanguageModel small = prune(model, kUneven);
      EXPECT_EQ(small.config().pruned_heads, kUneven.heads);
      EXPECT_EQ(small.config().ffn_dim, 18);
      const Tensor x = word_ids(2, 9, 31);
      nn::Points points;
      silence(points, "", "self_attn.z", kUneven.heads);
      silence(points, "", "mlp_post", kUneven.units);
      Tensor expected;
      {
        const nn::PointScope scope(points);
        expected = model(x);
      }
      expect_near(small(x), expected, 2e-5F);
      nn::DecodeState state = small.make_state({.batch = 2});
      EXPECT_EQ(state.bytes(), nn::decode_state_bytes(small.state_options({.batch = 2})));
      expect_near(concat(std::vector<Tensor>{small(slice(x, 1, 0, 5), {.state = &state}),
                                             small(slice(x, 1, 5, 9), {.state = &state})},
                         1),
                  expected, 2e-5F);

      const TemporaryFolder own;
      const std::string& folder = own.path();
      save_language_model(small, folder);
      LanguageModel again = load_language_model(folder);
      EXPECT_EQ(again(x).to_vector<float>(), small(x).to_vector<float>());
      save_state(folder + "/state", state, small);
      EXPECT_EQ(load_state(folder + "/state", again).layers[0].key.shape(), state.layers[0].key.shape());
      int64_t weights = 0;
      for (const Tensor& w : nn::parameters(small)) weights += w.rank() > 1 ? w.numel() : 0;
      EXPECT_EQ(matrix_weights(small.config()), weights);
    }
  }
}

TEST(PruneTest, EqualCountsAreANumberOfHeads) {
  const LanguageModel model = language_model(Positions::rotary, 4);
  const LanguageModel small = prune(prune(model, {.heads = {{1}}}), {.heads = {{}, {0}, {3}}});
  EXPECT_TRUE(small.config().pruned_heads.empty());
  EXPECT_EQ(small.config().num_heads, 3);
  EXPECT_EQ(small.config().head_dim, 6);
  // ALiBi's slopes say which heads are left.
  const LanguageModel alibi = prune(language_model(Positions::alibi, 4), {.heads = {{1}, {0}, {3}}});
  EXPECT_EQ(alibi.config().num_heads, 4);
}

TEST(PruneTest, TranslatorsAreThoseWithZeros) {
  const Seq2Seq model = translator();
  const Pruning encoder = {.heads = {{0, 2}, {}}, .units = {{1}, {4}}};
  const Pruning decoder = {
      .heads = {{}, {1}, {0, 1, 2}}, .cross = {{3}, {}, {0, 3}}, .units = {{0}, {5}, {19}}};
  Seq2Seq small = prune(model, encoder, decoder);
  const TokenBatch source{word_ids(2, 6, 23), {6, 4}}, target{word_ids(2, 5, 23), {5, 5}};
  nn::Points points;
  silence(points, "encoder.", "self_attn.z", encoder.heads);
  silence(points, "encoder.", "mlp_post", encoder.units);
  silence(points, "decoder.", "self_attn.z", decoder.heads);
  silence(points, "decoder.", "multihead_attn.z", decoder.cross);
  silence(points, "decoder.", "mlp_post", decoder.units);
  Tensor expected;
  {
    const nn::PointScope scope(points);
    expected = model(source, target);
  }
  expect_near(small(source, target), expected, 2e-5F);

  const TemporaryFolder own;
  const std::string& folder = own.path();
  save_seq2seq(small, folder);
  const Seq2Seq again = load_seq2seq(folder);
  EXPECT_EQ(again.config(), small.config());
  EXPECT_EQ(again(source, target).to_vector<float>(), small(source, target).to_vector<float>());
  nn::DecodeState state = again.start(source, 5);
  const PackedSeq2Seq packed(again);
  const auto rows = source.tokens.to_vector<int32_t>();
  const std::vector<std::vector<int32_t>> sources = {{rows.begin(), rows.begin() + 6},
                                                     {rows.begin() + 6, rows.begin() + 10}};
  PackedState tokens_state = packed.start(sources);
  for (int64_t t = 0; t < 5; ++t) {
    const Tensor next = slice(target.tokens, 1, t, t + 1).contiguous();
    const Tensor logits = packed.step(next.to_vector<int32_t>(), tokens_state);
    expect_near(logits, reshape(again.step(next, state), logits.shape()), 2e-5F);
  }
  EXPECT_LT(packed.bytes(), PackedSeq2Seq(model).bytes());
  const nn::PointScope looking(points);
  EXPECT_THROW(packed.start(sources), ValueError);
}

TEST(PruneTest, PooledKeysAndValuesAreMeans) {
  const LanguageModel model = language_model(Positions::none, 4);
  LanguageModel grouped = pool_kv_heads(model, 2);
  EXPECT_EQ(grouped.config().num_kv_heads, 2);
  const auto old = model.layers[1].self_attn.in_proj_weight.to_vector<float>(),
             now = grouped.layers[1].self_attn.in_proj_weight.to_vector<float>();
  ASSERT_EQ(now.size(), size_t{(24 + 12 + 12) * 24});
  const auto at = [](const std::vector<float>& x, int64_t row, int64_t column) {
    return x[static_cast<size_t>(row * 24 + column)];
  };
  for (int64_t i = 0; i < 6; ++i) {  // the second group of keys: heads 2 and 3
    EXPECT_FLOAT_EQ(at(now, 24 + 6 + i, 5), (at(old, 24 + 12 + i, 5) + at(old, 24 + 18 + i, 5)) / 2);
    EXPECT_FLOAT_EQ(at(now, 36 + i, 7), (at(old, 48 + i, 7) + at(old, 54 + i, 7)) / 2);
    EXPECT_EQ(at(now, i, 3), at(old, i, 3));
  }
  // Heads that are equal already lose nothing.
  expect_near(pool_kv_heads(grouped, 2)(word_ids(1, 7, 31)), grouped(word_ids(1, 7, 31)), 1e-6F);
  EXPECT_THROW(pool_kv_heads(model, 3), ValueError);
}

TEST(PruneTest, ImportanceIsTheGradientOfAGate) {
  const LanguageModel model = language_model(Positions::learned, 4);
  const Tensor x = word_ids(2, 8, 31), y = word_ids(2, 9, 31);
  const Tensor targets = slice(y, 1, 1, 9).contiguous();
  Importance importance;
  add_importance(importance, [&] { return model.loss(x, targets); });
  ASSERT_EQ(importance.at("layers.2.mlp_post").size(), 20U);
  // One row at a time, by differences.
  const auto loss_of = [&](int64_t row, double gate, int64_t head) {
    nn::Points points;
    points.edit("layers.1.self_attn.z", [=](const std::string&, const Tensor& z) {
      const Tensor scaled = z.clone();
      const Tensor one = slice(slice(scaled, 0, row, row + 1), 2, head, head + 1);
      const auto values = one.contiguous().to_vector<double>();
      std::vector<double> by;
      for (const double v : values) by.push_back(v * gate);
      one.copy_from(Tensor::of<double>(one.shape(), by));
      return scaled;
    });
    const nn::PointScope scope(points);
    return model.loss(x, targets).item();
  };
  for (int64_t head = 0; head < 4; ++head) {
    double expected = 0;
    for (int64_t row = 0; row < 2; ++row) {
      expected += std::abs(loss_of(row, 1.05, head) - loss_of(row, 0.95, head)) / 0.1;
    }
    EXPECT_NEAR(importance.at("layers.1.self_attn.z")[static_cast<size_t>(head)], expected,
                2e-3 + 0.02 * expected);
  }
}

TEST(PruneTest, TheLeastImportantGoFirstAndOneStays) {
  using Lists = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(least_important({{.3, .1, .9}, {5, 80, 1}}, 0.5), (Lists{{1}, {0, 2}}));
  EXPECT_EQ(least_important({{0, 0, 0}, {1, 2, 3}}, 0), (Lists{{0, 1}, {0, 1}}));
  EXPECT_EQ(least_important({{1, 9, 3, 3}}, 0.5, 2), (Lists{{2, 3}}));
  EXPECT_EQ(least_important({{1, 2}}, 1), (Lists{{}}));
  EXPECT_THROW(least_important({{1}}, 1.5), ValueError);
}

TEST(PruneTest, WhatCannotBePrunedIsNamed) {
  const LanguageModel model = language_model(Positions::rotary, 2);
  const auto message = [&](const Pruning& pruning) -> std::string {
    try {
      prune(model, pruning);
    } catch (const ValueError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message({.heads = {{4}}}), "prune: layer 0 has no head 4, it has 4");
  EXPECT_EQ(message({.heads = {{}, {0, 1, 2, 3}}}),
            "prune: layer 1 would lose all of its 4 heads; one must stay");
  EXPECT_EQ(
      message({.heads = {{0}}}),
      "prune: layer 0 would keep 2 query heads of key head 1 and 1 of key head 0; remove as many of each, or "
      "whole groups");
  EXPECT_EQ(message({.units = {{0}, {1}}}), "prune: units of 2 of 3 layers");
  EXPECT_EQ(message({.units = {{0}, {1}, {20}}}), "prune: layer 2 has the units 0 to 19, got 20");
  LanguageModelConfig joint = model.config();
  joint.qk_norm = joint.qk_norm_joint = true, joint.num_kv_heads = 4, joint.norm = nn::NormKind::rms;
  Rng rng(1);
  const LanguageModel olmo2(joint, rng);
  EXPECT_THROW(prune(olmo2, {.heads = {{0}}}), ValueError);
  EXPECT_NO_THROW(prune(olmo2, {.units = {{0}, {1}, {2}}}));
  EXPECT_THROW(pool_kv_heads(olmo2, 2), ValueError);
  LanguageModel packed = nn::clone(model);
  packed.pack_weights(nn::WeightDtype::int8);
  EXPECT_THROW(prune(packed, {.heads = {{0, 1}}}), ValueError);
  LanguageModelConfig c = model.config();
  c.pruned_heads = {{0, 1}, {}, {}, {0}};
  EXPECT_THROW(resolved(c), ValueError);
}

}  // namespace
}  // namespace multihead::models
