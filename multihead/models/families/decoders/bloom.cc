// BLOOM: biases of scores by distance (ALiBi) in place of positions, and a norm of the embeddings.
#include "multihead/core/error.h"
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail::bloom {
namespace {

using C = LanguageModelConfig;
using R = Row<C>;

bool is_bloom(const C& c) {
  return c.positions == Positions::alibi && c.norm == nn::NormKind::layer && c.norm_first && c.final_norm &&
         c.embedding_norm && !c.gated && c.activation == Activation::gelu_tanh && c.attention_bias &&
         c.out_bias && c.ffn_bias && !c.head_bias && !c.scale_embeddings && c.num_kv_heads == c.num_heads &&
         c.head_dim * c.num_heads == c.embed_dim && c.ffn_dim == 4 * c.embed_dim && c.dropout_p == 0;
}

// A field under transformers' name, or under the one of its first files.
ConfigKey<C> either(const char* name, const char* old, const R::Member& member) {
  return R::key(name, member, [=](io::ConfigReader& r, const std::string& key, C& c) {
    R::read(r, r.has(old) ? old : key, c, member, {});
    if (r.has(old) && r.has(key)) expect_same(r, key, old);
  });
}

ConfigKeys<C> keys() {
  ConfigKeys<C> all = {R::field("vocab_size", &C::vocab_size),
                       either("hidden_size", "n_embed", &C::embed_dim),
                       either("n_layer", "num_hidden_layers", &C::num_layers),
                       either("n_head", "num_attention_heads", &C::num_heads),
                       R::field("seq_length", &C::context, 2048),
                       R::field("layer_norm_epsilon", &C::norm_eps, 1e-5),
                       R::field("attention_dropout", &C::attention_dropout_p, 0),
                       R::field("initializer_range", &C::init_std, 0.02),
                       R::field("tie_word_embeddings", &C::tie_embeddings, true),
                       R::only("hidden_dropout", 0),
                       R::only("n_inner", Json()),
                       R::only("apply_residual_connection_post_layernorm", false)};
  // How the code that trained it computed, and sums in parts.
  return R::with_nothing(all, {"slow_but_exact", "attention_softmax_in_fp32", "masked_softmax_fusion",
                               "bias_dropout_fusion", "offset_alibi", "skip_bias_add", "skip_bias_add_qkv"});
}

WeightMap map(const C& c) {
  WeightMap map = {{"token_embedding.weight", {{"transformer.word_embeddings.weight"}}}};
  if (!c.tie_embeddings) map.push_back({"head.weight", {{"lm_head.weight"}}});
  add_pair(map, "embedding_norm", "transformer.word_embeddings_layernorm");
  add_pair(map, "final_norm", "transformer.ln_f");
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string ours = concat("layers.", i, "."), theirs = concat("transformer.h.", i, ".");
    for (const char* kind : {"weight", "bias"}) {
      map.push_back({concat(ours, "self_attn.in_proj_", kind),
                     {{concat(theirs, "self_attention.query_key_value.", kind)}}});
      map.back().interleaved_heads = c.num_heads;
    }
    add_pairs(map, ours, theirs,
              {{"self_attn.out_proj", "self_attention.dense"},
               {"linear1", "mlp.dense_h_to_4h"},
               {"linear2", "mlp.dense_4h_to_h"},
               {"norm1", "input_layernorm"},
               {"norm2", "post_attention_layernorm"}});
  }
  return map;
}

std::vector<ExtraTensor> extras(const C& c) {
  if (!c.tie_embeddings) return {};
  return {repeated_tensor("lm_head.weight", "transformer.word_embeddings.weight", "transformer.")};
}

}  // namespace

Family<C> bloom() {
  Family<C> family = {.name = "bloom",
                      .architecture = "BloomForCausalLM",
                      .expresses = is_bloom,
                      .keys = keys(),
                      .map = map,
                      .prefix = "transformer.",
                      .extras = extras};
  C& c = family.defaults;
  c.positions = Positions::alibi;
  c.embedding_norm = true;
  return family;
}

}  // namespace multihead::models::detail::bloom
