// Every flag of every family, on and off: it changes the model as transformers does, or the folder is refused
// by the flag's name, or it is known to change nothing. python/tests/test_model_configs.py compares with
// transformers.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "multihead/core/error.h"
#include "multihead/io/json.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/models/testing-inl.h"

namespace multihead::models {
namespace {

namespace fs = std::filesystem;

// The keys that transformers' classes of our families read, or did.
constexpr const char* kFlags[] = {"_remove_final_layer_norm",
                                  "add_bias_logits",
                                  "add_cross_attention",
                                  "add_final_layer_norm",
                                  "attention_bias",
                                  "classifier_bias",
                                  "decoder_bias",
                                  "do_layer_norm_before",
                                  "enable_bias",
                                  "is_causal",
                                  "is_decoder",
                                  "is_encoder_decoder",
                                  "is_gated_act",
                                  "layer_norm_elementwise_affine",
                                  "lm_head_bias",
                                  "mlp_bias",
                                  "norm_bias",
                                  "normalize_before",
                                  "normalize_embedding",
                                  "qk_layernorm",
                                  "qkv_bias",
                                  "reorder_and_upcast_attn",
                                  "rope_interleave",
                                  "rope_interleaved",
                                  "scale_attn_by_inverse_layer_idx",
                                  "scale_attn_weights",
                                  "scale_embedding",
                                  "share_encoder_decoder_embeddings",
                                  "sinusoidal_pos_embds",
                                  "sparse_prediction",
                                  "static_position_embeddings",
                                  "tie_encoder_decoder",
                                  "tie_word_embeddings",
                                  "token_classification_bias",
                                  "use_bidirectional_attention",
                                  "use_mrope",
                                  "use_parallel_residual",
                                  "use_qk_norm",
                                  "use_sliding_window",
                                  "a_flag_of_tomorrow"};

// Which of them change no logits, whatever they say: each is neutral in transformers too.
const std::set<std::string> kNeutral = {
    "is_decoder",               // of decoders; encoders refuse it
    "is_encoder_decoder",       // of a T5 that is read for its encoder
    "attention_bias",           // of Qwen 2, which has biases whatever it says
    "reorder_and_upcast_attn",  // precision of half types
    "multi_query",              // of Falcon's newer arrangement, which says it otherwise
    "scale_decoder_outputs",
    "slow_but_exact",  // of BLOOM: the same sum in parts
    "sinusoidal_pos_embds",
    "sparse_prediction",
    "tie_word_embeddings",
    "use_cache",
    "use_sliding_window",  // of Qwen: layer_types decides
    "output_past",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "torchscript",
    "use_bfloat16",
    "remove_invalid_values",
    "do_sample",
    "early_stopping",
    "return_dict_in_generate",
    "output_scores",
    "tf_legacy_loss",
    "gradient_checkpointing",
    "deterministic_flash_attn",
    "repad_logits_with_grad",
    "summary_use_proj",
    "summary_proj_to_labels",
    "tie_weights_",
    "reference_compile"};

struct Counts {
  int honoured = 0, refused = 0, neutral = 0, same = 0;
};

template <class Read>
void flip_all(const fs::path& folder, Read read, Counts& counts) {
  const std::string name = folder.filename().string();
  const Json base = io::load_json((folder / "config.json").string());
  std::set<std::string> flags(std::begin(kFlags), std::end(kFlags));
  for (const JsonMember& member : base.members()) {
    if (member.value.is_bool()) flags.emplace(member.key);
  }
  const auto config = read(base, name);
  for (const std::string& flag : flags) {
    for (const bool value : {false, true}) {
      const Json* given = base.find(flag);
      if (given != nullptr && *given == Json(value)) continue;
      Json json = base;
      json[flag] = value;
      try {
        if (!(read(json, name) == config)) {
          ++counts.honoured;
          continue;
        }
      } catch (const FormatError& error) {
        EXPECT_NE(std::string(error.what()).find(flag), std::string::npos) << name << ": " << error.what();
        ++counts.refused;
        continue;
      }
      // The value that the family has anyway: its opposite must not be passed over.
      json[flag] = !value;
      bool differs = false;
      try {
        differs = !(read(json, name) == config);
      } catch (const FormatError&) {
        differs = true;
      }
      EXPECT_TRUE(differs || kNeutral.contains(flag)) << name << ": " << flag << " changes nothing";
      ++(differs ? counts.same : counts.neutral);
    }
  }
}

TEST(ConfigFlagsTest, EveryFlagOfEveryFamilyIsHonouredOrRefused) {
  Counts counts;
  const auto each = [&](const char* kind, auto read) {
    for (const auto& entry : fs::directory_iterator(kData / kind)) {
      if (entry.is_directory()) flip_all(entry.path(), read, counts);
    }
  };
  each("hugging_face", config_from_json);
  each("seq2seq", seq2seq_config_from_json);
  flip_all(kData / "marian", seq2seq_config_from_json, counts);
  each("encoders", encoder_config_from_json);
  each("images", image_encoder_config_from_json);
  RecordProperty("honoured", counts.honoured);
  RecordProperty("refused", counts.refused);
  RecordProperty("neutral", counts.neutral);
  EXPECT_GT(counts.honoured, 50);
  EXPECT_GT(counts.refused, 1000);
}

}  // namespace
}  // namespace multihead::models
