// StableLM: Llama with layer norms and partly rotated heads; attention and feed-forward may stand side by side.
#include "multihead/models/families/llama-inl.h"

namespace multihead::models::detail::stablelm {
namespace {

using C = LanguageModelConfig;
using R = Row<C>;

bool is_stablelm(const C& c) {
  const bool has_block = c.block == nn::Block::parallel_shared || c.block == nn::Block::sequential;
  return has_block && c.positions == Positions::rotary && c.norm == nn::NormKind::layer && c.norm_first &&
         c.final_norm && c.gated && !c.out_bias && !c.ffn_bias && !c.head_bias && !c.scale_embeddings &&
         c.head_dim * c.num_heads == c.embed_dim && c.dropout_p == 0;
}

ConfigKeys<C> keys() {
  return R::joined({size_keys<C>(),
                    {R::field("num_key_value_heads", &C::num_kv_heads, 32),
                     R::field("hidden_act", &C::activation, Activation::silu),
                     R::field("layer_norm_eps", &C::norm_eps, 1e-5),
                     R::field("attention_dropout", &C::attention_dropout_p, 0),
                     R::field("initializer_range", &C::init_std, 0.02),
                     R::field("tie_word_embeddings", &C::tie_embeddings, false),
                     R::field("use_qkv_bias", &C::attention_bias, false),
                     rotary_key({"rope_theta", "partial_rotary_factor", 0.25}),
                     {"partial_rotary_factor", {}, {}, row_of(&C::rotary_fraction)},
                     parallel_key<nn::Block::parallel_shared, false>(),
                     R::only("qk_layernorm", false),
                     R::only("hidden_dropout", 0)}});
}

void add_layer(WeightMap& map, const C& c, const std::string& ours, const std::string& theirs) {
  llama::add_layer_weights(map, c, ours, theirs);
  map.push_back({ours + "norm1.bias", {{theirs + "input_layernorm.bias"}}});
  if (c.block == nn::Block::sequential) {
    map.push_back({ours + "norm2.bias", {{theirs + "post_attention_layernorm.bias"}}});
  } else {
    std::erase_if(map, [&](const WeightRule& rule) { return rule.parameter == ours + "norm2.weight"; });
  }
}

WeightMap map(const C& c) {
  WeightMap map = llama::weight_map(c, add_layer);
  map.push_back({"final_norm.bias", {{"model.norm.bias"}}});
  return map;
}

}  // namespace

Family<C> stablelm() {
  Family<C> family = llama::derive("stablelm", "StableLmForCausalLM", is_stablelm, {});
  family.keys = keys();
  family.map = map;
  family.defaults.norm = nn::NormKind::layer;
  return family;
}

}  // namespace multihead::models::detail::stablelm
