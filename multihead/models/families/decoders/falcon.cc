// Falcon: rotary positions, attention and feed-forward side by side behind one norm or two, one head of keys and
// values or as many as of queries. Its variant with ALiBi rounds biases to bf16 and is refused.
#include "multihead/core/error.h"
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail::falcon {
namespace {

using C = LanguageModelConfig;
using R = Row<C>;
using Reader = io::ConfigReader;

bool is_falcon(const C& c) {
  const bool is_grouped = c.num_kv_heads != 1 && c.num_kv_heads != c.num_heads;
  return c.positions == Positions::rotary && c.norm == nn::NormKind::layer && c.norm_first && c.final_norm &&
         !c.gated && c.attention_bias == c.ffn_bias && c.out_bias == c.ffn_bias && !c.head_bias &&
         !c.scale_embeddings && !is_grouped && c.head_dim * c.num_heads == c.embed_dim && c.dropout_p == 0 &&
         (c.block == nn::Block::parallel || c.block == nn::Block::parallel_shared ||
          c.block == nn::Block::sequential);
}

// Three switches and a number say how a layer is arranged and how many heads of keys it has.
ConfigKey<C> arrangement() {
  const auto read = [](Reader& r, const std::string& key, C& c) {
    const char *count = "num_kv_heads", *norms = "num_ln_in_parallel_attn";
    const bool is_new = r.boolean_or(key, false), is_parallel = r.boolean_or("parallel_attn", true);
    const int64_t heads = r.integer_or(count, c.num_heads, kSize),
                  norm_count = r.integer_or(norms, 0, kSizeOrNone);
    const bool usual = r.find("multi_query") == nullptr;  // transformers takes null for false
    const bool shares_keys = r.boolean_or("multi_query", usual) && !is_new;
    c.num_kv_heads = shares_keys ? 1 : heads;
    if (!shares_keys && heads != c.num_heads && (heads != 1 || !is_new)) {
      r.fail(count,
             concat("must be ", is_new ? "1 or " : "", c.num_heads, ", as many as of queries, got ", heads));
    }
    if (is_new && !is_parallel)
      r.fail("parallel_attn", "false is not supported with new_decoder_architecture");
    if (norm_count > 2 || (norm_count == 2 && !is_new)) {
      r.fail(norms,
             concat(norm_count, " is not supported", is_new ? "" : " without new_decoder_architecture"));
    }
    c.block = !is_parallel                ? nn::Block::sequential
              : is_new && norm_count != 1 ? nn::Block::parallel
                                          : nn::Block::parallel_shared;
  };
  const auto write = [](const C& c, const std::string& key, Json& json) {
    const bool is_new = c.block == nn::Block::parallel;
    json[key] = is_new;
    json["parallel_attn"] = c.block != nn::Block::sequential;
    json["multi_query"] = !is_new && c.num_kv_heads == 1;
    json["num_kv_heads"] = c.num_kv_heads;
    json["num_ln_in_parallel_attn"] = is_new ? Json(int64_t{2}) : Json();
  };
  return {"new_decoder_architecture", read, write, row_of(&C::block)};
}

ConfigKeys<C> keys() {
  const auto biases = [](Reader& r, const std::string& key, C& c) {
    c.attention_bias = c.out_bias = c.ffn_bias = r.boolean_or(key, false);
  };
  return R::with_nothing({R::field("vocab_size", &C::vocab_size),
                          R::field("max_position_embeddings", &C::context, 2048),
                          R::field("hidden_size", &C::embed_dim),
                          R::alias("n_embed", "hidden_size"),
                          R::field("num_hidden_layers", &C::num_layers),
                          R::alias("n_layer", "num_hidden_layers"),
                          R::field("num_attention_heads", &C::num_heads),
                          R::alias("n_head", "num_attention_heads"),
                          R::field("ffn_hidden_size", &C::ffn_dim, 0),
                          R::field("activation", &C::activation, Activation::gelu),
                          R::field("layer_norm_epsilon", &C::norm_eps, 1e-5),
                          R::field("initializer_range", &C::init_std, 0.02),
                          R::field("tie_word_embeddings", &C::tie_embeddings, true),
                          R::key("bias", &C::attention_bias, biases),
                          arrangement(),
                          rotary_key(),
                          R::only("alibi", false),
                          R::only("hidden_dropout", 0),
                          R::only("attention_dropout", 0),
                          R::only("apply_residual_connection_post_layernorm", false)},
                         {"parallel_attn", "multi_query", "num_kv_heads", "num_ln_in_parallel_attn"});
}

WeightMap map(const C& c) {
  WeightMap map = {{"token_embedding.weight", {{"transformer.word_embeddings.weight"}}}};
  if (!c.tie_embeddings) map.push_back({"head.weight", {{"lm_head.weight"}}});
  add_pair(map, "final_norm", "transformer.ln_f");
  const bool has_two = c.block == nn::Block::parallel;
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string ours = concat("layers.", i, "."), theirs = concat("transformer.h.", i, ".");
    for (const char* kind : {"weight", "bias"}) {
      if (kind[0] == 'b' && !c.ffn_bias) continue;
      map.push_back({concat(ours, "self_attn.in_proj_", kind),
                     {{concat(theirs, "self_attention.query_key_value.", kind)}}});
      if (c.num_kv_heads == c.num_heads) map.back().interleaved_heads = c.num_heads;
    }
    add_pair(map, ours + "self_attn.out_proj", theirs + "self_attention.dense", c.out_bias);
    add_pairs(map, ours, theirs, {{"linear1", "mlp.dense_h_to_4h"}, {"linear2", "mlp.dense_4h_to_h"}},
              c.ffn_bias);
    add_pair(map, ours + "norm1", theirs + (has_two ? "ln_attn" : "input_layernorm"));
    if (has_two) add_pair(map, ours + "norm2", theirs + "ln_mlp");
    if (c.block == nn::Block::sequential) add_pair(map, ours + "norm2", theirs + "post_attention_layernorm");
  }
  return map;
}

std::vector<ExtraTensor> extras(const C& c) {
  if (!c.tie_embeddings) return {};
  return {repeated_tensor("lm_head.weight", "transformer.word_embeddings.weight", "transformer.")};
}

}  // namespace

Family<C> falcon() {
  Family<C> family = {.name = "falcon",
                      .architecture = "FalconForCausalLM",
                      .expresses = is_falcon,
                      .keys = keys(),
                      .map = map,
                      .prefix = "transformer.",
                      .extras = extras};
  C& c = family.defaults;
  c.positions = Positions::rotary;
  c.block = nn::Block::parallel_shared;
  return family;
}

}  // namespace multihead::models::detail::falcon
