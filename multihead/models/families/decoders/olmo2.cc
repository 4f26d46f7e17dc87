// OLMo 2: Llama with norms after the sub-layers in place of before them, and of all queries and all keys of a token.
#include "multihead/models/families/llama-inl.h"

namespace multihead::models::detail::olmo2 {
namespace {

using C = LanguageModelConfig;

bool is_olmo2(const C& c) { return llama::is_like(c) && c.attention_bias == c.out_bias && !c.ffn_bias; }

void add_layer(WeightMap& map, const C& c, const std::string& ours, const std::string& theirs) {
  llama::add_layer_weights(map, c, ours, theirs);
  std::erase_if(map, [&](const WeightRule& rule) {
    return rule.parameter == ours + "norm1.weight" || rule.parameter == ours + "norm2.weight";
  });
  llama::add_post_norms(map, ours, theirs);
}

WeightMap map(const C& c) { return llama::weight_map(c, add_layer); }

}  // namespace

Family<C> olmo2() {
  Family<C> family =
      llama::derive("olmo2", "Olmo2ForCausalLM", is_olmo2, {llama::attention_bias()}, {.norm_eps = 1e-5});
  family.map = map;
  C& c = family.defaults;
  c.block = nn::Block::output_norms;
  c.qk_norm = c.qk_norm_joint = true;
  return family;
}

}  // namespace multihead::models::detail::olmo2
