// StarCoder 2: rotary positions, grouped queries and a window, with GPT-2's norms, biases and feed-forward layers.
#include "multihead/models/families/llama-inl.h"

namespace multihead::models::detail::starcoder2 {
namespace {

using C = LanguageModelConfig;
using R = Row<C>;

bool is_starcoder2(const C& c) {
  return c.block == nn::Block::sequential && c.positions == Positions::rotary &&
         c.norm == nn::NormKind::layer && c.norm_first && c.final_norm && !c.gated &&
         c.attention_bias == c.ffn_bias && c.out_bias == c.ffn_bias && !c.head_bias && !c.scale_embeddings &&
         c.head_dim * c.num_heads == c.embed_dim;
}

ConfigKeys<C> keys() {
  const auto biases = [](io::ConfigReader& r, const std::string& key, C& c) {
    c.attention_bias = c.out_bias = c.ffn_bias = r.boolean_or(key, true);
  };
  const auto window = [](io::ConfigReader& r, const std::string& key, C& c) {
    c.window = r.integer_or(key, 0, kSize);
  };
  const auto write_window = [](const C& c, const std::string& key, Json& json) {
    json[key] = c.window > 0 ? Json(c.window) : Json();
  };
  return R::with_nothing(
      R::joined({size_keys<C>(),
                 {R::field("num_key_value_heads", &C::num_kv_heads, 2),
                  R::field("hidden_act", &C::activation, Activation::gelu_tanh),
                  R::field("norm_epsilon", &C::norm_eps, 1e-5),
                  R::field("residual_dropout", &C::dropout_p, 0),
                  R::copy("embedding_dropout", &C::dropout_p),
                  R::field("attention_dropout", &C::attention_dropout_p, 0),
                  R::field("initializer_range", &C::init_std, 0.018042),
                  R::field("tie_word_embeddings", &C::tie_embeddings, true),
                  R::key("use_bias", &C::attention_bias, biases),
                  {"sliding_window", window, write_window, row_of(&C::window)},
                  rotary_key(),
                  R::only("mlp_type", "default"),
                  R::only("norm_type", "layer_norm"),
                  R::only("scale_attn_weights", true)}}),
      {"activation_function", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"});
}

void add_layer(WeightMap& map, const C& c, const std::string& ours, const std::string& theirs) {
  const int64_t query_rows = c.num_heads * c.head_dim, key_rows = c.num_kv_heads * c.head_dim;
  add_projections(map, ours + "self_attn",
                  {theirs + "self_attn.", {"q_proj", "k_proj", "v_proj"}, query_rows, key_rows, c.ffn_bias});
  add_pairs(map, ours, theirs,
            {{"self_attn.out_proj", "self_attn.o_proj"}, {"linear1", "mlp.c_fc"}, {"linear2", "mlp.c_proj"}},
            c.ffn_bias);
  add_pairs(map, ours, theirs, {{"norm1", "input_layernorm"}, {"norm2", "post_attention_layernorm"}});
}

WeightMap map(const C& c) {
  WeightMap map = llama::weight_map(c, add_layer);
  map.push_back({"final_norm.bias", {{"model.norm.bias"}}});
  return map;
}

}  // namespace

Family<C> starcoder2() {
  Family<C> family = llama::derive("starcoder2", "Starcoder2ForCausalLM", is_starcoder2, {});
  family.keys = keys();
  family.map = map;
  C& c = family.defaults;
  c.norm = nn::NormKind::layer;
  c.gated = false;
  return family;
}

}  // namespace multihead::models::detail::starcoder2
