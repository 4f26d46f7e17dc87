// Mistral: a window, no biases.
#include "multihead/models/families/llama-inl.h"

namespace multihead::models::detail::mistral {
namespace {

using C = LanguageModelConfig;
using R = Row<C>;

bool is_mistral(const C& c) {
  return llama::is_like(c) && c.window > 0 && !c.attention_bias && !c.out_bias && !c.ffn_bias;
}

void read_window(io::ConfigReader& r, const std::string& key, C& c) {
  c.window = r.find(key) == nullptr ? 4096 : r.integer_or(key, 0, kSize);  // null: none
}

}  // namespace

Family<C> mistral() {
  return llama::derive("mistral", "MistralForCausalLM", is_mistral,
                       {R::key("sliding_window", &C::window, read_window), R::only("attention_bias", false),
                        llama::layer_types()},
                       {.num_kv_heads = 8});
}

}  // namespace multihead::models::detail::mistral
