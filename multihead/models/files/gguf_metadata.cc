// The keys of a model's GGUF file: those that are followed, those that change nothing, and those that only
// may hold what changes nothing. All others are refused, since llama.cpp may compute something else for them.
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/models/files/gguf_metadata-inl.h"

#include <algorithm>
#include <cmath>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"

namespace multihead::models {
namespace {

// Read by config(), or by what loads the file: the kind of pooling, which embedders follow.
constexpr const char* kFollowed[] = {
    // sizes
    "context_length", "embedding_length", "block_count", "feed_forward_length",
    // attention
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.layer_norm_rms_epsilon", "attention.sliding_window", "attention.scale",
    // positions
    "rope.dimension_count", "rope.freq_base", "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    // an embedder's
    "pooling_type"};

// Read by no part of these architectures, unless another key that is refused asks for it: the size of the
// vocabulary is the embedding's, experts and windows have their counts.
constexpr const char* kUnread[] = {
    "vocab_size", "tensor_data_layout", "attention.layer_norm_epsilon",
    // of layers with a window
    "attention.sliding_window_pattern", "attention.key_length_swa", "attention.value_length_swa",
    "rope.freq_base_swa", "rope.dimension_count_swa", "rope.scaling.finetuned",
    // of experts
    "expert_used_count", "expert_feed_forward_length", "expert_shared_feed_forward_length",
    "expert_weights_scale", "expert_weights_norm", "expert_gating_func", "interleave_moe_layer_step",
    "moe_every_n_layers",
    // of a classifier
    "classifier.output_labels"};

// Of gemma-embedding alone: windows, and the sizes of matrices after the pooling, which their tensors have.
constexpr const char* kGemma[] = {"attention.sliding_window", "attention.sliding_window_pattern",
                                  "rope.freq_base_swa",       "dense_2_feat_in",
                                  "dense_2_feat_out",         "dense_3_feat_in",
                                  "dense_3_feat_out"};

// Keys that must hold this value, the same as none, or one of these two.
constexpr const char* kZero[] = {
    "use_parallel_residual", "swin_norm", "nextn_predict_layers", "n_deepstack_layers",
    "embedding_length_out", "embedding_length_per_layer_input",
    // experts
    "expert_count", "expert_shared_count", "expert_group_count", "expert_group_used_count",
    "leading_dense_block_count",
    // caps and clamps
    "attn_logit_softcapping", "final_logit_softcapping", "router_logit_softcapping",
    "attention.max_alibi_bias", "attention.clamp_kqv",
    // other attention
    "attention.temperature_length", "attention.temperature_scale", "attention.q_lora_rank",
    "attention.kv_lora_rank", "attention.key_length_mla", "attention.value_length_mla",
    "attention.shared_kv_layers", "attention.relative_buckets_count",
    // positions
    "rope.scaling.yarn_log_multiplier"};
constexpr const char* kOne[] = {"attention.causal", "rope.scaling.attn_factor",
                                "rope.scaling.yarn_attn_factor"};
constexpr const char* kZeroOrOne[] = {"logit_scale",           "embedding_scale",
                                      "residual_scale",        "attention.output_scale",
                                      "attention.value_scale", "rope.scaling.alpha"};

template <class List>
bool holds(const List& list, std::string_view name) {
  return std::any_of(std::begin(list), std::end(list), [&](const char* entry) { return entry == name; });
}

class Metadata {
 public:
  explicit Metadata(const io::GgufFile& file) : file_(file), architecture_(gguf_architecture(file)) {}

