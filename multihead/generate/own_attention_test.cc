// Attention that a program registers: decoded, trained, saved and generated from in a language model.
#include "multihead/nn/own_attention.h"

#include <gtest/gtest.h>

#include <functional>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/generate/draft.h"
#include "multihead/generate/generate.h"
#include "multihead/generate/generator.h"
#include "multihead/models/files/gguf.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/models/files/state_file.h"
#include "multihead/models/surgery/lens.h"
#include "multihead/models/surgery/prune.h"
#include "multihead/models/testing-inl.h"
#include "multihead/ops/array/scan.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear_attention.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/files.h"
#include "multihead/testing/gradcheck.h"

namespace multihead {
namespace {

using models::LanguageModel;
using models::LanguageModelConfig;
using models::refused;
using models::row;
using nn::OwnAttentionCall;

// Weights named as by visit(), and copies that share them.
template <class Self>
class Registered : public nn::OwnAttention {
 public:
  std::shared_ptr<OwnAttention> clone() const override {
    return std::make_shared<Self>(static_cast<const Self&>(*this));
  }
};

// The Forgetting Transformer: the gates of a token's past are kept beside its keys and values.
class Forgetting : public Registered<Forgetting> {
 public:
  Forgetting(const nn::MultiHeadAttentionOptions& o, Rng& rng)
      : heads_(o.num_heads),
        dim_(o.head_dim),
        in_proj(o.embed_dim, 3 * heads_ * dim_, rng),
        gate(o.embed_dim, heads_, rng),
        out_proj(heads_ * dim_, o.embed_dim, rng) {}

  Tensor operator()(const Tensor& x, OwnAttentionCall& call) const override {
    const int64_t batch = x.size(0), length = x.size(1);
    const Tensor all = reshape(in_proj(x), {batch, length, 3 * heads_, dim_});
    const Tensor turned = call.rotary() != nullptr ? rotary(all, *call.rotary(), 2 * heads_) : all;
    const std::vector<Tensor> qkv = split(transpose(turned, 1, 2), {heads_, heads_, heads_}, 1);
    const Tensor key = call.grown("k", qkv[1]), value = call.grown("v", qkv[2]);
    const Tensor gates = reshape(transpose(log_sigmoid(gate(x)), 1, 2), {batch, heads_, length, 1});
    const Tensor passed = cumsum(call.grown("gates", gates), 2);
    AttentionOptions options = call.options();
    options.bias = scale(transpose(passed, 2, 3), -1);
    const Tensor heads = attention(qkv[0], key, value, options);
    return out_proj(reshape(transpose(heads, 1, 2), {batch, length, -1}));
  }

  void visit(nn::Visitor& visitor) override {
    visitor("in_proj", in_proj);
    visitor("gate", gate);
    visitor("out_proj", out_proj);
  }
  std::vector<nn::OwnCacheSpec> caches() const override {
    return {{"k", heads_, dim_}, {"v", heads_, dim_}, {"gates", heads_, 1}};
  }

 private:
  int64_t heads_, dim_;

 public:
  nn::Linear in_proj, gate, out_proj;
};

// The delta rule, which carries one state and reads no mask.
class Delta : public Registered<Delta> {
 public:
  Delta(const nn::MultiHeadAttentionOptions& o, Rng& rng)
      : heads_(o.num_heads),
        dim_(o.head_dim),
        in_proj(o.embed_dim, 3 * heads_ * dim_, rng),
        out_proj(heads_ * dim_, o.embed_dim, rng) {}

  Tensor operator()(const Tensor& x, OwnAttentionCall& call) const override {
    const int64_t batch = x.size(0), length = x.size(1);
    const Tensor all = transpose(reshape(in_proj(x), {batch, length, 3 * heads_, dim_}), 1, 2);
    const std::vector<Tensor> qkv = split(all, {heads_, heads_, heads_}, 1);
    const std::vector<Tensor> made = linear_attention(
        qkv[0], scale(qkv[1], 0.3), qkv[2],
        {.rule = LinearRule::delta, .state = call.carried("state"), .lengths = call.counts()});
    call.carry("state", made[1]);
    return out_proj(reshape(transpose(made[0], 1, 2), {batch, length, -1}));
  }

