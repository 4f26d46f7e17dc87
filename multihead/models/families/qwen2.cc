// Qwen 2: biases of queries, keys and values.
#include "multihead/models/families/llama-inl.h"

namespace multihead::models::detail::qwen2 {
namespace {

using C = LanguageModelConfig;
using R = Row<C>;

bool is_qwen2(const C& c) { return llama::is_like(c) && c.attention_bias && !c.out_bias && !c.ffn_bias; }

}  // namespace

Family<C> qwen2() {
  Family<C> family = llama::derive("qwen2", "Qwen2ForCausalLM", is_qwen2,
                                   {llama::refuse_windows(),
                                    {"sliding_window"},
                                    {"attention_bias"},
                                    R::only("use_mrope", false),
                                    llama::layer_types()},
                                   {.num_kv_heads = 32});
  family.defaults.attention_bias = true;
  return family;
}

}  // namespace multihead::models::detail::qwen2
