// GPT-2 as Hugging Face keeps it.
#include "multihead/core/error.h"
#include "multihead/models/hugging_face-inl.h"

namespace multihead::models::detail {

bool is_gpt2(const LanguageModelConfig& c) {
  return c.window == 0 && c.positions == Positions::learned && c.norm == nn::NormKind::layer &&
         c.norm_first && c.final_norm && !c.gated && !c.qk_norm && c.attention_bias && c.out_bias &&
         c.ffn_bias && !c.head_bias && !c.scale_embeddings && c.num_kv_heads == c.num_heads &&
         c.head_dim * c.num_heads == c.embed_dim;
}

Json gpt2_json(const LanguageModelConfig& c) {
  return Json::object({{"architectures", Json(std::vector<Json>{"GPT2LMHeadModel"})},
                       {"model_type", "gpt2"},
                       {"vocab_size", c.vocab_size},
                       {"n_positions", c.context},
                       {"n_embd", c.embed_dim},
                       {"n_layer", c.num_layers},
                       {"n_head", c.num_heads},
                       {"n_inner", c.ffn_dim},
                       {"activation_function", activation_name(c.activation)},
                       {"resid_pdrop", c.dropout_p},
                       {"embd_pdrop", c.dropout_p},
                       {"attn_pdrop", c.attention_dropout_p},
                       {"layer_norm_epsilon", c.norm_eps},
                       {"initializer_range", c.init_std},
                       {"tie_word_embeddings", c.tie_embeddings}});
}

namespace {

using C = LanguageModelConfig;

ConfigKeys<C> gpt2_keys() {
  using R = Row<C>;
  const auto activation = [](io::ConfigReader& r, const std::string& key, C& c) {
    c.activation = activation_field(r, key, Activation::gelu_tanh);
  };
  return {R::integer("vocab_size", &C::vocab_size, kSize),
          R::integer("n_positions", &C::context, kSize),
          R::alias("max_position_embeddings", "n_positions"),
          R::integer("n_embd", &C::embed_dim, kSize),
          R::alias("hidden_size", "n_embd"),
          R::integer("n_layer", &C::num_layers, kLayers),
          R::alias("num_hidden_layers", "n_layer"),
          R::integer("n_head", &C::num_heads, kSize),
          R::alias("num_attention_heads", "n_head"),
          R::integer_or("n_inner", &C::ffn_dim, 0, kSize),
          {"activation_function", activation},
          R::number_or("layer_norm_epsilon", &C::norm_eps, 1e-5, kPositive),
          R::boolean_or("tie_word_embeddings", &C::tie_embeddings, true),
          R::only("scale_attn_weights", true),
          R::only("scale_attn_by_inverse_layer_idx", false),
          R::only("is_encoder_decoder", false),
          R::number_or("resid_pdrop", &C::dropout_p, 0.1, kProbability),
          R::number_or("attn_pdrop", &C::attention_dropout_p, 0.1, kProbability),
          R::number_or("initializer_range", &C::init_std, 0.02, kPositive),
          R::nothing("embd_pdrop"),
          R::nothing("reorder_and_upcast_attn"),  // precision of half types
          R::nothing("n_ctx"),                    // n_positions, before it was named so
          R::nothing("n_special"),                // the first GPT's
          R::nothing("predict_special_tokens"),
          R::nothing("summary_type"),
          R::nothing("summary_use_proj"),
          R::nothing("summary_activation"),
          R::nothing("summary_proj_to_labels"),
          R::nothing("summary_first_dropout"),
          R::nothing("summary_last_dropout"),
          R::nothing("hidden_dropout")};
}

void add_gpt2_layer(WeightMap& map, const std::string& ours, const std::string& theirs) {
  const auto add = [&](const char* our_name, const char* their_name, bool matrix) {
    for (const char* kind : {".weight", ".bias"}) {
      map.push_back({ours + our_name + kind, {{theirs + their_name + kind}}, matrix});
    }
  };
  map.push_back({ours + "self_attn.in_proj_weight", {{theirs + "attn.c_attn.weight"}}, true});
  map.push_back({ours + "self_attn.in_proj_bias", {{theirs + "attn.c_attn.bias"}}});
  add("self_attn.out_proj", "attn.c_proj", true);
  add("linear1", "mlp.c_fc", true);
  add("linear2", "mlp.c_proj", true);
  add("norm1", "ln_1", false);
  add("norm2", "ln_2", false);
}

}  // namespace

WeightMap gpt2_map(const LanguageModelConfig& c) {
  WeightMap map = {{"token_embedding.weight", {{"transformer.wte.weight"}}},
                   {"position_embedding.weight", {{"transformer.wpe.weight"}}},
                   {"final_norm.weight", {{"transformer.ln_f.weight"}}},
                   {"final_norm.bias", {{"transformer.ln_f.bias"}}}};
  for (int64_t i = 0; i < c.num_layers; ++i) {
    add_gpt2_layer(map, concat("layers.", i, "."), concat("transformer.h.", i, "."));
  }
  if (!c.tie_embeddings) map.push_back({"head.weight", {{"lm_head.weight"}}});
  return map;
}

LanguageModelConfig gpt2_config(io::ConfigReader& r) {
  static const ConfigKeys<C> keys = gpt2_keys();
  LanguageModelConfig c;
  read_keys(r, keys, c);
  return c;
}

}  // namespace multihead::models::detail