  void visit(nn::Visitor& visitor) override {
    visitor("in_proj", in_proj);
    visitor("out_proj", out_proj);
  }
  std::vector<nn::OwnCacheSpec> caches() const override { return {{"state", heads_, dim_, dim_}}; }

 private:
  int64_t heads_, dim_;

 public:
  nn::Linear in_proj, out_proj;
};

template <class Own>
nn::MakeAttention maker() {
  return [](const nn::MultiHeadAttentionOptions& options, Rng& rng) {
    return std::make_shared<Own>(options, rng);
  };
}

LanguageModel model_of(const std::string& attention,
                       const std::function<void(LanguageModelConfig&)>& edit = {}) {
  nn::register_attention("Forgetting", maker<Forgetting>());
  nn::register_attention("Delta", maker<Delta>());
  LanguageModelConfig c;
  c.vocab_size = 23, c.context = 40, c.num_layers = 2, c.num_heads = 3, c.embed_dim = 24, c.ffn_dim = 32;
  c.positions = attention == "Delta" ? models::Positions::learned : models::Positions::rotary;
  if (attention == "latent") {
    c.latent_dim = 10, c.query_latent_dim = 9, c.value_head_dim = 5, c.rotary_fraction = 0.5;
  } else {
    c.attention = attention;
  }
  if (edit) edit(c);
  Rng rng(3);
  return {c, rng};
}

Tensor tokens(int64_t batch, int64_t length) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < batch * length; ++i) ids.push_back((7 * i * i + 3 * i) % 23);
  return Tensor::of<int64_t>({batch, length}, ids);
}

const char* const kAll[] = {"Forgetting", "Delta", "latent"};

TEST(OwnAttentionTest, CachedDecodingHasTheBitsOfTheWhole) {
  for (const char* name : kAll) {
    const LanguageModel model = model_of(name);
    const Tensor x = tokens(2, 20), whole = model(x);
    nn::DecodeState state = model.make_state(2);
    for (const auto& [begin, end] : {std::pair(0, 7), std::pair(7, 8), std::pair(8, 20)}) {
      const Tensor part = model(slice(x, 1, begin, end).contiguous(), {.state = &state});
      for (int64_t b = 0; b < 2; ++b)
        EXPECT_EQ(row(part, b, 0, end - begin), row(whole, b, begin, end)) << name;
    }
    EXPECT_EQ(model.state_options({.batch = 2}).own.size(), 2U);
    EXPECT_EQ(state.bytes(), nn::decode_state_bytes(model.state_options({.batch = 2})));
  }
}

TEST(OwnAttentionTest, RaggedRowsForkAndReorder) {
  for (const char* name : kAll) {
    const LanguageModel model = model_of(name);
    const Tensor x = tokens(2, 12), whole = model(x);
    nn::DecodeState state = model.make_state(2);
    model(slice(x, 1, 0, 9).contiguous(), {.state = &state, .counts = {4, 9}});
    const nn::DecodeState kept = state.fork();
    state.reorder(std::vector<int64_t>{1, 0, 1});
    const Tensor next = Tensor::zeros({3, 3}, Dtype::i64);
    for (int64_t r = 0; r < 3; ++r) {
      const int64_t b = r == 1 ? 0 : 1, from = b == 0 ? 4 : 9;
      slice(next, 0, r, r + 1).copy_from(slice(slice(x, 0, b, b + 1), 1, from, from + 3));
    }
    const Tensor y = model(next, {.state = &state, .counts = {3, 2, 1}});
    EXPECT_EQ(row(y, 0, 0, 3), row(whole, 1, 9, 12)) << name;
    EXPECT_EQ(row(y, 1, 0, 2), row(whole, 0, 4, 6)) << name;
    EXPECT_EQ(row(y, 2, 0, 1), row(whole, 1, 9, 10)) << name;
    // The fork is where it was; a row can be emptied and begin again.
    nn::DecodeState fork = kept.fork();
    fork.truncate(0, 0);
    const Tensor again = model(slice(x, 1, 0, 4).contiguous(), {.state = &fork, .counts = {4, 0}});
    EXPECT_EQ(row(again, 0, 0, 4), row(whole, 0, 0, 4)) << name;
    EXPECT_EQ(fork.lengths, (std::vector<int64_t>{4, 9}));
  }
}

