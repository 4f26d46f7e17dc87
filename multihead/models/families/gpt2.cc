// GPT-2 as Hugging Face keeps it.
#include "multihead/core/error.h"
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail::gpt2 {
namespace {

using C = LanguageModelConfig;

bool is_gpt2(const C& c) {
  return c.positions == Positions::learned && c.norm == nn::NormKind::layer && c.norm_first && c.final_norm &&
         !c.gated && c.attention_bias && c.out_bias && c.ffn_bias && !c.head_bias && !c.scale_embeddings &&
         c.num_kv_heads == c.num_heads && c.head_dim * c.num_heads == c.embed_dim;
}

ConfigKeys<C> keys() {
  using R = Row<C>;
  return R::with_nothing({R::field("vocab_size", &C::vocab_size),
                          R::field("n_positions", &C::context),
                          R::alias("max_position_embeddings", "n_positions"),
                          R::field("n_embd", &C::embed_dim),
                          R::alias("hidden_size", "n_embd"),
                          R::field("n_layer", &C::num_layers),
                          R::alias("num_hidden_layers", "n_layer"),
                          R::field("n_head", &C::num_heads),
                          R::alias("num_attention_heads", "n_head"),
                          R::field("n_inner", &C::ffn_dim, 0),
                          R::field("activation_function", &C::activation, Activation::gelu_tanh),
                          R::field("resid_pdrop", &C::dropout_p, 0.1),
                          R::copy("embd_pdrop", &C::dropout_p),
                          R::field("attn_pdrop", &C::attention_dropout_p, 0.1),
                          R::field("layer_norm_epsilon", &C::norm_eps, 1e-5),
                          R::field("initializer_range", &C::init_std, 0.02),
                          R::field("tie_word_embeddings", &C::tie_embeddings, true),
                          R::only("scale_attn_weights", true),
                          R::only("scale_attn_by_inverse_layer_idx", false),
                          R::only("is_encoder_decoder", false)},
                         {"reorder_and_upcast_attn",              // precision of half types
                          "n_ctx",                                // n_positions, before it was named so
                          "n_special", "predict_special_tokens",  // the first GPT's
                          "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
                          "summary_first_dropout", "summary_last_dropout", "hidden_dropout"});
}

void add_layer(WeightMap& map, const std::string& ours, const std::string& theirs) {
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

WeightMap map(const C& c) {
  WeightMap map = {{"token_embedding.weight", {{"transformer.wte.weight"}}},
                   {"position_embedding.weight", {{"transformer.wpe.weight"}}},
                   {"final_norm.weight", {{"transformer.ln_f.weight"}}},
                   {"final_norm.bias", {{"transformer.ln_f.bias"}}}};
  for (int64_t i = 0; i < c.num_layers; ++i) {
    add_layer(map, concat("layers.", i, "."), concat("transformer.h.", i, "."));
  }
  if (!c.tie_embeddings) map.push_back({"head.weight", {{"lm_head.weight"}}});
  return map;
}

std::vector<ExtraTensor> extras(const C& c) {
  std::vector<ExtraTensor> list = {{".attn.bias"}, {".attn.masked_bias"}};  // the triangle of causality
  if (c.tie_embeddings) {
    list.push_back(repeated_tensor("lm_head.weight", "transformer.wte.weight", "transformer."));
  }
  return list;
}

}  // namespace

Family<C> gpt2() {
  return {.name = "gpt2",
          .architecture = "GPT2LMHeadModel",
          .expresses = is_gpt2,
          .keys = keys(),
          .map = map,
          .prefix = "transformer.",
          .extras = extras};
}

}  // namespace multihead::models::detail::gpt2
