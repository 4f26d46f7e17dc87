// Phi 3: Llama with the matrices of queries, keys and values in one, as those of gate and up.
#include "multihead/core/error.h"
#include "multihead/models/families/llama-inl.h"

namespace multihead::models::detail::phi3 {
namespace {

using C = LanguageModelConfig;
using R = Row<C>;

bool is_phi3(const C& c) { return llama::is_like(c) && !c.attention_bias && !c.out_bias && !c.ffn_bias; }

void read_window(io::ConfigReader& r, const std::string& key, C& c) {
  c.window = r.integer_or(key, 0, kSize);
}

void add_layer(WeightMap& map, const C&, const std::string& ours, const std::string& theirs) {
  map.push_back({ours + "self_attn.in_proj_weight", {{theirs + "self_attn.qkv_proj.weight"}}});
  add_pairs(map, ours, theirs,
            {{"self_attn.out_proj", "self_attn.o_proj"},
             {"linear1", "mlp.gate_up_proj"},
             {"linear2", "mlp.down_proj"},
             {"norm1", "input_layernorm"},
             {"norm2", "post_attention_layernorm"}},
            false);
}

}  // namespace

// Written as Llama or Mistral, which have the same models: this one is only read.
Family<C> phi3() {
  Family<C> family = llama::derive("phi3", "Phi3ForCausalLM", is_phi3,
                                   {R::key("sliding_window", &C::window, read_window),
                                    R::copy("resid_pdrop", &C::dropout_p),
                                    {"embd_pdrop"},
                                    {"original_max_position_embeddings"}},
                                   {.norm_eps = 1e-5});
  family.map = [](const C& c) { return llama::weight_map(c, add_layer); };
  return family;
}

}  // namespace multihead::models::detail::phi3
