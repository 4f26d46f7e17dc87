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
      {R::field("vocab_size", &C::vocab_size),
       R::field("max_position_embeddings", &C::context),
       R::field("hidden_size", &C::embed_dim),
       R::field("intermediate_size", &C::ffn_dim),
       R::field("num_hidden_layers", &C::num_layers),
       R::field("num_attention_heads", &C::num_heads),
       R::field("num_key_value_heads", &C::num_kv_heads, 2),
       R::field("hidden_act", &C::activation, Activation::gelu_tanh),
       R::field("norm_epsilon", &C::norm_eps, 1e-5),
       R::field("residual_dropout", &C::dropout_p, 0),
       R::copy("embedding_dropout", &C::dropout_p),
       R::field("attention_dropout", &C::attention_dropout_p, 0),
       R::field("initializer_range", &C::init_std, 0.02),
       R::field("tie_word_embeddings", &C::tie_embeddings, true),
       R::key("use_bias", &C::attention_bias, biases),
       {"sliding_window", window, write_window, row_of(&C::window)},
       rotary_key(),
       R::only("mlp_type", "default"),
       R::only("norm_type", "layer_norm"),
       R::only("scale_attn_weights", true)},
      {"activation_function", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"});
}

void add_layer(WeightMap& map, const C& c, const std::string& ours, const std::string& theirs) {
  const int64_t query_rows = c.num_heads * c.head_dim, key_rows = c.num_kv_heads * c.head_dim;
  const std::string self = theirs + "self_attn.";
  add_projections(map, ours + "self_attn",
                  {{self + "q_proj", self + "k_proj", self + "v_proj"}, query_rows, key_rows, c.ffn_bias});
  add_pair(map, ours + "self_attn.out_proj", self + "o_proj", c.ffn_bias);
  add_pair(map, ours + "linear1", theirs + "mlp.c_fc", c.ffn_bias);
  add_pair(map, ours + "linear2", theirs + "mlp.c_proj", c.ffn_bias);
  add_pair(map, ours + "norm1", theirs + "input_layernorm");
  add_pair(map, ours + "norm2", theirs + "post_attention_layernorm");
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
