// OPT: GPT-2's plan with relu, separate projections and a table of positions that begins two rows late.
#include "multihead/core/error.h"
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail::opt {
namespace {

using C = LanguageModelConfig;

constexpr int64_t kOffset = 2;

bool is_opt(const C& c) {
  return c.positions == Positions::learned && c.norm == nn::NormKind::layer && c.norm_first && c.final_norm &&
         !c.gated && c.attention_bias == c.ffn_bias && c.out_bias == c.ffn_bias && !c.head_bias &&
         !c.scale_embeddings && c.num_kv_heads == c.num_heads && c.head_dim * c.num_heads == c.embed_dim &&
         c.norm_eps == 1e-5;
}

ConfigKeys<C> keys() {
  using R = Row<C>;
  const auto biases = [](io::ConfigReader& r, const std::string& key, C& c) {
    c.attention_bias = c.out_bias = c.ffn_bias = r.boolean_or(key, true);
  };
  const auto project = [](io::ConfigReader& r, const std::string& key, C& c) {
    const int64_t width = r.integer_or(key, c.embed_dim);
    if (width != c.embed_dim) r.fail(key, concat("must be hidden_size ", c.embed_dim, ", got ", width));
  };
  return R::with_nothing(
      {R::field("vocab_size", &C::vocab_size), R::field("max_position_embeddings", &C::context),
       R::field("hidden_size", &C::embed_dim), R::field("ffn_dim", &C::ffn_dim),
       R::field("num_hidden_layers", &C::num_layers), R::field("num_attention_heads", &C::num_heads),
       R::field("activation_function", &C::activation, Activation::relu),
       R::field("dropout", &C::dropout_p, 0.1), R::field("attention_dropout", &C::attention_dropout_p, 0),
       R::field("init_std", &C::init_std, 0.02), R::field("tie_word_embeddings", &C::tie_embeddings, true),
       R::key("enable_bias", &C::attention_bias, biases),
       R::key("word_embed_proj_dim", &C::embed_dim, project), R::only("do_layer_norm_before", true),
       R::only("_remove_final_layer_norm", false), R::only("layer_norm_elementwise_affine", true)},
      {"layerdrop"});
}

WeightMap map(const C& c) {
  const std::string root = "model.decoder.";
  WeightMap map = {{"token_embedding.weight", {{root + "embed_tokens.weight"}}},
                   {"position_embedding.weight", {{root + "embed_positions.weight"}}}};
  if (!c.tie_embeddings) map.push_back({"head.weight", {{"lm_head.weight"}}});
  add_pair(map, "final_norm", root + "final_layer_norm");
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string ours = concat("layers.", i, "."), theirs = concat(root, "layers.", i, ".");
    add_projections(
        map, ours + "self_attn",
        {theirs + "self_attn.", {"q_proj", "k_proj", "v_proj"}, c.embed_dim, c.embed_dim, c.ffn_bias});
    add_pairs(map, ours, theirs, {{"norm1", "self_attn_layer_norm"}, {"norm2", "final_layer_norm"}});
    add_pairs(map, ours, theirs,
              {{"self_attn.out_proj", "self_attn.out_proj"}, {"linear1", "fc1"}, {"linear2", "fc2"}},
              c.ffn_bias);
  }
  return map;
}

std::vector<ExtraTensor> extras(const C& c) {
  if (!c.tie_embeddings) return {};
  return {repeated_tensor("lm_head.weight", "model.decoder.embed_tokens.weight", "model.")};
}

}  // namespace

Family<C> opt() {
  Family<C> family = {.name = "opt",
                      .architecture = "OPTForCausalLM",
                      .expresses = is_opt,
                      .keys = keys(),
                      .map = map,
                      .prefix = "model.",
                      .extras = extras};
  family.defaults.position_offset = kOffset;
  family.defaults.activation = Activation::relu;
  return family;
}

}  // namespace multihead::models::detail::opt
