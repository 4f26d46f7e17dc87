#include "multihead/core/error.h"
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

using C = LanguageModelConfig;
using R = Row<C>;
using Reader = io::ConfigReader;

// What each layer attends to, where a file says so: all layers must be of the one kind that the rest says.
R::Key layer_types() {
  return {"layer_types", [](Reader& r, const std::string& key, C& c) {
            const std::string kind = c.window > 0 ? "sliding_attention" : "full_attention";
            for (const std::string& given : r.strings_or(key, {})) {
              if (given != kind) r.fail(key, concat("must be ", quote(kind), " for all, got ", quote(given)));
            }
          }};
}

// Layers from max_window_layers on have a window; ours have one for all or none.
R::Key refuse_windows() {
  return {"use_sliding_window", [](Reader& r, const std::string& key, C& c) {
            if (!r.boolean_or(key, false)) return;
            const bool typed = r.has("layer_types");  // which then says more
            if (!typed && r.integer_or("max_window_layers", 28) >= c.num_layers) return;
            if (!typed) r.fail(key, "true is not supported");
          }};
}

ConfigKeys<C> common_keys(Family family) {
  const auto kv_heads = [family](Reader& r, const std::string& key, C& c) {
    const int64_t fallback = family == Family::mistral ? 8 : family == Family::llama ? 0 : 32;
    const Json* given = r.find(key);
    c.num_kv_heads = given == nullptr ? fallback : r.integer_or(key, 0, kSize);
  };
  const auto activation = [](Reader& r, const std::string& key, C& c) {
    c.activation = activation_field(r, key, Activation::silu);
  };
  const auto rotary = [](Reader& r, const std::string&, C& c) { read_rotary(r, c); };
  return {R::integer("vocab_size", &C::vocab_size, kSize),
          R::integer("max_position_embeddings", &C::context, kSize),
          R::integer("hidden_size", &C::embed_dim, kSize),
          R::integer("intermediate_size", &C::ffn_dim, kSize),
          R::integer("num_hidden_layers", &C::num_layers, kLayers),
          R::integer("num_attention_heads", &C::num_heads, kSize),
          {"num_key_value_heads", kv_heads},
          R::integer_or("head_dim", &C::head_dim, family == Family::qwen3 ? 128 : 0, kSize),
          {"hidden_act", activation},
          R::number_or("rms_norm_eps", &C::norm_eps, 1e-6, kPositive),
          {"rope_parameters", rotary},
          R::boolean_or("tie_word_embeddings", &C::tie_embeddings, false),
          R::only("is_encoder_decoder", false),
          R::number_or("attention_dropout", &C::attention_dropout_p, 0, kProbability),
          R::number_or("initializer_range", &C::init_std, 0.02, kPositive),
          R::nothing("max_sequence_length"),  // of Llama's first conversions; nobody reads them
          R::nothing("max_window_layers")};
}

R::Key attention_bias() {
  return {"attention_bias", [](Reader& r, const std::string& key, C& c) {
            c.attention_bias = c.out_bias = r.boolean_or(key, false);
          }};
}

ConfigKeys<C> family_keys(Family family) {
  switch (family) {
    case Family::llama:
      return {attention_bias(), R::boolean_or("mlp_bias", &C::ffn_bias, false),
              R::only("use_sliding_window", false), R::only("sliding_window", Json()), layer_types()};
    case Family::mistral:
      return {{"sliding_window",
               [](Reader& r, const std::string& key, C& c) {
                 const Json* given = r.find(key);
                 c.window = given == nullptr ? 4096 : r.integer_or(key, 0, kSize);
               }},
              R::only("attention_bias", false),
              layer_types()};
    case Family::qwen2:
      return {refuse_windows(), R::nothing("sliding_window"), R::nothing("attention_bias"),
              R::only("use_mrope", false), layer_types()};
    default:  // qwen3
      return {attention_bias(), refuse_windows(), R::nothing("sliding_window"), layer_types()};
  }
}

ConfigKeys<C> llama_keys(Family family) {
  ConfigKeys<C> keys = common_keys(family);
  for (R::Key& key : family_keys(family)) keys.push_back(std::move(key));
  return keys;
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
  LanguageModelConfig c;
  c.positions = Positions::rotary;
  c.norm = nn::NormKind::rms;
  c.gated = true;
  c.attention_bias = family == Family::qwen2;
  c.out_bias = c.ffn_bias = false;
  c.qk_norm = family == Family::qwen3;
  read_keys(r, llama_keys(family), c);
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