  Json config() const {
    check_keys();
    const int64_t heads = size("attention.head_count"), embed_dim = size("embedding_length");
    if (heads < 1 || embed_dim < 1) fail("attention.head_count and embedding_length must be at least 1");
    const int64_t head_dim = size_or("attention.key_length", embed_dim / heads);
    check_head(head_dim, architecture_.is_gemma ? head_dim : embed_dim / heads);
    Json json = Json::object({{"model_type", architecture_.name},
                              {"vocab_size", vocab_size()},
                              {"hidden_size", embed_dim},
                              {"intermediate_size", size("feed_forward_length")},
                              {"num_hidden_layers", size("block_count")},
                              {"num_attention_heads", heads},
                              {"num_key_value_heads", size_or("attention.head_count_kv", heads)},
                              {"head_dim", head_dim},
                              {"hidden_act", "silu"},
                              {"max_position_embeddings", size("context_length")},
                              {"rms_norm_eps", shortest("attention.layer_norm_rms_epsilon")},
                              {"tie_word_embeddings", !file_.tensors().contains("output.weight")}});
    json["rope_theta"] = has("rope.freq_base") ? shortest("rope.freq_base") : Json(10000.0);
    if (Json scaling = rope_scaling(); !scaling.is_null()) json["rope_scaling"] = std::move(scaling);
    if (architecture_.interleaved) {
      json["attention_bias"] = file_.tensors().contains("blk.0.attn_q.bias");
      json["mlp_bias"] = file_.tensors().contains("blk.0.ffn_down.bias");
    }
    return architecture_.is_gemma ? gemma_config(json, head_dim) : json;
  }

 private:
  // EmbeddingGemma, of which llama.cpp knows what its files leave out: every sixth layer sees all, the others
  // `sliding_window` tokens, half of them after the token.
  Json gemma_config(Json json, int64_t head_dim) const {
    json["model_type"] = "gemma3_text";
    json["architectures"] = Json(std::vector<Json>{Json("Gemma3TextModel")});
    json["use_bidirectional_attention"] = true;
    json["sliding_window"] = size("attention.sliding_window");
    json["sliding_window_pattern"] = size_or("attention.sliding_window_pattern", 6);
    json["query_pre_attn_scalar"] = head_dim;
    json["rope_local_base_freq"] = has("rope.freq_base_swa") ? shortest("rope.freq_base_swa") : Json(10000.0);
    json["hidden_activation"] = "gelu_pytorch_tanh";
    json.erase("hidden_act");
    return json;
  }

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... problem) const {
    throw FormatError(concat(file_.path(), ": ", problem...));
  }
  std::string key(std::string_view name) const { return concat(architecture_.name, ".", name); }
  bool has(const char* name) const { return file_.has(key(name)); }

  // A list has a value for each layer, which must be the same here.
  int64_t size(const char* name) const {
    if (!file_.is_array(key(name))) return file_.integer(key(name));
    const std::vector<int64_t> list = file_.integers(key(name));
    if (list.empty() || std::any_of(list.begin(), list.end(), [&](int64_t x) { return x != list[0]; }))
      fail(key(name), " must be the same for all layers; others are not supported");
    return list[0];
  }
  int64_t size_or(const char* name, int64_t missing) const { return has(name) ? size(name) : missing; }
  double number_or(const char* name, double missing) const {
    return has(name) ? file_.number(key(name)) : missing;
  }
  // An f32 as the short decimal it was made of.
  Json shortest(const char* name) const { return Json(static_cast<float>(file_.number(key(name)))); }

  int64_t vocab_size() const {
    const auto found = file_.tensors().find("token_embd.weight");
    if (found == file_.tensors().end() || found->second.shape.size() != 2)
      fail("the matrix token_embd.weight is missing");
    return found->second.shape[0];
  }

  void check_keys() const {
    const std::string type = "general.type";
    if (file_.is_string(type) && file_.string(type) != "model")
      fail(type, " ", quote(file_.string(type)), " is not supported; expected \"model\"");
    const std::string own = key("");
    for (const std::string& name : file_.keys()) {
      if (name.starts_with("adapter.")) fail(name, " is not supported: this is an adapter, not a model");
      if (name.starts_with(own)) check_key(name, std::string_view(name).substr(own.size()));
    }
  }

