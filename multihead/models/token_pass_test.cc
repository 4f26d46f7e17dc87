// nn/decode/token_pass.h under the models whose layers it runs.
#include <gtest/gtest.h>

#include <cstring>

#include "multihead/autograd/tape.h"
#include "multihead/models/language_model.h"
#include "multihead/nn/points.h"
#include "multihead/ops/shape.h"

namespace multihead::models {
namespace {

LanguageModelConfig config_with(Positions positions) {
  LanguageModelConfig c;
  c.vocab_size = 61, c.context = 43, c.num_layers = 3, c.num_heads = 4, c.embed_dim = 56, c.ffn_dim = 73;
  c.positions = positions, c.init_std = 0.2;
  return c;
}

LanguageModelConfig llama() {
  LanguageModelConfig c = config_with(Positions::rotary);
  c.num_kv_heads = 2, c.norm = nn::NormKind::rms, c.gated = true, c.activation = Activation::silu;
  c.attention_bias = c.out_bias = c.ffn_bias = false;
  return c;
}

LanguageModelConfig gemma() {
  LanguageModelConfig c = llama();
  c.block = nn::Block::sandwich, c.norm = nn::NormKind::rms_from_one, c.qk_norm = true, c.scale_dim = 9;
  c.attention_softcap = 3, c.logit_softcap = 5, c.scale_embeddings = true, c.head_dim = 20;
  c.window = 7, c.global_every = 2, c.local_rotary_base = 100, c.activation = Activation::gelu_tanh;
  return c;
}

struct Case {
  std::string name;
  LanguageModelConfig config;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const Positions p :
       {Positions::none, Positions::learned, Positions::sinusoidal, Positions::rotary, Positions::alibi}) {
    list.push_back({"positions " + std::string(word_of(p)), config_with(p)});
  }
  for (const nn::Block b : {nn::Block::parallel, nn::Block::parallel_shared, nn::Block::attention_only}) {
    LanguageModelConfig c = config_with(Positions::rotary);
    c.block = b, c.rotary_fraction = 4.0 / 7, c.rotary_layout = RotaryLayout::interleaved;
    c.activation = Activation::gelu, c.head_bias = true;
    list.push_back({"block " + std::string(word_of(b)), c});
  }
  LanguageModelConfig post = config_with(Positions::learned);
  post.norm_first = false, post.final_norm = false, post.activation = Activation::relu;
  LanguageModelConfig ring = llama();
  ring.window = 5;
  LanguageModelConfig pruned = config_with(Positions::alibi);
  pruned.pruned_heads = {{}, {0, 2}, {}};
  LanguageModelConfig scaled = llama();
  scaled.residual_factor = 0.3, scaled.attention_scale = 0.2, scaled.embedding_factor = 5;
  scaled.logit_divisor = 3, scaled.unrotated_every = 2;
  LanguageModelConfig normed = config_with(Positions::alibi);
  normed.embedding_norm = true;
  LanguageModelConfig local = config_with(Positions::learned);
  local.window = 5, local.global_every = 2, local.global_first = true;
  list.insert(list.end(), {{"llama", llama()},
                           {"gemma", gemma()},
                           {"post-norm", post},
                           {"ring", ring},
                           {"pruned", pruned},
                           {"scaled", scaled},
                           {"embedding norm", normed},
                           {"first global", local}});
  return list;
}

LanguageModel frozen_model(const LanguageModelConfig& config) {
  Rng rng(5);
  LanguageModel model(config, rng);
  for (Tensor& parameter : nn::parameters(model)) parameter.set_requires_grad(false);
  return model;
}

Tensor tokens_from(int64_t first, int64_t batch, int64_t length) {
  Tensor x = Tensor::empty({batch, length}, Dtype::i64);
  const RandomStream stream{7, 0};
  for (int64_t i = 0; i < x.numel(); ++i) {
    x.data<int64_t>()[i] = static_cast<int64_t>(stream.bits(static_cast<uint64_t>(first + i)) % 61);
  }
  return x;
}

// A prompt, single tokens, rows that rest, and a few tokens at once.
std::vector<float> decode(const LanguageModel& model, const LanguageModelState& options, bool by_modules) {
  nn::DecodeState state = model.make_state(options);
  std::vector<float> all;
  const int64_t batch = options.batch;
  int64_t at = 0;
  const auto read = [&](int64_t length, const std::vector<int64_t>& counts) {
    const Tensor x = tokens_from(at += 100, batch, length);
    const LanguageModelCall call = {.state = &state, .counts = counts};
    EXPECT_EQ(model.explain(call, length).find("kernel calls"), by_modules ? std::string::npos : 8u)
        << model.explain(call, length);
    const Tensor logits = model(x, call);
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t t = 0; t < (counts.empty() ? length : counts[static_cast<size_t>(b)]); ++t) {
        const float* row = logits.data<float>() + (b * length + t) * logits.size(2);
        all.insert(all.end(), row, row + logits.size(2));
      }
    }
  };
  const auto all_of = [&](int64_t count) { return std::vector<int64_t>(static_cast<size_t>(batch), count); };
  read(5, {});
  for (int i = 0; i < 4; ++i) read(1, {});
  std::vector<int64_t> some = all_of(1);
  some.front() = 0;
  read(1, some);
  some.front() = 3;
  read(3, some);
  const nn::DecodeState before = state.fork();  // what is shared is copied before it is written
  read(1, all_of(1));
  state = before;
  read(2, {});
  return all;
}

