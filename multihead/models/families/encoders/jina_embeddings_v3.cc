// Jina Embeddings v3 (Sturua et al. 2024) as transformers has it: XLM-R with rotary positions.
#include <algorithm>

#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail::jina_embeddings_v3 {
namespace {

using C = EncoderConfig;
using R = Row<C>;

bool is_jina(const C& c) {
  return c.rotary_base > 0 && !c.gated && c.bias && c.layer_bias && c.embedding_norm && !c.norm_first &&
         c.word_dim == c.embed_dim && c.token_types > 0 && c.position_offset == 0 &&
         c.head_activation == Activation::gelu && c.pooler_activation == PoolerActivation::tanh;
}

ConfigKeys<C> keys() {
  return {R::field("vocab_size", &C::vocab_size),
          R::field("max_position_embeddings", &C::context),
          R::field("hidden_size", &C::embed_dim),
          R::field("intermediate_size", &C::ffn_dim),
          R::field("num_hidden_layers", &C::num_layers),
          R::field("num_attention_heads", &C::num_heads),
          R::field("hidden_act", &C::activation, Activation::gelu),
          R::field("layer_norm_eps", &C::norm_eps, 1e-5),
          R::field("hidden_dropout_prob", &C::dropout_p, 0.1),
          R::field("attention_probs_dropout_prob", &C::attention_dropout_p, 0.1),
          R::field("initializer_range", &C::init_std, 0.02),
          R::field("pad_token_id", &C::pad_id, 1),
          R::field("type_vocab_size", &C::token_types, 1),
          encoder_rotary_key("rope_theta", 20000),
          {"rope_parameters", {}, {}, row_of(&C::rotary_factor)},
          head_key("JinaEmbeddingsV3"),
          labels_key<C>(),
          problem_key<C>(),
          R::only("tie_word_embeddings", true)};
}

// Files have the names of the code that came before; models without a head are kept without the prefix.
WeightMap map(const C& c) {
  const std::string root = c.head == EncoderHead::none ? "" : "roberta.";
  WeightMap map = {{"token_embedding.weight", {{root + "embeddings.word_embeddings.weight"}}},
                   {"type_embedding.weight", {{root + "embeddings.token_type_embeddings.weight"}}}};
  add_pair(map, "embedding_norm", root + "emb_ln");
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string ours = concat("layers.", i, "."), theirs = concat(root, "encoder.layers.", i, ".");
    map.push_back({ours + "self_attn.in_proj_weight", {{theirs + "mixer.Wqkv.weight"}}});
    map.push_back({ours + "self_attn.in_proj_bias", {{theirs + "mixer.Wqkv.bias"}}});
    add_pair(map, ours + "self_attn.out_proj", theirs + "mixer.out_proj");
    add_pair(map, ours + "linear1", theirs + "mlp.fc1");
    add_pair(map, ours + "linear2", theirs + "mlp.fc2");
    add_pair(map, ours + "norm1", theirs + "norm1");
    add_pair(map, ours + "norm2", theirs + "norm2");
  }
  if (c.head == EncoderHead::tokens) add_pair(map, "classifier", "classifier");
  add_roberta_heads(map, c, root);
  return map;
}

std::vector<ExtraTensor> extras(const C& c) {
  std::vector<ExtraTensor> list = {{"lm_head.decoder.weight"}, {"lm_head.decoder.bias"}};
  if (c.head != EncoderHead::none) return list;
  for (const char* name : {"lm_head.bias", "lm_head.dense.weight", "lm_head.dense.bias",
                           "lm_head.layer_norm.weight", "lm_head.layer_norm.bias"}) {
    list.push_back({name});
  }
  return list;
}

}  // namespace

Family<C> jina_embeddings_v3() {
  return {.name = "jina_embeddings_v3",
          .architecture = "JinaEmbeddingsV3Model",
          .expresses = is_jina,
          .keys = keys(),
          .map = map,
          .prefix = "roberta.",
          .extras = extras,
          .settle = settle_pooler};
}

}  // namespace multihead::models::detail::jina_embeddings_v3
