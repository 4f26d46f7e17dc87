// Granite: Llama with four numbers that multiply embeddings, scores, outputs of sub-layers and, inverted, logits.
#include <cmath>

#include "multihead/models/families/llama-inl.h"

namespace multihead::models::detail::granite {
namespace {

using C = LanguageModelConfig;
using R = Row<C>;

bool is_granite(const C& c) {
  return llama::is_like(c) && c.attention_bias == c.out_bias && c.scale_dim == 0;
}

ConfigKey<C> attention_multiplier() {
  const auto read = [](io::ConfigReader& r, const std::string& key, C& c) {
    c.attention_scale = r.number_or(key, 1, kPositive);
  };
  const auto write = [](const C& c, const std::string& key, Json& json) {
    json[key] = c.attention_scale > 0 ? c.attention_scale : 1 / std::sqrt(static_cast<double>(c.head_dim));
  };
  return {"attention_multiplier", read, write, row_of(&C::attention_scale)};
}

}  // namespace

Family<C> granite() {
  return llama::derive("granite", "GraniteForCausalLM", is_granite,
                       {llama::attention_bias(), R::field("mlp_bias", &C::ffn_bias, false),
                        attention_multiplier(), R::field("embedding_multiplier", &C::embedding_factor, 1),
                        R::field("residual_multiplier", &C::residual_factor, 1),
                        R::field("logits_scaling", &C::logit_divisor, 1)});
}

}  // namespace multihead::models::detail::granite
