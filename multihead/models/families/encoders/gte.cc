// GTE (Zhang et al. 2024, mGTE): BERT with rotary positions and gated feed-forward layers. Folders from before
// transformers had it are of the model type "new".
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail::gte {
namespace {

using C = EncoderConfig;
using R = Row<C>;
using Reader = io::ConfigReader;

bool is_gte(const C& c) {
  return c.rotary_base > 0 && c.gated && c.bias && c.layer_bias && !c.ffn_in_bias && c.embedding_norm &&
         !c.norm_first && c.word_dim == c.embed_dim && c.position_offset == 0 &&
         c.head_activation == Activation::gelu && c.ffn_dropout_p == c.dropout_p &&
         c.pooler == (c.head == EncoderHead::classification) && c.pooler_activation == PoolerActivation::tanh;
}

ConfigKeys<C> keys(const char* stem) {
  const auto dropout = [](Reader& r, const std::string& key, C& c) {
    c.dropout_p = c.ffn_dropout_p = r.number_or(key, 0.1, kProbability);
  };
  return R::with_nothing(
      R::joined({size_keys<C>(),
                 {R::field("hidden_act", &C::activation, Activation::gelu),
                  R::field("layer_norm_eps", &C::norm_eps, 1e-12),
                  R::key("hidden_dropout_prob", &C::dropout_p, dropout),
                  R::field("attention_probs_dropout_prob", &C::attention_dropout_p, 0),
                  R::field("initializer_range", &C::init_std, 0.02),
                  R::field("pad_token_id", &C::pad_id, 1),
                  R::field("type_vocab_size", &C::token_types, 1),
                  encoder_rotary_key("rope_theta", 160000),
                  {"rope_parameters", {}, {}, row_of(&C::rotary_factor)},
                  {"hidden_dropout_prob", {}, {}, row_of(&C::ffn_dropout_p)}},
                 head_keys(stem),
                 {R::only("pack_qkv", true), R::only("position_embedding_type", "rope"),
                  R::only("layer_norm_type", "layer_norm"), R::only("logn_attention_scale", false),
                  R::only("tie_word_embeddings", true)}}),
      {"logn_attention_clip1", "unpad_inputs", "use_memory_efficient_attention"});
}

WeightMap map_with(const C& c, const char* prefix) {
  const std::string root = root_of(c, prefix);
  WeightMap map = {{"token_embedding.weight", {{root + "embeddings.word_embeddings.weight"}}}};
  if (c.token_types > 0) {
    map.push_back({"type_embedding.weight", {{root + "embeddings.token_type_embeddings.weight"}}});
  }
  add_pair(map, "embedding_norm", root + "embeddings.LayerNorm");
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string ours = concat("layers.", i, "."), theirs = concat(root, "encoder.layer.", i, ".");
    map.push_back({ours + "self_attn.in_proj_weight", {{theirs + "attention.qkv_proj.weight"}}});
    map.push_back({ours + "self_attn.in_proj_bias", {{theirs + "attention.qkv_proj.bias"}}});
    add_pair(map, ours + "self_attn.out_proj", theirs + "attention.o_proj");
    map.push_back({.parameter = ours + "linear1.weight",
                   .parts = {{theirs + "mlp.up_gate_proj.weight"}},
                   .swapped_halves = true});
    add_pairs(map, ours, theirs, {{"linear2", "mlp.down_proj"}, {"norm1", "attn_ln"}, {"norm2", "mlp_ln"}});
  }
  if (c.pooler) add_pair(map, "pooler", root + "pooler.dense");
  if (c.num_labels > 0) add_pair(map, "classifier", "classifier");
  add_masked_lm(map, c, "lm_head.dense", "lm_head.norm", "lm_head.decoder.bias");
  return map;
}

// The tied output layer; and heads that the config does not speak of.
std::vector<ExtraTensor> extras(const C& c) {
  if (c.head != EncoderHead::none) return {{"lm_head.decoder.weight"}};
  return unread({"lm_head.decoder.weight", "lm_head.decoder.bias", "lm_head.dense.weight",
                 "lm_head.dense.bias", "lm_head.norm.weight", "lm_head.norm.bias", "classifier.weight",
                 "classifier.bias", "pooler.dense.weight", "pooler.dense.bias"});
}

Family<C> named(const char* name, const char* stem, const char* prefix, WeightMap (*map)(const C&)) {
  Family<C> family = {.name = name,
                      .architecture = concat(stem, "Model"),
                      .expresses = is_gte,
                      .keys = keys(stem),
                      .map = map,
                      .prefix = prefix,
                      .extras = extras};
  C& defaults = family.defaults;
  defaults.gated = true;
  defaults.ffn_in_bias = defaults.pooler = false;
  return family;
}

}  // namespace

Family<C> gte() {
  return named("gte", "Gte", "gte.", [](const C& c) { return map_with(c, "gte."); });
}
Family<C> gte_new() {
  return named("new", "New", "new.", [](const C& c) { return map_with(c, "new."); });
}

}  // namespace multihead::models::detail::gte
