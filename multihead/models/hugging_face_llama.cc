#include "multihead/models/hugging_face-inl.h"

namespace multihead::models::detail {
namespace {

std::string architecture(Family family) {
  switch (family) {
    case Family::mistral:
      return "MistralForCausalLM";
    case Family::qwen2:
      return "Qwen2ForCausalLM";
    case Family::qwen3:
      return "Qwen3ForCausalLM";
    default:
      return "LlamaForCausalLM";
  }
}

// Their layers may have windows from some layer on; ours have one for all or none.
void refuse_windows(io::ConfigReader& r) {
  if (r.boolean_or("use_sliding_window", false)) r.fail("use_sliding_window", "true is not supported");
  r.ignore({"sliding_window", "max_window_layers"});
  for (const std::string& kind : r.strings_or("layer_types", {})) {
    if (kind != "full_attention") r.fail("layer_types", "only full_attention is supported");
  }
}

void add_llama_layer(WeightMap& map, const LanguageModelConfig& c, const std::string& ours,
                     const std::string& theirs) {
  const int64_t query_rows = c.num_heads * c.head_dim, key_rows = c.num_kv_heads * c.head_dim;
  for (const char* kind : {"weight", "bias"}) {
    const bool bias = kind[0] == 'b';
    if (!bias || c.attention_bias) {
      const std::string attention = theirs + "self_attn.";
      map.push_back({ours + "self_attn.in_proj_" + kind,
                     {{attention + "q_proj." + kind, query_rows},
                      {attention + "k_proj." + kind, key_rows},
                      {attention + "v_proj." + kind, key_rows}}});
    }
    if (!bias || c.out_bias) {
      map.push_back({ours + "self_attn.out_proj." + kind, {{theirs + "self_attn.o_proj." + kind}}});
    }
    if (!bias || c.ffn_bias) {
      map.push_back(
          {ours + "linear1." + kind,
           {{theirs + "mlp.gate_proj." + kind, c.ffn_dim}, {theirs + "mlp.up_proj." + kind, c.ffn_dim}}});
      map.push_back({ours + "linear2." + kind, {{theirs + "mlp.down_proj." + kind}}});
    }
  }
  if (c.qk_norm) {
    map.push_back({ours + "self_attn.q_norm.weight", {{theirs + "self_attn.q_norm.weight"}}});
    map.push_back({ours + "self_attn.k_norm.weight", {{theirs + "self_attn.k_norm.weight"}}});
  }
  map.push_back({ours + "norm1.weight", {{theirs + "input_layernorm.weight"}}});
  map.push_back({ours + "norm2.weight", {{theirs + "post_attention_layernorm.weight"}}});
}

}  // namespace

Family llama_family(const LanguageModelConfig& c) {
  const bool like_llama = c.positions == Positions::rotary && c.rotary_layout == RotaryLayout::halves &&
                          c.rotary_fraction == 1 && c.norm == nn::NormKind::rms && c.norm_first &&
                          c.final_norm && c.gated && !c.head_bias && !c.scale_embeddings;
  const bool biased = c.attention_bias || c.out_bias || c.ffn_bias;
  if (!like_llama) return Family::multihead;
  if (c.window > 0) return biased || c.qk_norm ? Family::multihead : Family::mistral;
  if (c.attention_bias != c.out_bias) {
    return c.out_bias || c.ffn_bias || c.qk_norm ? Family::multihead : Family::qwen2;
  }
  if (!c.qk_norm) return Family::llama;
  return c.ffn_bias ? Family::multihead : Family::qwen3;
}

Json llama_json(const LanguageModelConfig& c, Family family) {
  Json json = Json::object({{"architectures", Json(std::vector<Json>{architecture(family)})},
                            {"model_type", family_name(family)},
                            {"vocab_size", c.vocab_size},
                            {"max_position_embeddings", c.context},
                            {"hidden_size", c.embed_dim},
                            {"intermediate_size", c.ffn_dim},
                            {"num_hidden_layers", c.num_layers},
                            {"num_attention_heads", c.num_heads},
                            {"num_key_value_heads", c.num_kv_heads},
                            {"head_dim", c.head_dim},
                            {"hidden_act", activation_name(c.activation)},
                            {"rms_norm_eps", c.norm_eps},
                            {"attention_dropout", c.attention_dropout_p},
                            {"initializer_range", c.init_std},
                            {"tie_word_embeddings", c.tie_embeddings}});
  write_rotary(c, json);
  if (family == Family::mistral) json["sliding_window"] = c.window;
  if (family == Family::llama || family == Family::qwen3) json["attention_bias"] = c.attention_bias;
  if (family == Family::llama) json["mlp_bias"] = c.ffn_bias;
  return json;
}

// Defaults are those of transformers, which differ between the families.
LanguageModelConfig llama_config(io::ConfigReader& r, Family family) {
  const bool mistral = family == Family::mistral;
  LanguageModelConfig c;
  c.positions = Positions::rotary;
  c.norm = nn::NormKind::rms;
  c.gated = true;
  c.vocab_size = r.integer("vocab_size", kSize);
  c.context = r.integer("max_position_embeddings", kSize);
  c.embed_dim = r.integer("hidden_size", kSize);
  c.ffn_dim = r.integer("intermediate_size", kSize);
  c.num_layers = r.integer("num_hidden_layers", {.min = 1, .max = 1 << 16});
  c.num_heads = r.integer("num_attention_heads", kSize);
  c.num_kv_heads = r.optional_integer("num_key_value_heads", kSize).value_or(mistral ? 8 : 0);
  c.head_dim = r.optional_integer("head_dim", kSize).value_or(family == Family::qwen3 ? 128 : 0);
  c.activation = activation_field(r, "hidden_act", Activation::silu);
  c.norm_eps = r.number_or("rms_norm_eps", 1e-6, kPositive);
  read_rotary(r, c);
  c.attention_bias = c.out_bias = c.ffn_bias = false;
  if (mistral) {
    const Json* given = r.find("sliding_window");
    c.window = given == nullptr ? 4096 : r.optional_integer("sliding_window", kSize).value_or(0);
  } else if (family == Family::qwen2) {
    c.attention_bias = true;
  } else {
    c.attention_bias = c.out_bias = r.boolean_or("attention_bias", false);
  }
  if (family == Family::llama) c.ffn_bias = r.boolean_or("mlp_bias", false);
  c.qk_norm = family == Family::qwen3;
  if (family == Family::qwen2 || family == Family::qwen3) refuse_windows(r);
  c.attention_dropout_p = r.number_or("attention_dropout", 0, kProbability);
  c.init_std = r.number_or("initializer_range", 0.02, kPositive);
  c.tie_embeddings = r.boolean_or("tie_word_embeddings", false);
  r.ignore({"pretraining_tp"});
  return c;
}

WeightMap llama_map(const LanguageModelConfig& c) {
  WeightMap map = {{"token_embedding.weight", {{"model.embed_tokens.weight"}}},
                   {"final_norm.weight", {{"model.norm.weight"}}}};
  for (int64_t i = 0; i < c.num_layers; ++i) {
    add_llama_layer(map, c, concat("layers.", i, "."), concat("model.layers.", i, "."));
  }
  if (!c.tie_embeddings) map.push_back({"head.weight", {{"lm_head.weight"}}});
  return map;
}

}  // namespace multihead::models::detail