TEST(OwnAttentionTest, GradientsOfItsWeightsAreThoseOfDifferences) {
  for (const char* name : kAll) {
    LanguageModel model = model_of(name, [](LanguageModelConfig& c) {
      c.init_std = 0.3, c.num_layers = 1, c.embed_dim = 6, c.num_heads = 1, c.head_dim = 4, c.ffn_dim = 3,
      c.vocab_size = 23;
    });
    nn::to(model, Dtype::f64);
    const Tensor x = tokens(1, 6);
    std::vector<Tensor> own;
    std::vector<std::string> names;
    for (const nn::NamedTensor& p : nn::named_parameters(model)) {
      if (p.name.find(".self_attn.") == p.name.npos) continue;
      own.push_back(p.tensor), names.push_back(p.name);
    }
    EXPECT_EQ(names.front(),
              concat("layers.0.self_attn.", name == std::string("latent") ? "q_down" : "in_proj", ".weight"));
    const auto f = [&](const std::vector<Tensor>& weights) {
      LanguageModel copy = model;
      size_t next = 0;
      nn::replace_parameters(copy, [&](const Tensor& parameter) {
        const bool is_own = next < own.size() && parameter.is_same(own[next]);
        return is_own ? weights[next++] : parameter;
      });
      return copy.loss(x, x);
    };
    std::vector<Tensor> inputs;
    for (const Tensor& weight : own) inputs.push_back(weight.detach().clone());
    const auto result = testing::gradcheck_one(f, inputs, {.rtol = 1e-6});
    EXPECT_TRUE(result) << name << ": " << result.message;
  }
}

TEST(OwnAttentionTest, SavedAndLoadedByItsName) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/model";
  LanguageModel model = model_of("Forgetting");
  models::save_language_model(model, path);
  const LanguageModel loaded = models::load_language_model(path);
  EXPECT_EQ(loaded.config().attention, "Forgetting");
  EXPECT_EQ(loaded(tokens(1, 9)).to_vector<float>(), model(tokens(1, 9)).to_vector<float>());
  EXPECT_EQ(models::family_of(model.config()), "multihead");
  const LanguageModel copy = nn::clone(model);
  model.token_embedding.weight.fill(0);
  EXPECT_EQ(copy(tokens(1, 9)).to_vector<float>(), loaded(tokens(1, 9)).to_vector<float>());
  refused([] { model_of("Unheard"); }, "attention \"Unheard\" is not known here");
}

TEST(OwnAttentionTest, GeneratesWhatTheWholeTextGives) {
  const std::vector<std::vector<int32_t>> prompts = {{3, 1, 4, 1, 5}, {9, 2}, {3, 1, 4, 1, 5, 9}};
  for (const char* name : kAll) {
    const LanguageModel model = model_of(name);
    const auto texts = generate(model, prompts, {.max_new_tokens = 12, .sampling = {.temperature = 0}});
    for (size_t i = 0; i < prompts.size(); ++i) {
      std::vector<int32_t> text = prompts[i];
      for (int n = 0; n < 12; ++n) {
        const NoTape silent;
        const Tensor logits = model(Tensor::of<int32_t>({1, std::ssize(text)}, text));
        const std::vector<float> last = row(logits, 0, logits.size(1) - 1, logits.size(1));
        text.push_back(static_cast<int32_t>(std::max_element(last.begin(), last.end()) - last.begin()));
      }
      EXPECT_EQ(texts[i], std::vector<int32_t>(text.begin() + std::ssize(prompts[i]), text.end())) << name;
    }
  }
  // What only grows can be taken back.
  const LanguageModel model = model_of("Forgetting");
  EXPECT_EQ(generate(model, prompts, {.max_new_tokens = 12, .draft = prompt_lookup()}),
            generate(model, prompts, {.max_new_tokens = 12}));
}

