#include "multihead/models/packed_seq2seq.h"

#include <gtest/gtest.h>

#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/everywhere.h"

namespace multihead::models {
namespace {

using Tokens = std::vector<int32_t>;

// Sizes with which the decoder's heads are in lanes.
Seq2SeqConfig interleaving() {
  Seq2SeqConfig c;
  c.num_heads = 4, c.embed_dim = 48, c.ffn_dim = 41;
  return c;
}

Seq2Seq translator_of(Seq2SeqConfig c) {
  c.source_vocab_size = 29, c.max_positions = 12, c.encoder_layers = 2, c.decoder_layers = 3;
  if (c.embed_dim != 48) c.num_heads = 3, c.embed_dim = 21, c.ffn_dim = 37;
  c.init_std = 0.4;
  Rng rng(5);
  Seq2Seq model(c, rng);
  for (auto& parameter : nn::parameters(model)) {
    if (parameter.rank() == 1) fill_uniform(parameter, 0.3, 1.2, rng.next());
  }
  return model;
}

std::vector<Seq2SeqConfig> translator_configs() {
  return {{},
          {.norm_first = true, .final_norm = true, .activation = Activation::gelu},
          {.positions = Positions::learned, .norm = nn::NormKind::rms, .bias = false, .output_bias = false},
          {.target_vocab_size = 23,
           .activation = Activation::relu,
           .share_embeddings = false,
           .tie_output = false,
           .scale_embeddings = false},
          interleaving()};
}

const std::vector<Tokens> kSources = {{4, 5, 6, 7, 8, 0}, {9, 0}, {11, 12, 13, 0}};

TokenBatch padded(const std::vector<Tokens>& rows) {
  TokenBatch batch{Tensor::zeros({static_cast<int64_t>(rows.size()), 6}, Dtype::i32), {}};
  for (size_t r = 0; r < rows.size(); ++r) {
    std::copy(rows[r].begin(), rows[r].end(), batch.tokens.data<int32_t>() + 6 * r);
    batch.lengths.push_back(static_cast<int64_t>(rows[r].size()));
  }
  return batch;
}

void expect_close(const Tensor& got, const Tensor& expected, const char* where) {
  const auto x = got.to_vector<float>(), y = expected.to_vector<float>();
  ASSERT_EQ(x.size(), y.size());
  for (size_t i = 0; i < x.size(); ++i)
    ASSERT_NEAR(x[i], y[i], 2e-5 * (1 + std::abs(y[i]))) << where << ' ' << i;
}

TEST(PackedSeq2SeqTest, LogitsAreThoseOfTheModelStepAfterStep) {
  for (const Seq2SeqConfig& config : translator_configs()) {
    const Seq2Seq model = translator_of(config);
    const PackedSeq2Seq packed(model);
    nn::DecodeState slow = model.start(padded(kSources), 9);
    PackedState fast = packed.start(kSources);
    for (int32_t t = 0; t < 9; ++t) {
      const Tokens tokens = {t, 2 * t % 23, 7 + t};
      const Tensor expected = model.step(Tensor::of<int32_t>({3, 1}, tokens), slow);
      expect_close(packed.step(tokens, fast), expected, "step");
      if (t == 4) {  // the others' rows, one of them twice in a row
        const std::vector<int64_t> rows = {2, 0, 1};
        slow.reorder(rows);
        fast.select(rows);
      }
    }
    EXPECT_EQ(fast.length(), 9);
  }
}

TEST(PackedSeq2SeqTest, HypothesesOfOneSourceShareTheirPast) {
  const Seq2Seq model = translator_of({});
  const PackedSeq2Seq packed(model);
  PackedState state = packed.start({kSources.data(), 1});
  packed.step(Tokens{0}, state);
  state.select(std::vector<int64_t>{0, 0, 0});
  packed.step(Tokens{4, 5, 6}, state);
  const size_t before = state.bytes();
  state.select(std::vector<int64_t>{2, 0, 2, 1});
  EXPECT_EQ(state.bytes(), before);
  const Tensor logits = packed.step(Tokens{7, 8, 9, 10}, state);
  EXPECT_EQ(state.bytes() - before, size_t{4} * 2 * 3 * 21 * 4);  // rows · keys and values · layers · sizes
  const Tokens said[] = {{0, 6, 7}, {0, 4, 8}, {0, 6, 9}, {0, 5, 10}};
  for (int64_t row = 0; row < 4; ++row) {
    PackedState alone = packed.start({kSources.data(), 1});
    Tensor expected;
    for (const int32_t token : said[row]) expected = packed.step(Tokens{token}, alone);
    EXPECT_EQ(slice(logits, 0, row, row + 1).to_vector<float>(), expected.to_vector<float>()) << row;
  }
}

TEST(PackedSeq2SeqTest, ARowHasTheSameBitsInAnyBatchOnAnyThreadsAndInstructionSetWithFma) {
  const testing::EverywhereScope scope;
  Seq2SeqConfig plain;
  plain.norm_first = plain.final_norm = true;
  for (const auto& [dtype, config] : {std::pair{WeightDtype::f32, plain},
                                      {WeightDtype::int8, plain},
                                      {WeightDtype::f32, interleaving()},
                                      {WeightDtype::int8, interleaving()}}) {
    const PackedSeq2Seq reference(translator_of(config), dtype);
    PackedState all = reference.start(kSources);
    const auto together = reference.step(Tokens{1, 2, 3}, all).to_vector<float>();
    for (const kernels::Isa isa : {kernels::Isa::avx2, kernels::Isa::avx512}) {
      if (isa > kernels::best_isa()) continue;
      kernels::set_isa(isa);
      const PackedSeq2Seq packed(translator_of(config), dtype);
      for (const int threads : {1, 3}) {
        set_num_threads(threads);
        for (size_t i = 0; i < kSources.size(); ++i) {
          PackedState one = packed.start({&kSources[i], 1});
          const auto alone = packed.step(Tokens{static_cast<int32_t>(i) + 1}, one).to_vector<float>();
          EXPECT_EQ(alone, std::vector<float>(together.begin() + 29 * static_cast<std::ptrdiff_t>(i),
                                              together.begin() + 29 * static_cast<std::ptrdiff_t>(i + 1)))
              << name(dtype) << ' ' << kernels::isa_name(isa) << ' ' << threads;
        }
      }
    }
  }
}

// Rounding to 8 bits is an error of about 1 % per product.
TEST(PackedSeq2SeqTest, Int8LogitsAreNearThoseOfF32) {
  for (const Seq2SeqConfig& config : translator_configs()) {
    const Seq2Seq model = translator_of(config);
    const PackedSeq2Seq exact(model), rounded(model, WeightDtype::int8);
    EXPECT_EQ(rounded.weight_dtype(), WeightDtype::int8);
    PackedState a = exact.start(kSources), b = rounded.start(kSources);
    double error = 0, power = 0;
    for (int32_t t = 0; t < 9; ++t) {
      const Tokens tokens = {t, 2 * t % 23, 7 + t};
      const auto x = exact.step(tokens, a).to_vector<float>(), y = rounded.step(tokens, b).to_vector<float>();
      ASSERT_EQ(x.size(), y.size());
      for (size_t i = 0; i < x.size(); ++i) error += std::pow(x[i] - y[i], 2), power += std::pow(x[i], 2);
    }
    EXPECT_LT(std::sqrt(error / power), 0.05);
    EXPECT_GT(error, 0);
  }
}

TEST(PackedLinearTest, Int8RefusesRowsWhoseSumsMightNotFit) {
  const Tensor longest = Tensor::ones({1, kernels::kLongestInt8Sum});
  const Tensor sum = PackedLinear(longest, WeightDtype::int8)(longest, {});
  EXPECT_NEAR(sum.to_vector<float>()[0], kernels::kLongestInt8Sum, 0.01f);
  const Tensor longer = Tensor::ones({1, kernels::kLongestInt8Sum + 1});
  EXPECT_THROW(PackedLinear(longer, WeightDtype::int8), ValueError);
  EXPECT_NO_THROW(PackedLinear(longer, WeightDtype::f32));
}

TEST(PackedSeq2SeqTest, Int8TakesLessMemory) {
  Seq2SeqConfig config;
  config.source_vocab_size = 512, config.embed_dim = 64, config.num_heads = 4;
  Rng rng(3);
  const Seq2Seq model(config, rng);
  const auto tables = model.source_embedding.weight.bytes() * 2;  // the words and some for positions
  EXPECT_LT(PackedSeq2Seq(model, WeightDtype::int8).bytes(), PackedSeq2Seq(model).bytes() / 3 + tables);
}

TEST(PackedSeq2SeqTest, BadCallsAreNamed) {
  const PackedSeq2Seq packed(translator_of({}));
  const auto refused = [](auto&& call, const char* text) {
    try {
      call();
      ADD_FAILURE() << "no error that says " << text;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  PackedState state = packed.start(kSources);
  refused([&] { packed.step(Tokens{1}, state); }, "1 tokens for 3 rows");
  refused([&] { packed.step(Tokens{1, 2, 29}, state); }, "ids must be in [0, 29), got 29");
  refused([&] { state.select(std::vector<int64_t>{3}); }, "row 3 of 3");
  refused([&] { packed.start(std::vector<Tokens>{Tokens(13, 1)}); }, "source of 13 tokens");
  PackedState nothing;
  refused([&] { packed.step(Tokens{}, nothing); }, "belongs to another model");
  for (int i = 0; i < 12; ++i) packed.step(Tokens{1, 2, 3}, state);
  refused([&] { packed.step(Tokens{1, 2, 3}, state); }, "max_positions = 12");
}

}  // namespace
}  // namespace multihead::models
