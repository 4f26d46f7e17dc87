// Jina Embeddings v3 (Sturua et al. 2024) as transformers has it: XLM-R with rotary positions.

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
  return R::joined({bert_keys(R::field("max_position_embeddings", &C::context), 1e-5),
                    {R::field("pad_token_id", &C::pad_id, 1),
                     R::field("type_vocab_size", &C::token_types, 1),
                     encoder_rotary_key("rope_theta", 20000),
                     {"rope_parameters", {}, {}, row_of(&C::rotary_factor)}},
                    head_keys("JinaEmbeddingsV3"),
                    {R::only("tie_word_embeddings", true)}});
}

// Files have the names of the code that came before.
WeightMap map(const C& c) {
  const std::string root = root_of(c, "roberta.");
  WeightMap map = {{"token_embedding.weight", {{root + "embeddings.word_embeddings.weight"}}},
                   {"type_embedding.weight", {{root + "embeddings.token_type_embeddings.weight"}}}};
  add_pair(map, "embedding_norm", root + "emb_ln");
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string ours = concat("layers.", i, "."), theirs = concat(root, "encoder.layers.", i, ".");
    map.push_back({ours + "self_attn.in_proj_weight", {{theirs + "mixer.Wqkv.weight"}}});
    map.push_back({ours + "self_attn.in_proj_bias", {{theirs + "mixer.Wqkv.bias"}}});
    add_pairs(map, ours, theirs,
              {{"self_attn.out_proj", "mixer.out_proj"},
               {"linear1", "mlp.fc1"},
               {"linear2", "mlp.fc2"},
               {"norm1", "norm1"},
               {"norm2", "norm2"}});
  }
  if (c.head == EncoderHead::tokens) add_pair(map, "classifier", "classifier");
  add_roberta_heads(map, c, root);
  return map;
}

std::vector<ExtraTensor> extras(const C& c) {
  if (c.head != EncoderHead::none) return unread({"lm_head.decoder.weight", "lm_head.decoder.bias"});
  return unread({"lm_head.decoder.weight", "lm_head.decoder.bias", "lm_head.bias", "lm_head.dense.weight",
                 "lm_head.dense.bias", "lm_head.layer_norm.weight", "lm_head.layer_norm.bias"});
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
