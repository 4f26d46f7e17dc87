#include "multihead/models/encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/io/checkpoint.h"
#include "multihead/io/json.h"
#include "multihead/io/safetensors.h"
#include "multihead/models/files/adapter.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/models/testing-inl.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/matchers.h"

namespace multihead::models {
namespace {

namespace fs = std::filesystem;
using Sequences = std::vector<std::vector<int32_t>>;

const fs::path kEncoders = kData / "encoders";

std::vector<std::string> fixtures() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kEncoders))
    names.push_back(entry.path().filename().string());
  return names;
}

struct Expected {
  io::TensorMap tensors;
  TokenRows rows;
};

Expected expected_of(const std::string& name) {
  Expected expected{io::load_safetensors((kEncoders / name / "expected.safetensors").string()), {}};
  std::vector<int64_t> ends = {0};
  for (const int64_t length : expected.tensors.at("lengths").to_vector<int64_t>())
    ends.push_back(ends.back() + length);
  const Tensor types = expected.tensors.at("types");
  expected.rows = {expected.tensors.at("tokens"), Tensor::of<int64_t>({std::ssize(ends)}, ends), {}};
  const std::vector<int64_t> kinds = types.to_vector<int64_t>();
  if (std::any_of(kinds.begin(), kinds.end(), [](int64_t kind) { return kind != 0; }))
    expected.rows.types = types;
  return expected;
}

Tensor outputs(const Encoder& model, const TokenRows& rows) {
  return model.config().head == EncoderHead::none ? model.features(rows) : model.logits(rows);
}

TEST(EncoderTest, PackedWeightsHaveTheSameBits) {
  for (const std::string& name : fixtures()) {
    Encoder model = load_encoder((kEncoders / name).string());
    const TokenRows rows = expected_of(name).rows;
    const Tensor before = outputs(model, rows);
    model.pack_weights();
    EXPECT_EQ(outputs(model, rows).to_vector<float>(), before.to_vector<float>()) << name;
    EXPECT_THROW(model.pack_weights(), ValueError);
    EXPECT_THROW(save_encoder(model, "/nonexistent"), ValueError);
  }
}

// Weights are random and a few dozen wide, where errors do not average out.
TEST(EncoderTest, QuantisedWeightsAreNear) {
  for (const auto& [dtype, bound] :
       {std::pair(nn::WeightDtype::int8, .07), {nn::WeightDtype::q8, .07}, {nn::WeightDtype::q4, .6}}) {
    for (const std::string& name : fixtures()) {
      Encoder model = load_encoder((kEncoders / name).string());
      const TokenRows rows = expected_of(name).rows;
      const auto exact = outputs(model, rows).to_vector<double>();
      model.pack_weights(dtype);
      EXPECT_EQ(model.packed_dtype(), dtype);
      const auto got = outputs(model, rows).to_vector<double>();
      double error = 0, size = 0;
      for (size_t i = 0; i < exact.size(); ++i) {
        error += (got[i] - exact[i]) * (got[i] - exact[i]), size += exact[i] * exact[i];
      }
      // Its pooled token, classified, has .079 in int8: only 24 numbers share each rounding.
      const double allowed = name == "gte_classifier" ? std::max(bound, .09) : bound;
      EXPECT_LT(std::sqrt(error / size), allowed) << name << " as " << kernels::name(dtype);
    }
  }
}

// Fixtures: tools/goldens/encoders.py.
TEST(EncoderTest, OutputsAreThoseOfTransformers) {
  ASSERT_GE(fixtures().size(), 38u);
  for (const std::string& name : fixtures()) {
    const Encoder model = load_encoder((kEncoders / name).string());
    const Expected expected = expected_of(name);
    const Tensor features = model.features(expected.rows);
    expect_near(features, expected.tensors.at("features"), 1e-5, name + " features");
    if (expected.tensors.contains("logits")) {
      expect_near(model.logits(expected.rows), expected.tensors.at("logits"), 1e-5, name + " logits");
    }
    if (expected.tensors.contains("pooled")) {
      expect_near(model.pooled(features, expected.rows), expected.tensors.at("pooled"), 1e-5,
                  name + " pooled");
    }
  }
}

