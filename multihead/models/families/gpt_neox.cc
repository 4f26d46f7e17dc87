// GPT-NeoX (Pythia): attention and feed-forward side by side, a part of each head rotated, queries, keys and
// values interleaved by head.
#include "multihead/core/error.h"
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail::gpt_neox {
namespace {

using C = LanguageModelConfig;

bool is_gpt_neox(const C& c) {
  const bool has_block = c.block == nn::Block::parallel || c.block == nn::Block::sequential;
  return has_block && c.positions == Positions::rotary && c.norm == nn::NormKind::layer && c.norm_first &&
         c.final_norm && !c.gated && c.attention_bias == c.out_bias && c.ffn_bias && !c.head_bias &&
         !c.scale_embeddings && c.num_kv_heads == c.num_heads && c.head_dim * c.num_heads == c.embed_dim;
}

ConfigKeys<C> keys() {
  using R = Row<C>;
  const auto biases = [](io::ConfigReader& r, const std::string& key, C& c) {
    c.attention_bias = c.out_bias = r.boolean_or(key, true);
  };
  return {R::field("vocab_size", &C::vocab_size),
          R::field("max_position_embeddings", &C::context),
          R::field("hidden_size", &C::embed_dim),
          R::field("num_hidden_layers", &C::num_layers),
          R::field("num_attention_heads", &C::num_heads),
          R::field("intermediate_size", &C::ffn_dim),
          R::field("hidden_act", &C::activation, Activation::gelu),
          R::field("layer_norm_eps", &C::norm_eps, 1e-5),
          R::field("hidden_dropout", &C::dropout_p, 0),
          R::field("attention_dropout", &C::attention_dropout_p, 0),
          R::field("initializer_range", &C::init_std, 0.02),
          R::field("tie_word_embeddings", &C::tie_embeddings, false),
          R::key("attention_bias", &C::attention_bias, biases),
          rotary_key({"rotary_emb_base", "rotary_pct", 0.25}),
          {"rotary_pct", {}, {}, row_of(&C::rotary_fraction)},
          parallel_key<nn::Block::parallel, true>()};
}

WeightMap map(const C& c) {
  WeightMap map = {{"token_embedding.weight", {{"gpt_neox.embed_in.weight"}}}};
  add_pair(map, "final_norm", "gpt_neox.final_layer_norm");
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string ours = concat("layers.", i, "."), theirs = concat("gpt_neox.layers.", i, ".");
    for (const char* kind : {"weight", "bias"}) {
      if (kind[0] == 'b' && !c.attention_bias) continue;
      map.push_back({.parameter = concat(ours, "self_attn.in_proj_", kind),
                     .parts = {{concat(theirs, "attention.query_key_value.", kind)}},
                     .interleaved_heads = c.num_heads});
    }
    add_pair(map, ours + "self_attn.out_proj", theirs + "attention.dense", c.attention_bias);
    add_pairs(map, ours, theirs,
              {{"linear1", "mlp.dense_h_to_4h"},
               {"linear2", "mlp.dense_4h_to_h"},
               {"norm1", "input_layernorm"},
               {"norm2", "post_attention_layernorm"}});
  }
  if (!c.tie_embeddings) map.push_back({"head.weight", {{"embed_out.weight"}}});
  return map;
}

std::vector<ExtraTensor> extras(const C& c) {
  std::vector<ExtraTensor> list = {{".attention.bias"}, {".attention.masked_bias"}, rotary_buffers(c)};
  if (c.tie_embeddings) list.push_back(repeated_tensor("embed_out.weight", "gpt_neox.embed_in.weight"));
  return list;
}

}  // namespace

Family<C> gpt_neox() {
  Family<C> family = {.name = "gpt_neox",
                      .architecture = "GPTNeoXForCausalLM",
                      .expresses = is_gpt_neox,
                      .keys = keys(),
                      .map = map,
                      .prefix = "gpt_neox.",
                      .extras = extras};
  C& c = family.defaults;
  c.positions = Positions::rotary;
  c.block = nn::Block::parallel;
  c.tie_embeddings = false;
  return family;
}

}  // namespace multihead::models::detail::gpt_neox
