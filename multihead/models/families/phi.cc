// Phi 1 and 2: one norm before attention and feed-forward side by side, a part of each head rotated.
#include "multihead/core/error.h"
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail::phi {
namespace {

using C = LanguageModelConfig;

bool is_phi(const C& c) {
  return c.block == nn::Block::parallel_shared && c.positions == Positions::rotary &&
         c.norm == nn::NormKind::layer && c.norm_first && c.final_norm && !c.gated && c.attention_bias &&
         c.out_bias && c.ffn_bias && c.head_bias && !c.scale_embeddings &&
         c.head_dim * c.num_heads == c.embed_dim;
}

ConfigKeys<C> keys() {
  using R = Row<C>;
  return R::joined({size_keys<C>(),
                    {R::field("num_key_value_heads", &C::num_kv_heads, 0),
                     R::field("hidden_act", &C::activation, Activation::gelu_tanh),
                     R::field("layer_norm_eps", &C::norm_eps, 1e-5),
                     R::field("resid_pdrop", &C::dropout_p, 0),
                     R::copy("embd_pdrop", &C::dropout_p),
                     R::field("attention_dropout", &C::attention_dropout_p, 0),
                     R::field("initializer_range", &C::init_std, 0.02),
                     R::field("tie_word_embeddings", &C::tie_embeddings, false),
                     R::only("qk_layernorm", false),
                     rotary_key({"rope_theta", "partial_rotary_factor", 0.5}),
                     {"partial_rotary_factor", {}, {}, row_of(&C::rotary_fraction)}}});
}

WeightMap map(const C& c) {
  WeightMap map = {{"token_embedding.weight", {{"model.embed_tokens.weight"}}},
                   {"head.bias", {{"lm_head.bias"}}}};
  if (!c.tie_embeddings) map.push_back({"head.weight", {{"lm_head.weight"}}});
  const int64_t query_rows = c.num_heads * c.head_dim, key_rows = c.num_kv_heads * c.head_dim;
  add_pair(map, "final_norm", "model.final_layernorm");
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string ours = concat("layers.", i, "."), theirs = concat("model.layers.", i, ".");
    add_projections(map, ours + "self_attn",
                    {theirs + "self_attn.", {"q_proj", "k_proj", "v_proj"}, query_rows, key_rows});
    add_pairs(map, ours, theirs,
              {{"self_attn.out_proj", "self_attn.dense"},
               {"linear1", "mlp.fc1"},
               {"linear2", "mlp.fc2"},
               {"norm1", "input_layernorm"}});
  }
  return map;
}

std::vector<ExtraTensor> extras(const C& c) { return {rotary_buffers(c)}; }

}  // namespace

Family<C> phi() {
  Family<C> family = {.name = "phi",
                      .architecture = "PhiForCausalLM",
                      .expresses = is_phi,
                      .keys = keys(),
                      .map = map,
                      .prefix = "model.",
                      .extras = extras};
  C& c = family.defaults;
  c.positions = Positions::rotary;
  c.block = nn::Block::parallel_shared;
  c.tie_embeddings = false, c.head_bias = true;
  return family;
}

}  // namespace multihead::models::detail::phi