TEST(EncoderTest, FamiliesAreWrittenAsTheyWereRead) {
  for (const std::string& name : fixtures()) {
    const fs::path folder = fs::temp_directory_path() / concat("multihead_encoder_", ::getpid(), "_", name);
    Encoder model = load_encoder((kEncoders / name).string());
    save_encoder(model, folder.string());
    Encoder loaded = load_encoder(folder.string());
    EXPECT_EQ(loaded.config(), model.config()) << name;
    const TokenRows rows = expected_of(name).rows;
    EXPECT_EQ(loaded.features(rows).to_vector<float>(), model.features(rows).to_vector<float>()) << name;
    const io::SafetensorsFile ours(folder.string()), theirs((kEncoders / name).string());
    // transformers 5 writes ESM's norms under their oldest names.
    const auto old_name = [](const std::string& tensor) {
      const size_t dot = tensor.rfind('.');
      return tensor.substr(0, dot) + (tensor.substr(dot) == ".bias" ? ".beta" : ".gamma");
    };
    for (const std::string& tensor : ours.names())
      EXPECT_TRUE(theirs.contains(tensor) || theirs.contains(old_name(tensor))) << name << ": " << tensor;
    fs::remove_all(folder);
  }
}

// As nomic-ai publishes it, for its remote code.
TEST(EncoderTest, NomicBertHasTwoSetsOfNames) {
  const EncoderConfig ours = encoder_config_from_json(config_of("encoders/nomic_bert"), "config.json");
  Json published = Json::object({{"model_type", "nomic_bert"},
                                 {"architectures", Json(std::vector<Json>{"NomicBertModel"})},
                                 {"activation_function", "swiglu"},
                                 {"attn_pdrop", 0.0},
                                 {"causal", false},
                                 {"embd_pdrop", 0.0},
                                 {"initializer_range", ours.init_std},
                                 {"layer_norm_epsilon", 1e-12},
                                 {"max_trained_positions", 2048},
                                 {"mlp_fc1_bias", false},
                                 {"n_embd", 24},
                                 {"n_head", 4},
                                 {"n_inner", 31},
                                 {"n_layer", 2},
                                 {"n_positions", 19},
                                 {"pad_vocab_size_multiple", 64},
                                 {"prenorm", false},
                                 {"qkv_proj_bias", false},
                                 {"resid_pdrop", 0.0},
                                 {"rotary_emb_base", 1000},
                                 {"rotary_emb_fraction", 1.0},
                                 {"rotary_emb_interleaved", false},
                                 {"rotary_emb_scale_base", Json()},
                                 {"rotary_scaling_factor", Json()},
                                 {"type_vocab_size", 2},
                                 {"use_rms_norm", false},
                                 {"vocab_size", 37}});
  EXPECT_EQ(encoder_config_from_json(published, "config.json"), ours);
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, Json>>{{"rotary_emb_fraction", 0.5},
                                                 {"rotary_emb_fraction", Json()},
                                                 {"rotary_scaling_factor", 2.0},
                                                 {"prenorm", true},
                                                 {"causal", true},
                                                 {"qkv_proj_bias", true},
                                                 {"num_experts", 8},
                                                 {"activation_function", "gelu"},
                                                 {"rotary_emb_interleaved", true}}) {
    Json changed = published;
    changed[key] = value;
    EXPECT_MESSAGE(encoder_config_from_json(changed, "config.json"), FormatError, key);
  }
}