TEST(OwnAttentionTest, WhatCannotTakeItSaysSo) {
  LanguageModel model = model_of("Delta");
  const Tensor x = tokens(1, 5);
  const std::string named = "attention \"Delta\"";
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/it";
  refused([&] { model.pack_weights(nn::WeightDtype::q8); }, named);
  refused([&] { models::prune(model, {.heads = {{0}, {0}}}); }, named);
  refused([&] { models::ablate_heads(model, x, 1); }, named);
  refused([&] { models::save_gguf(model, path, "F16", {}); }, named);
  refused([&] { Generator(model, {.prefix_folder = path}); }, named);
  refused([&] { model.make_state({.dtype = Dtype::bf16}); }, named);
  refused([&] { generate(model, {{1}}, {.draft = prompt_lookup()}); }, named);
  refused([&] { draft_model(model); }, "carries tensors");
  const std::vector<std::vector<int32_t>> texts = {{1, 2}};
  refused([&] { model.features(models::TokenRows::of(texts)); }, named);
  std::vector<AttentionCapture> captures(2);
  refused([&] { model(x, {.capture = &captures}); }, named);
  const auto config_with = [](auto edit) { return [edit] { model_of("Delta", edit); }; };
  refused(config_with([](LanguageModelConfig& c) { c.qk_norm = true; }), "takes no qk_norm");
  refused(config_with([](LanguageModelConfig& c) { c.pruned_heads = {{0}, {}}; }), "takes no pruned_heads");
  refused(config_with([](LanguageModelConfig& c) { c.latent_dim = 8; }), "exclude each other");

  // What the call brings and the class does not read.
  refused([&] { model(x, {.mask = window(2, 0)}); }, "the call has a mask");
  const auto with = [&](auto edit) { return [=] { model_of("Delta", edit)(x); }; };
  refused(with([](LanguageModelConfig& c) { c.window = 3; }), "the call has a mask or window");
  refused(with([](LanguageModelConfig& c) { c.causal = false; }), "the call has a mask or window");
  refused(with([](LanguageModelConfig& c) { c.attention_scale = 0.5; }), "the call has a scale");
  refused(with([](LanguageModelConfig& c) { c.scale_dim = 7; }), "the call has a scale");
  refused(with([](LanguageModelConfig& c) { c.attention_softcap = 3; }), "the call has softcap");
  refused(with([](LanguageModelConfig& c) { c.positions = models::Positions::alibi; }), "alibi_slopes");
  refused(with([](LanguageModelConfig& c) { c.positions = models::Positions::rotary; }), "call.rotary");

  const auto latent_with = [](auto edit) { return [edit] { model_of("latent", edit); }; };
  refused(latent_with([](LanguageModelConfig& c) { c.num_kv_heads = 1; }),
          "expected num_kv_heads 3 or 0, got 1");
  refused(latent_with([](LanguageModelConfig& c) { c.rotary_fraction = 1; }), "a rotary_fraction below 1");
  refused(latent_with([](LanguageModelConfig& c) { c.positions = models::Positions::alibi; }),
          "needs rotary");
  refused(latent_with([](LanguageModelConfig& c) { c.latent_dim = 0; }), "need latent_dim");
  refused(latent_with([](LanguageModelConfig& c) { c.qk_norm = true; }),
          "attention \"latent\" takes no qk_norm");

  nn::DecodeState state = model.make_state(1);
  model(x, {.state = &state});
  refused([&] { models::save_state(path, state, model); }, "own attention");
  refused([&] { state.truncate(3); }, "cannot go back to 3");
  nn::DecodeState other = model.make_state(1);
  refused([&] { other.put(0, state, 0, 3); }, "of all 5 tokens");
  other.put(0, state, 0, 5);
  EXPECT_EQ(model(x, {.state = &other}).to_vector<float>(), model(x, {.state = &state}).to_vector<float>());
}

}  // namespace
}  // namespace multihead
