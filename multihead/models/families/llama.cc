#include "multihead/models/families/llama-inl.h"

#include "multihead/core/error.h"

namespace multihead::models::detail::llama {
namespace {

using C = LanguageModelConfig;
using R = Row<C>;
using Reader = io::ConfigReader;

Keys common_keys(Defaults defaults) {
  const auto kv_heads = [=](Reader& r, const std::string& key, C& c) {
    c.num_kv_heads = r.find(key) == nullptr ? defaults.num_kv_heads : r.integer_or(key, 0, kSize);
  };
  return R::joined({size_keys<C>(),
                    {R::key("num_key_value_heads", &C::num_kv_heads, kv_heads),
                     R::field("head_dim", &C::head_dim, defaults.head_dim),
                     R::field(defaults.activation_key, &C::activation, defaults.activation),
                     R::field("rms_norm_eps", &C::norm_eps, defaults.norm_eps),
                     R::field("attention_dropout", &C::attention_dropout_p, 0),
                     R::field("initializer_range", &C::init_std, 0.02),
                     R::field("tie_word_embeddings", &C::tie_embeddings, defaults.tied),
                     rotary_key({.default_base = defaults.rotary_base}),
                     R::only("is_encoder_decoder", false),
                     {"max_sequence_length"},  // of Llama's first conversions; nothing reads it
                     {"max_window_layers"}}});
}

WeightMap map(const C& c) { return weight_map(c, add_layer_weights); }

std::vector<ExtraTensor> extras(const C& c) {
  std::vector<ExtraTensor> list = {rotary_buffers(c)};
  if (c.tie_embeddings)
    list.push_back(repeated_tensor("lm_head.weight", "model.embed_tokens.weight", "model."));
  return list;
}

bool is_llama(const C& c) { return is_like(c) && c.attention_bias == c.out_bias; }

}  // namespace

void add_layer_weights(WeightMap& map, const C& c, const std::string& ours, const std::string& theirs) {
  const int64_t query_rows = c.num_heads * c.head_dim, key_rows = c.num_kv_heads * c.head_dim;
  add_projections(
      map, ours + "self_attn",
      {theirs + "self_attn.", {"q_proj", "k_proj", "v_proj"}, query_rows, key_rows, c.attention_bias});
  add_pair(map, ours + "self_attn.out_proj", theirs + "self_attn.o_proj", c.out_bias);
  if (c.qk_norm) {
    add_pairs(map, ours + "self_attn.", theirs + "self_attn.", {{"q_norm", "q_norm"}, {"k_norm", "k_norm"}},
              false);
  }
  add_network_weights(map, c, ours, theirs);
}

void add_network_weights(WeightMap& map, const C& c, const std::string& ours, const std::string& theirs) {
  const std::string mlp = theirs + "mlp.";
  for (const char* kind : {".weight", ".bias"}) {
    if (kind[1] == 'b' && !c.ffn_bias) continue;
    map.push_back({concat(ours, "linear1", kind),
                   {{concat(mlp, "gate_proj", kind), c.ffn_dim}, {concat(mlp, "up_proj", kind), c.ffn_dim}}});
  }
  add_pair(map, ours + "linear2", mlp + "down_proj", c.ffn_bias);
  add_pairs(map, ours, theirs, {{"norm1", "input_layernorm"}, {"norm2", "post_attention_layernorm"}}, false);
}

void add_post_norms(WeightMap& map, const std::string& ours, const std::string& theirs) {
  add_pairs(map, ours, theirs,
            {{"post_norm1", "post_attention_layernorm"}, {"post_norm2", "post_feedforward_layernorm"}},
            false);
}

WeightMap weight_map(const C& c, AddLayer add_layer) {
  WeightMap map = {{"token_embedding.weight", {{"model.embed_tokens.weight"}}},
                   {"final_norm.weight", {{"model.norm.weight"}}}};
  for (int64_t i = 0; i < c.num_layers; ++i) {
    add_layer(map, c, concat("layers.", i, "."), concat("model.layers.", i, "."));
  }
  if (!c.tie_embeddings) map.push_back({"head.weight", {{"lm_head.weight"}}});
  return map;
}

bool is_like(const C& c) {
  return c.positions == Positions::rotary && c.norm == nn::NormKind::rms && c.norm_first && c.final_norm &&
         c.gated && !c.head_bias && !c.scale_embeddings;
}

Keys::value_type layer_types() {
  return {"layer_types", [](Reader& r, const std::string& key, C& c) {
            const std::string kind = c.window > 0 ? "sliding_attention" : "full_attention";
            for (const std::string& given : r.strings_or(key, {})) {
              if (given != kind) r.fail(key, concat("must be ", quote(kind), " for all, got ", quote(given)));
            }
          }};
}

Keys::value_type refuse_windows() {
  return {"use_sliding_window", [](Reader& r, const std::string& key, C& c) {
            if (!r.boolean_or(key, false)) return;
            const bool typed = r.has("layer_types");  // which then says more
            if (!typed && r.integer_or("max_window_layers", 28) >= c.num_layers) return;
            if (!typed) r.fail(key, "true is not supported");
          }};
}

Keys::value_type no_padding() {
  return {"pad_token_id", {}, [](const C&, const std::string& key, Json& json) { json[key] = Json(); }};
}

Keys::value_type attention_bias() {
  return R::key("attention_bias", &C::attention_bias, [](Reader& r, const std::string& key, C& c) {
    c.attention_bias = c.out_bias = r.boolean_or(key, false);
  });
}

Family<C> derive(const char* name, const char* architecture, bool (*expresses)(const C&), const Keys& keys,
                 Defaults defaults) {
  Family<C> family = {.name = name,
                      .architecture = architecture,
                      .expresses = expresses,
                      .keys = R::joined({common_keys(defaults), keys}),
                      .map = map,
                      .prefix = "model.",
                      .extras = extras};
  C& c = family.defaults;
  c.positions = Positions::rotary;
  c.norm = nn::NormKind::rms;
  c.gated = true;
  c.attention_bias = c.out_bias = c.ffn_bias = false;
  return family;
}

Family<C> llama() {
  return derive("llama", "LlamaForCausalLM", is_llama,
                {attention_bias(), R::field("mlp_bias", &C::ffn_bias, false),
                 R::only("use_sliding_window", false), R::only("sliding_window", Json()), layer_types()});
}

}  // namespace multihead::models::detail::llama