// In the model type "new", "ntk" is a larger base and positions that are divided besides.
TEST(EncoderTest, GteFromBeforeTransformersHadIt) {
  Json json = config_of("encoders/gte_masked_lm");
  const EncoderConfig plain = encoder_config_from_json(json, "config.json");
  json["model_type"] = "new";
  json["architectures"] = Json(std::vector<Json>{"NewForMaskedLM"});
  json["rope_parameters"] = Json();
  json["rope_theta"] = 20000;
  json["rope_scaling"] = Json::object({{"type", "ntk"}, {"factor", 8.0}});
  json["pack_qkv"] = true, json["unpad_inputs"] = "true", json["logn_attention_scale"] = false;
  json["position_embedding_type"] = "rope", json["layer_norm_type"] = "layer_norm";
  EncoderConfig read = encoder_config_from_json(json, "config.json");
  EXPECT_EQ(read.rotary_base, 160000);
  EXPECT_NEAR(read.rotary_factor, 2, 1e-12);  // 8^(2 / 6) of heads of size 6
  EXPECT_EQ(family_of(read), "gte");          // as it is saved
  EXPECT_EQ(encoder_config_from_json(config_to_json(read), "config.json"), read);
  read.rotary_factor = 1;
  EXPECT_EQ(read, plain);
  json["pack_qkv"] = false;
  EXPECT_MESSAGE(encoder_config_from_json(json, "config.json"), FormatError, "pack_qkv");
  json["pack_qkv"] = true;
  json["rope_scaling"] = Json::object({{"type", "ntk"}, {"factor", 8.0}, {"mixed_b", 0.6}});
  EXPECT_MESSAGE(encoder_config_from_json(json, "config.json"), FormatError, "mixed_b");
}

// As the folders have it, which bring code of their own.
TEST(EncoderTest, PublishedFoldersOfOtherCodeAreRead) {
  Json jina = config_of("encoders/jina_bert");
  for (const char* key : {"architectures", "feed_forward_type"}) jina.erase(key);
  jina["architectures"] = Json(std::vector<Json>{"JinaBertForMaskedLM"});
  jina["feed_forward_type"] = "geglu", jina["emb_pooler"] = "mean", jina["attn_implementation"] = "torch";
  jina["model_max_length"] = 8192, jina["auto_map"] = Json::object({{"AutoModel", "x--modeling_bert.Y"}});
  const EncoderConfig read = encoder_config_from_json(jina, "config.json");
  EXPECT_TRUE(read.alibi && read.gated && !read.ffn_in_bias && read.activation == Activation::gelu);
  jina["feed_forward_type"] = "original";
  EXPECT_MESSAGE(encoder_config_from_json(jina, "config.json"), FormatError, "feed_forward_type");
  const fs::path folder = fs::temp_directory_path() / concat("multihead_headless_", ::getpid());
  fs::create_directories(folder);
  jina["feed_forward_type"] = "reglu";
  std::ofstream(folder / "config.json") << jina.dump();
  fs::copy(kEncoders / "jina_bert" / "model.safetensors", folder / "model.safetensors");
  EXPECT_EQ(load_encoder(folder.string()).config().head, EncoderHead::none);  // its file has none
  fs::remove_all(folder);

  Json nomic = config_of("encoders/nomic_bert_moe");
  nomic["router_aux_loss_coef"] = 0.1, nomic["moe_impl"] = "megablocks", nomic["embd_pdrop"] = 0.1;
  nomic["use_rms_norm"] = Json(), nomic["expert_choice_router"] = false, nomic["num_shared_experts"] = 0;
  const EncoderConfig experts = encoder_config_from_json(nomic, "config.json");
  EXPECT_EQ(experts.experts, 3);
  EXPECT_EQ(experts.experts_every, 2);
  nomic["moe_normalize_expert_weights"] = true;
  EXPECT_MESSAGE(encoder_config_from_json(nomic, "config.json"), FormatError, "moe_normalize_expert_weights");
  EncoderConfig wrong = experts;
  wrong.experts_used = 4;
  EXPECT_THROW(resolved(wrong), ValueError);
  wrong = experts, wrong.alibi = true;
  EXPECT_THROW(resolved(wrong), ValueError);
}

