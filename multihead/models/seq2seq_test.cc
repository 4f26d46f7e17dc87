#include "multihead/models/seq2seq.h"

#include <gtest/gtest.h>

#include <cmath>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/memory/memory.h"
#include "multihead/models/testing-inl.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/matchers.h"

namespace multihead::models {
namespace {

Seq2SeqConfig config() {
  Seq2SeqConfig c;
  c.source_vocab_size = 29, c.max_positions = 17, c.encoder_layers = 2, c.decoder_layers = 2, c.num_heads = 2,
  c.embed_dim = 12, c.ffn_dim = 23, c.dropout_p = 0.2, c.attention_dropout_p = 0.1, c.ffn_dropout_p = 0.1,
  c.init_std = 0.3, c.pad_id = 0, c.eos_id = 1;
  return c;
}

std::vector<Seq2SeqConfig> variants() {
  std::vector<Seq2SeqConfig> list(3, config());
  list[1].positions = Positions::learned, list[1].norm_first = list[1].final_norm = true;
  list[1].share_embeddings = list[1].tie_output = list[1].scale_embeddings = false;
  list[1].target_vocab_size = 31;
  list[2].norm = nn::NormKind::rms, list[2].bias = list[2].output_bias = false;
  list[2].share_embeddings = false, list[2].sinusoid_layout = nn::SinusoidLayout::interleaved;
  return list;
}

Tensor words(int64_t rows, int64_t length, uint64_t seed) {
  std::vector<int32_t> ids;
  const RandomStream stream{seed, 0};
  for (int64_t i = 0; i < rows * length; ++i) {
    ids.push_back(2 + static_cast<int32_t>(stream.uniform(static_cast<uint64_t>(i)) * 26));
  }
  return Tensor::of<int32_t>({rows, length}, ids);
}

TEST(Seq2SeqTest, StepsEqualTheWholeBitForBit) {
  for (const Seq2SeqConfig& c : variants()) {
    Rng rng(1);
    const Seq2Seq model(c, rng);
    const TokenBatch source{words(3, 9, 2), {9, 2, 5}};
    const Tensor target = words(3, 6, 3);
    const Tensor full = model(source, {target, {}});
    EXPECT_EQ(full.shape(), Shape({3, 6, model.config().target_vocab_size}));
    nn::DecodeState state = model.start(source, 6);
    for (int64_t t = 0; t < 6; ++t) {
      const Tensor logits = model.step(slice(target, 1, t, t + 1).contiguous(), state);
      for (int64_t b = 0; b < 3; ++b) ASSERT_EQ(row(logits, b, 0, 1), row(full, b, t, t + 1)) << t;
    }
  }
}

TEST(Seq2SeqTest, ARowAloneAndInAPaddedBatchHaveTheSameBits) {
  for (const Seq2SeqConfig& c : variants()) {
    Rng rng(4);
    const Seq2Seq model(c, rng);
    const Tensor source = words(2, 11, 5), target = words(2, 7, 6);
    const Tensor both = model({source, {4, 11}}, {target, {3, 7}});
    const Tensor alone = model({slice(slice(source, 0, 0, 1), 1, 0, 4).contiguous(), {}},
                               {slice(slice(target, 0, 0, 1), 1, 0, 3).contiguous(), {}});
    EXPECT_EQ(row(alone, 0, 0, 3), row(both, 0, 0, 3));
  }
}

TEST(Seq2SeqTest, EveryWeightLearnsAndTiesHold) {
  for (const Seq2SeqConfig& c : variants()) {
    Rng rng(7);
    Seq2Seq model(c, rng);
    EXPECT_EQ(model.output_weight.is_same(model.target_embedding.weight), c.tie_output);
    EXPECT_EQ(model.source_embedding.weight.is_same(model.target_embedding.weight), c.share_embeddings);
    Tape tape;
    Rng dropout(8);
    tape.backward(
        model.loss({words(2, 6, 9), {6, 4}}, {words(2, 5, 10), {}}, words(2, 5, 11), &dropout, 0.1));
    for (const nn::NamedTensor& p : nn::named_parameters(model)) {
      ASSERT_TRUE(p.tensor.grad().defined()) << p.name;
      double sum = 0;
      for (const float g : p.tensor.grad().to_vector<float>()) sum += std::abs(g);
      EXPECT_TRUE(std::isfinite(sum)) << p.name;
      // The key's bias moves all scores of a query alike: its gradient is zero but for rounding.
      EXPECT_GT(sum, 0) << p.name;
    }
  }
}

TEST(Seq2SeqTest, CopiesAndConversionsKeepTheTies) {
  for (const Seq2SeqConfig& c : variants()) {
    Rng rng(12);
    Seq2Seq model(c, rng);
    Seq2Seq copy = nn::clone(model);
    EXPECT_EQ(nn::parameter_count(copy), nn::parameter_count(model));
    const TokenBatch source{words(1, 5, 13), {}}, target{words(1, 4, 14), {}};
    const auto expected = model(source, target).to_vector<float>();
    copy.output_weight.fill(0);
    EXPECT_EQ(model(source, target).to_vector<float>(), expected);
    EXPECT_EQ(copy.output_weight.is_same(copy.target_embedding.weight), c.tie_output);
  }
}

TEST(Seq2SeqTest, IgnoredLabelsCountForNothing) {
  Rng rng(15);
  const Seq2Seq model(config(), rng);
  const TokenBatch source{words(1, 5, 16), {}};
  const Tensor target = words(1, 4, 17), labels = words(1, 4, 18);
  Tensor padded = Tensor::full({1, 6}, 0, Dtype::i32), ignored = Tensor::full({1, 6}, -100, Dtype::i32);
  slice(padded, 1, 0, 4).copy_from(target);
  slice(ignored, 1, 0, 4).copy_from(labels);
  EXPECT_EQ(model.loss(source, {target, {}}, labels).item(),
            model.loss(source, {padded, {4}}, ignored).item());
}

TEST(Seq2SeqTest, TheWeightsOfItsMatricesAreKnownBeforehand) {
  Rng rng(1);
  for (const Seq2SeqConfig& c : variants()) {
    Seq2Seq model(c, rng);
    int64_t weights = 0;
    for (const Tensor& p : nn::parameters(model)) weights += p.rank() == 2 ? p.numel() : 0;
    EXPECT_EQ(matrix_weights(c), weights);
  }
  Seq2SeqConfig huge = config();
  huge.encoder_layers = 1 << 29;
  EXPECT_THROW(Seq2Seq(huge, rng), MemoryError);
}

TEST(Seq2SeqTest, BadInputIsNamed) {
  Rng rng(19);
  const Seq2Seq model(config(), rng);
  const TokenBatch source{words(2, 5, 20), {}}, target{words(2, 4, 21), {}};
  EXPECT_MESSAGE(model({words(2, 18, 1), {}}, target), ValueError,
                 "source of 18 tokens, the model has max_positions = 17");
  EXPECT_MESSAGE(model(source, {words(2, 18, 1), {}}), ValueError, "target of 18 tokens");
  EXPECT_MESSAGE(model(source, {words(3, 4, 1), {}}), ShapeError, "the source has 2 rows, the target 3");
  EXPECT_MESSAGE(model({words(2, 5, 1), {5, 6}}, target), ValueError, "a length of 6 exceeds the 5 tokens");
  EXPECT_MESSAGE(model({words(2, 5, 1), {5}}, target), ShapeError, "2 rows and 1 lengths");
  EXPECT_MESSAGE(model({Tensor::full({2, 5}, 29, Dtype::i32), {}}, target), ValueError, "29");
  EXPECT_MESSAGE(model(source, {Tensor::full({2, 4}, -1, Dtype::i32), {}}), ValueError, "-1");
  Seq2SeqConfig other = config();
  other.decoder_layers = 1;
  const Seq2Seq stranger(other, rng);
  nn::DecodeState state = stranger.start(source, 4);
  EXPECT_MESSAGE(model.step(words(2, 1, 1), state), ShapeError, "the state has 1 layers");

  const auto refused = [](auto&& change, const char* text) {
    Seq2SeqConfig c = config();
    change(c);
    EXPECT_MESSAGE(resolved(c), ValueError, text);
  };
  refused([](Seq2SeqConfig& c) { c.num_heads = 5; }, "num_heads");
  refused([](Seq2SeqConfig& c) { c.target_vocab_size = 30; }, "share_embeddings");
  refused([](Seq2SeqConfig& c) { c.eos_id = 29; }, "eos_id");
  refused([](Seq2SeqConfig& c) { c.positions = Positions::rotary; }, "positions");
  refused([](Seq2SeqConfig& c) { c.dropout_p = 1; }, "dropout_p");
  refused([](Seq2SeqConfig& c) { c.embed_dim = int64_t{1} << 40, c.num_heads = 1; }, "config");
  refused([](Seq2SeqConfig& c) { c.encoder_layers = c.decoder_layers = int64_t{1} << 62; }, "encoder_layers");
}

}  // namespace
}  // namespace multihead::models
