// Metadata of GGUF files: keys that are followed, that change nothing, and that are refused by name.
#include "multihead/models/files/gguf_metadata-inl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "multihead/core/error.h"
#include "multihead/models/files/gguf.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/testing/files.h"

namespace multihead::models {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class GgufMetadataTest : public ::testing::TestWithParam<const char*> {
 protected:
  // A file of the architecture, with other or more values.
  std::string written(const io::GgufMetadata& changes) const {
    const std::string prefix = concat(GetParam(), ".");
    io::GgufMetadata metadata = {{"general.architecture", GetParam()}};
    const io::GgufMetadata usual = {{"block_count", 2},
                                    {"context_length", 64},
                                    {"embedding_length", 8},
                                    {"feed_forward_length", 16},
                                    {"attention.head_count", 2},
                                    {"attention.head_count_kv", 1},
                                    {"attention.layer_norm_rms_epsilon", 1e-5}};
    const auto changed = [&](const std::string& key) {
      return std::any_of(changes.begin(), changes.end(),
                         [&](const auto& change) { return change.first == key; });
    };
    for (const auto& [key, value] : usual) {
      if (!changed(key)) metadata.emplace_back(prefix + key, value);
    }
    for (const auto& [key, value] : changes)
      metadata.emplace_back(key.starts_with("general.") || key.starts_with("adapter.") ? key : prefix + key,
                            value);
    const std::string path = folder_ / "model.gguf";
    const Tensor embedding = Tensor::zeros({5, 8});
    io::write_gguf(path, {metadata, {{"token_embd.weight", embedding, &io::writable_gguf_type("F32")}}});
    return path;
  }
  Json config(const io::GgufMetadata& changes) const { return gguf_config(io::GgufFile(written(changes))); }
  std::string error_of(const io::GgufMetadata& changes) const {
    try {
      config(changes);
    } catch (const FormatError& error) {
      return error.what();
    }
    return "no error";
  }

 private:
  TemporaryFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Architectures, GgufMetadataTest, ::testing::Values("llama", "qwen2", "qwen3"));

TEST_P(GgufMetadataTest, OnlyCausalModelsAreWritten) {
  LanguageModelConfig seen = config_from_json(config({}), "config");
  seen.causal = false;
  Rng rng(1);
  LanguageModel model(seen, rng);
  const TemporaryFolder folder;
  EXPECT_THAT([&] { save_gguf(model, folder / "model.gguf", "F32", {}); },
              ::testing::ThrowsMessage<ValueError>(HasSubstr("see the whole text")));
}

TEST_P(GgufMetadataTest, NeutralValuesChangeNothing) {
  const Json plain = config({});
  const io::GgufMetadata neutral = {
      {"attention.causal", true},
      {"use_parallel_residual", false},
      {"expert_count", 0},
      {"expert_used_count", 0},
      {"nextn_predict_layers", 0},
      {"logit_scale", 1.0},
      {"logit_scale", 0.0},
      {"embedding_scale", 0.0},
      {"residual_scale", 1.0},
      {"final_logit_softcapping", 0.0},
      {"attention.sliding_window", 0},
      {"attention.sliding_window", 64},
      {"attention.scale", 0.5},
      {"attention.key_length", 4},
      {"attention.value_length", 4},
      {"attention.head_count_kv", std::vector<int64_t>{1, 1}},
      {"feed_forward_length", std::vector<int64_t>{16, 16}},
      {"rope.dimension_count", 4},
      {"rope.freq_base", 10000.0},
      {"rope.scale_linear", 1.0},
      {"rope.scaling.factor", 0.0},
      {"rope.scaling.type", "none"},
      {"rope.scaling.type", "yarn"},
      {"rope.scaling.attn_factor", 1.0},
      {"rope.scaling.finetuned", true},
      {"rope.scaling.original_context_length", 32},
      {"rope.scaling.yarn_log_multiplier", 0.0},
      {"pooling_type", 3},
      {"vocab_size", 5},
      {"tensor_data_layout", "Meta AI original pth"},
      {"general.type", "model"},
      {"general.quantized_by", "someone"},
  };
  for (const auto& change : neutral) EXPECT_EQ(config({change}), plain) << change.first;
}

TEST_P(GgufMetadataTest, WhatChangesTheModelIsRefusedByName) {
  const io::GgufMetadata changing = {
      {"attention.causal", false},
      {"use_parallel_residual", true},
      {"expert_count", 8},
      {"nextn_predict_layers", 1},
      {"logit_scale", 0.5},
      {"embedding_scale", 12.0},
      {"residual_scale", 0.2},
      {"final_logit_softcapping", 30.0},
      {"attn_logit_softcapping", 50.0},
      {"attention.sliding_window", 16},
      {"attention.scale", 0.25},
      {"attention.layer_norm_rms_epsilon", std::numeric_limits<double>::quiet_NaN()},
      {"rope.freq_base", std::numeric_limits<double>::infinity()},
      {"attention.value_length", 2},
      {"attention.key_length", 8},
      {"attention.max_alibi_bias", 8.0},
      {"attention.temperature_scale", 0.1},
      {"attention.head_count_kv", std::vector<int64_t>{1, 2}},
      {"rope.dimension_count", 2},
      {"rope.scaling.type", "longrope"},
      {"rope.scaling.attn_factor", 0.5},
      {"rope.scaling.yarn_log_multiplier", 0.1},
      {"rope.scaling.yarn_ext_factor", 1.0},
      {"rope.dimension_sections", std::vector<int64_t>{1, 1}},
      {"embedding_length_out", 4},
      {"some_future_key", 1},
      {"hidden_activation", "gelu"},
      {"general.type", "adapter"},
      {"adapter.lora.alpha", 8.0},
  };
  for (const auto& change : changing) {
    // A length of keys alone is refused for the values', which then are of another.
    const std::string named = change.first == "attention.key_length" ? "value_length" : change.first;
    EXPECT_THAT(error_of({change}), AllOf(HasSubstr("model.gguf"), HasSubstr(named))) << change.first;
  }
}

TEST_P(GgufMetadataTest, RotationsAreScaledAsLlamaCppDoes) {
  const auto scaling = [&](const io::GgufMetadata& changes) {
    const Json json = config(changes);
    return json.contains("rope_scaling") ? json.at("rope_scaling").dump() : "none";
  };
  const std::string linear = R"({"rope_type":"linear","factor":4.0})";
  EXPECT_EQ(scaling({{"rope.scaling.factor", 4.0}}), linear);
  EXPECT_EQ(scaling({{"rope.scaling.type", "linear"}, {"rope.scaling.factor", 4.0}}), linear);
  EXPECT_EQ(scaling({{"rope.scale_linear", 4.0}}), linear);
  EXPECT_EQ(scaling({{"rope.scale_linear", 4.0}, {"rope.scaling.factor", 1.0}}), "none");
  EXPECT_EQ(scaling({{"rope.scaling.type", "none"}, {"rope.scaling.factor", 4.0}}), "none");
  EXPECT_EQ(scaling({{"rope.scaling.type", "yarn"},
                     {"rope.scaling.factor", 4.0},
                     {"rope.scaling.original_context_length", 16},
                     {"rope.scaling.yarn_beta_fast", 16.0}}),
            R"({"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":16,"beta_fast":16.0})");
}

}  // namespace
}  // namespace multihead::models