// A file's up before gate is our gate before up; the adapter's rows must be swapped as the weight's are.
TEST(EncoderTest, AnAdapterOfSwappedHalvesIsMergedAsItIsTrained) {
  Encoder model = load_encoder((kEncoders / "gte_masked_lm").string()), trained = nn::clone(model);
  Rng rng(1);
  Adapter adapter(nn::named_parameters(trained), weight_map(trained),
                  {.rank = 2, .targets = {"up_gate_proj"}}, rng);
  for (const nn::NamedTensor& p : nn::named_parameters(adapter)) fill_normal(p.tensor, 0, 0.5, rng.next());
  const fs::path folder = fs::temp_directory_path() / concat("multihead_swapped_", ::getpid());
  fs::create_directories(folder);
  io::CheckpointContents contents;
  adapter.save(contents, "base", "FEATURE_EXTRACTION");
  for (const auto& [name, tensors] : contents.tensors)
    io::save_safetensors((folder / name).string(), tensors);
  for (const auto& [name, text] : contents.files) std::ofstream(folder / name) << text;
  adapter.apply(trained);
  load_adapter(model, folder.string());
  const TokenRows rows = expected_of("gte_masked_lm").rows;
  expect_near(model.features(rows), trained.features(rows), 1e-5, "merged");
  EXPECT_GT(
      std::abs(model.features(rows).to_vector<float>()[0] -
               load_encoder((kEncoders / "gte_masked_lm").string()).features(rows).to_vector<float>()[0]),
      1e-3f);
  fs::remove_all(folder);
}

// The decoder is left out.
TEST(EncoderTest, TheEncoderOfAWholeT5IsRead) {
  for (const char* name : {"t5", "t5_gated", "mt5"}) {
    const std::string folder = (kData / "seq2seq" / name).string();
    EXPECT_TRUE(has_encoder(folder) && is_seq2seq_folder(folder) && !is_encoder_folder(folder)) << name;
    const Tensor tokens = Tensor::of<int64_t>({1, 5}, {3, 9, 20, 4, 1});
    const Tensor want = load_seq2seq(folder).encode({tokens, {}});
    const Encoder encoder = load_encoder(folder);
    expect_near(encoder.features(TokenRows::of(Sequences{{3, 9, 20, 4, 1}})), reshape(want, {5, -1}), 1e-5,
                name);
  }
  const std::string alone = (kEncoders / "t5").string();
  EXPECT_TRUE(is_encoder_folder(alone) && !is_seq2seq_folder(alone));
  try {
    load_seq2seq(alone);
    FAIL() << "an encoder was loaded as a whole model";
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("T5EncoderModel"));
  }
}

Encoder make_encoder(EncoderHead head = EncoderHead::none) {
  EncoderConfig c;
  c.vocab_size = 53, c.context = 600, c.num_layers = 2, c.num_heads = 4, c.embed_dim = 48, c.ffn_dim = 70;
  c.head = head, c.num_labels = 5;
  Rng rng(7);
  return {c, rng};
}

// Windows in every second layer, rotary positions, norms first, as in no family.
Encoder make_windowed() {
  EncoderConfig c = make_encoder(EncoderHead::classification).config();
  c.rotary_base = 500, c.local_rotary_base = 50, c.window = 3, c.global_every = 2;
  c.norm_first = c.gated = c.transforms_labels = c.mean_pooling = true, c.pooler = false, c.token_types = 0;
  c.labels = {"a", "b", "c", "d", "e"};
  Rng rng(8);
  return {c, rng};
}

