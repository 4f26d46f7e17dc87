#include "multihead/models/files/hugging_face.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "multihead/core/error.h"
#include "multihead/io/json.h"
#include "multihead/models/testing-inl.h"

namespace multihead::models {
namespace {

namespace fs = std::filesystem;

// Made by tools/goldens/marian.py.
const fs::path kMarian = kData / "marian";

TokenBatch batch(const io::TensorMap& tensors) {
  return {tensors.at("source"), tensors.at("lengths").to_vector<int64_t>()};
}

TEST(MarianTest, LogitsAreThoseOfTransformers) {
  const io::TensorMap expected = io::load_safetensors((kMarian / "expected.safetensors").string());
  const Seq2Seq model = load_seq2seq(kMarian.string());
  EXPECT_EQ(family_of(model.config()), "marian");
  const auto got = model(batch(expected), {expected.at("target"), {}}).to_vector<double>();
  const auto want = expected.at("logits").to_vector<double>();
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-5) << i;
}

TEST(MarianTest, WhatIsSavedIsLoadedBitForBit) {
  std::vector<Seq2SeqConfig> configs(5);
  for (Seq2SeqConfig& c : configs) {
    c.source_vocab_size = 19, c.embed_dim = 12, c.num_heads = 3, c.encoder_layers = 2, c.decoder_layers = 1;
    c.eos_id = 3, c.decoder_start_id = 2;
  }
  configs[1].share_embeddings = configs[1].tie_output = false, configs[1].target_vocab_size = 23;
  configs[2].norm_first = configs[2].final_norm = true, configs[2].positions = Positions::learned;
  configs[3].norm = nn::NormKind::rms, configs[3].bias = false, configs[3].activation = Activation::gelu_tanh;
  configs[4].output_bias = false;
  for (size_t i = 0; i < configs.size(); ++i) {
    const TemporaryFolder folder;
    Rng rng(i);
    Seq2Seq model(configs[i], rng);
    EXPECT_EQ(family_of(configs[i]), i != 2 && i != 3 ? "marian" : "multihead_seq2seq");
    save_seq2seq(model, folder.path());
    EXPECT_TRUE(is_seq2seq_folder(folder.path()));
    const Seq2Seq loaded = load_seq2seq(folder.path());
    EXPECT_EQ(loaded.config(), model.config());
    const Tensor x = Tensor::of<int32_t>({1, 4}, std::vector<int32_t>{5, 18, 7, 3});
    EXPECT_EQ(loaded({x, {}}, {x, {}}).to_vector<float>(), model({x, {}}, {x, {}}).to_vector<float>());
  }
  EXPECT_FALSE(is_seq2seq_folder((kData / "hugging_face" / "gpt2").string()));
}

// transformers has it; a model without one gets zeros in the file, and a file of our names is read, too.
TEST(MarianTest, AnOutputBiasThatIsMissingIsSavedAsZeros) {
  Seq2SeqConfig c;
  c.source_vocab_size = 19, c.embed_dim = 12, c.num_heads = 3, c.encoder_layers = c.decoder_layers = 1;
  c.output_bias = false;
  Rng rng(5);
  Seq2Seq model(c, rng), other(c, rng);
  const io::TensorMap tensors = seq2seq_tensors(model);
  EXPECT_EQ(tensors.at("final_logits_bias").shape(), Shape({1, 19}));
  EXPECT_EQ(tensors.at("final_logits_bias").to_vector<float>(), std::vector<float>(19, 0));

  const TemporaryFolder folder;
  const std::string path = folder / "model.safetensors";
  const Tensor x = Tensor::of<int32_t>({1, 4}, std::vector<int32_t>{5, 18, 7, 3});
  const auto logits = [&](const Seq2Seq& m) { return m({x, {}}, {x, {}}).to_vector<float>(); };
  const auto parameters = nn::named_parameters(model);
  io::save_safetensors(path, export_weights(parameters, identity_map(parameters)));
  EXPECT_NE(logits(other), logits(model));
  load_weights(other, path);
  EXPECT_EQ(logits(other), logits(model));
}

TEST(MarianTest, HostileConfigsAreRefusedBeforeMemoryIsTaken) {
  const auto refused = [](const char* key, const Json& value, const char* expected) {
    Json json = config_of("marian");
    json[key] = value;
    try {
      seq2seq_config_from_json(json, "config.json");
      ADD_FAILURE() << key << " was accepted";
    } catch (const FormatError& error) {
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  };
  refused("d_model", 0, "d_model");
  refused("d_model", 15, "num_heads");
  refused("decoder_ffn_dim", 21, "decoder_ffn_dim");
  refused("eos_token_id", 41, "eos_id");
  refused("normalize_before", true, "normalize_before");
  refused("activation_function", "quick", "activation_function");
  refused("model_type", "fsmt", "model_type");
  refused("decoder_vocab_size", 42, "\"decoder_vocab_size\" must equal vocab_size where share_");

  const FolderCopy folder(kMarian);
  fs::remove(folder / "expected.safetensors");
  const std::string config = folder / "config.json";
  Json json = io::load_json(config);
  json["d_model"] = 1 << 20;
  json["vocab_size"] = json["decoder_vocab_size"] = 1 << 30;
  io::save_json(config, json);
  EXPECT_THROW(load_seq2seq(folder.path()), FormatError);
  json = config_of("marian");
  json["decoder_layers"] = 3;
  io::save_json(config, json);
  try {
    load_seq2seq(folder.path());
    ADD_FAILURE() << "three layers loaded from a file of two";
  } catch (const FormatError& error) {
    EXPECT_NE(
        std::string(error.what()).find("missing model.decoder.layers.2.encoder_attn.q_proj.weight [16, 16]"),
        std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace multihead::models
