// EuroBERT: Llama whose tokens see the whole text.
#include "multihead/models/families/llama-inl.h"

namespace multihead::models::detail::eurobert {
namespace {

using C = LanguageModelConfig;
using R = Row<C>;

bool is_eurobert(const C& c) {
  C plain = c;
  plain.head_bias = false;
  return llama::is_like(plain) && c.attention_bias == c.out_bias && c.head_bias == c.ffn_bias;
}

WeightMap map(const C& c) {
  WeightMap map = llama::weight_map(c, llama::add_layer_weights);
  if (c.head_bias) map.push_back({"head.bias", {{"lm_head.bias"}}});
  return map;
}

}  // namespace

Family<C> eurobert() {
  // The output layer has a bias where the feed-forward layers have one.
  const auto biases = [](io::ConfigReader& r, const std::string& key, C& c) {
    c.ffn_bias = c.head_bias = r.boolean_or(key, false);
  };
  Family<C> family = llama::derive("eurobert", "EuroBertForMaskedLM", is_eurobert,
                                   {llama::attention_bias(),
                                    R::key("mlp_bias", &C::ffn_bias, biases),
                                    llama::no_padding(),
                                    {"mask_token_id"},
                                    {"classifier_pooling"}},
                                   {.norm_eps = 1e-5});
  family.base = "EuroBertModel";
  family.map = map;
  family.defaults.causal = false;
  return family;
}

}  // namespace multihead::models::detail::eurobert