TEST(EncoderTest, WhatNoFamilyExpressesIsOurOwn) {
  const fs::path folder = fs::temp_directory_path() / concat("multihead_encoder_own_", ::getpid());
  Encoder model = make_windowed();
  EXPECT_EQ(family_of(model.config()), "multihead_encoder");
  save_encoder(model, folder.string());
  const Encoder loaded = load_encoder(folder.string());
  EXPECT_EQ(loaded.config(), model.config());
  const Sequences sequences = {{1, 2, 3, 4, 5, 6, 7, 8, 9}, {5}};
  const TokenRows rows = TokenRows::of(sequences);
  EXPECT_EQ(loaded.logits(rows).to_vector<float>(), model.logits(rows).to_vector<float>());
  fs::remove_all(folder);
}

std::vector<float> rows_of(const Encoder& model, const Sequences& sequences, size_t which) {
  const TokenRows rows = TokenRows::of(sequences);
  const std::vector<float> all = model.features(rows).to_vector<float>();
  const auto ends = rows.cu_seqlens.to_vector<int64_t>();
  const int64_t dim = model.config().embed_dim;
  return {all.begin() + ends[which] * dim, all.begin() + ends[which + 1] * dim};
}

void expect_no_company(const Encoder& model) {
  std::mt19937 rng(3);
  Sequences all;
  for (int i = 0; i < 40; ++i) {
    auto& sequence = all.emplace_back(1 + rng() % (i == 20 ? 600 : 70));
    for (int32_t& token : sequence) token = static_cast<int32_t>(rng() % 53);
  }
  const int before = num_threads();
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    for (const size_t i : {0, 1, 13, 20, 39}) {
      const std::vector<float> alone = rows_of(model, {all[i]}, 0);
      EXPECT_EQ(rows_of(model, all, i), alone) << i;
      Sequences reversed(all.rbegin(), all.rend());
      EXPECT_EQ(rows_of(model, reversed, all.size() - 1 - i), alone) << i;
    }
  }
  set_num_threads(before);
}

TEST(EncoderTest, ASequenceHasTheSameBitsInAnyCompany) {
  expect_no_company(make_encoder());
  expect_no_company(make_windowed());
}

TEST(EncoderTest, GradientsReachEveryWeight) {
  for (const EncoderHead head : {EncoderHead::masked_lm, EncoderHead::classification, EncoderHead::tokens}) {
    EncoderConfig config = make_encoder(head).config();
    config.pooler = head == EncoderHead::classification;
    Rng rng(5);
    Encoder model(config, rng);
    for (Tensor p : nn::parameters(model)) p.set_requires_grad();
    Tape tape;
    Tensor loss =
        sum(square(model.logits(TokenRows::of(Sequences{{1, 2, 3}, {4}}, Sequences{{0, 1, 1}, {0}}), &rng)));
    tape.backward(loss);
    for (const auto& [name, tensor] : nn::named_parameters(model)) {
      ASSERT_TRUE(tensor.grad().defined()) << name;
      const auto g = tensor.grad().to_vector<double>();
      EXPECT_TRUE(std::any_of(g.begin(), g.end(), [](double x) { return x != 0; })) << name;
    }
  }
}

TEST(EncoderTest, WrongCallsAreRefused) {
  const Encoder model = make_encoder();
  EXPECT_THROW(model.features(TokenRows::of(Sequences{{1}, {}})), ValueError);
  EXPECT_THROW(model.features(TokenRows::of(Sequences{std::vector<int32_t>(601, 1)})), ValueError);
  EXPECT_THROW(model.features(TokenRows::of(Sequences{{53}})), ValueError);
  EXPECT_THROW(model.logits(TokenRows::of(Sequences{{1}})), ValueError);
  EXPECT_THROW(TokenRows::of(Sequences{{1}}, Sequences{{0, 0}}), ShapeError);
  EncoderConfig c = model.config();
  c.num_heads = 5;
  EXPECT_THROW(resolved(c), ValueError);
}

}  // namespace
}  // namespace multihead::models
