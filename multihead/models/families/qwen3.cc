// Qwen 3: norms of queries and keys.
#include "multihead/models/families/llama-inl.h"

namespace multihead::models::detail::qwen3 {
namespace {

using C = LanguageModelConfig;

bool is_qwen3(const C& c) { return llama::is_like(c) && c.attention_bias == c.out_bias && !c.ffn_bias; }

}  // namespace

Family<C> qwen3() {
  Family<C> family = llama::derive(
      "qwen3", "Qwen3ForCausalLM", is_qwen3,
      {llama::attention_bias(), llama::refuse_windows(), {"sliding_window"}, llama::layer_types()},
      {.num_kv_heads = 32, .head_dim = 128});
  family.defaults.qk_norm = true;
  return family;
}

}  // namespace multihead::models::detail::qwen3