  void check_key(const std::string& full, std::string_view name) const {
    if (holds(kFollowed, name) || holds(kUnread, name)) return;
    if (architecture_.is_gemma && (holds(kGemma, name) || name == "attention.causal")) return;
    const bool may_be_either = holds(kZeroOrOne, name), is_one = holds(kOne, name);
    if (!may_be_either && !is_one && !holds(kZero, name)) {
      fail(full, " is not supported: what it means is unknown here, and it may change the model");
    }
    const double expected = is_one ? 1 : 0;
    for (const double value : values(full)) {
      if (value != expected && !(may_be_either && value == 1))
        fail(full, " is not supported: expected ", expected, ", got ", value);
    }
  }

  std::vector<double> values(const std::string& full) const {
    if (file_.is_array(full)) return file_.numbers(full);
    return {file_.is_boolean(full) ? (file_.boolean(full) ? 1.0 : 0.0) : file_.number(full)};
  }

  void check_head(int64_t head_dim, int64_t usual) const {
    if (size_or("rope.dimension_count", head_dim) != head_dim)
      fail(key("rope.dimension_count"), " must be ", head_dim, ", a head's size; others are not supported");
    if (const int64_t length = size_or("attention.value_length", usual); length != head_dim) {
      fail(key("attention.value_length"), " must be ", head_dim, ", the length of keys, got ", length,
           "; others are not supported");
    }
    const double window = number_or("attention.sliding_window", 0);
    if (window != 0 && window < static_cast<double>(size("context_length")) && !architecture_.is_gemma)
      fail(key("attention.sliding_window"), " is not supported, got ", window);
    const auto scale = static_cast<float>(number_or("attention.scale", 0));
    if (scale != 0 && scale != static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim))))
      fail(key("attention.scale"), " is not supported, got ", scale);
  }

  // As llama.cpp reads it: a factor without a type is linear, 0 is none, and the old key counts where the new
  // one is missing.
  Json rope_scaling() const {
    const std::string type_key = key("rope.scaling.type");
    const std::string type = file_.has(type_key) ? file_.string(type_key) : "linear";
    if (type != "none" && type != "linear" && type != "yarn")
      fail(type_key, " is not supported: expected none, linear or yarn, got ", quote(type));
    const bool is_yarn = type == "yarn";
    const double mixed = number_or("rope.scaling.yarn_ext_factor", -1);
    if (mixed >= 0 && mixed != (is_yarn ? 1 : 0))
      fail(key("rope.scaling.yarn_ext_factor"), " is not supported, got ", mixed);
    const double factor = number_or("rope.scaling.factor", number_or("rope.scale_linear", 0));
    if (!(factor >= 0 && factor < 1e9)) fail(key("rope.scaling.factor"), " must be positive, got ", factor);
    if (type == "none" || factor == 0 || factor == 1) return {};
    Json json = Json::object({{"rope_type", type}, {"factor", Json(static_cast<float>(factor))}});
    if (!is_yarn) return json;
    json["original_max_position_embeddings"] =
        size_or("rope.scaling.original_context_length", size("context_length"));
    if (has("rope.scaling.yarn_beta_fast")) json["beta_fast"] = shortest("rope.scaling.yarn_beta_fast");
    if (has("rope.scaling.yarn_beta_slow")) json["beta_slow"] = shortest("rope.scaling.yarn_beta_slow");
    return json;
  }

  const io::GgufFile& file_;
  const GgufArchitecture& architecture_;
};

}  // namespace

const GgufArchitecture& gguf_architecture(const io::GgufFile& file) {
  const std::string name = file.string("general.architecture");
  Enumeration known;
  for (const GgufArchitecture& architecture : kGgufArchitectures) {
    if (architecture.name == name) return architecture;
    known.add(architecture.name);
  }
  throw FormatError(concat(file.path(), ": general.architecture ", quote(name),
                           " is not supported; supported are ", known));
}

Json gguf_config(const io::GgufFile& file) { return Metadata(file).config(); }

}  // namespace multihead::models