void expect_same_bits(const LanguageModel& model, const LanguageModelState& options) {
  const std::vector<float> pass = decode(model, options, false);
  const Tape tape;  // sends everything through the modules
  const std::vector<float> modules = decode(model, options, true);
  ASSERT_EQ(pass.size(), modules.size());
  EXPECT_EQ(std::memcmp(pass.data(), modules.data(), pass.size() * sizeof(float)), 0);
}

TEST(TokenPassTest, HasTheBitsOfTheModules) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const LanguageModel model = frozen_model(c.config);
    for (const int64_t batch : {1, 3}) {
      expect_same_bits(model, {.batch = batch});
      expect_same_bits(model, {.batch = batch, .dtype = Dtype::bf16});
      if (model.config().head_dim % 4 == 0)
        expect_same_bits(model, {.batch = batch, .dtype = nn::kInt8Cache});
    }
    if (model.has_ring()) expect_same_bits(model, {.batch = 2, .capacity = 300, .ring = true, .chunk = 8});
  }
}

TEST(TokenPassTest, HasTheBitsOfTheModulesWithPackedWeights) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    for (const nn::WeightDtype dtype : {nn::WeightDtype::bf16, nn::WeightDtype::f16, nn::WeightDtype::int8,
                                        nn::WeightDtype::q8, nn::WeightDtype::q4}) {
      LanguageModel model = frozen_model(c.config);
      model.pack_weights(dtype);
      expect_same_bits(model, {.batch = 2});
    }
  }
}

TEST(TokenPassTest, SaysWhyItDeclines) {
  const LanguageModel model = frozen_model(llama());
  nn::DecodeState state = model.make_state(2);
  const auto reason = [&](const LanguageModelCall& call, int64_t tokens) {
    return model.explain(call, tokens);
  };
  EXPECT_EQ(reason({}, 1), "layers: modules, because of no state");
  EXPECT_EQ(reason({.state = &state}, 1), "layers: kernel calls without modules");
  EXPECT_EQ(reason({.state = &state}, 17), "layers: modules, because of 34 new tokens");
  EXPECT_EQ(reason({.state = &state, .mask = lengths(Tensor::of<int64_t>({2}, {1, 1}))}, 1),
            "layers: modules, because of layer 0: attention with mask");
  Rng rng(1);
  EXPECT_EQ(reason({.rng = &rng, .state = &state}, 1), "layers: modules, because of layer 0: dropout");
  std::vector<AttentionCapture> capture(3);
  EXPECT_EQ(reason({.state = &state, .capture = &capture}, 1),
            "layers: modules, because of layer 0: attention with capture");
  {
    const Tape tape;
    EXPECT_EQ(reason({.state = &state}, 1), "layers: modules, because of a tape is recording");
  }
  nn::Points points;
  const nn::PointScope scope(points);
  EXPECT_EQ(reason({.state = &state}, 1), "layers: modules, because of named points");
}

TEST(TokenPassTest, ACallThatDoesNotFitFailsAsBefore) {
  const LanguageModel model = frozen_model(llama());
  nn::DecodeState state = model.make_state(1, 2);
  model(tokens_from(0, 1, 2), {.state = &state});
  EXPECT_THROW(model(tokens_from(0, 1, 1), {.state = &state}), ValueError);
  EXPECT_EQ(state.lengths[0], 2);
}

}  // namespace
}  // namespace multihead::models
