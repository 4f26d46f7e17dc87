// Jina Embeddings v3 (Sturua et al. 2024): XLM-R with rotary positions, as transformers has it, and as published
// before, with code of its own: of the model type "xlm-roberta", with adapters for tasks beside each matrix.
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

ConfigKeys<C> keys(const char* stem, const ConfigKey<C>& rotary) {
  return R::joined({bert_keys(R::field("max_position_embeddings", &C::context), 1e-5),
                    {R::field("pad_token_id", &C::pad_id, 1),
                     R::field("type_vocab_size", &C::token_types, 1),
                     rotary,
                     {"rope_parameters", {}, {}, row_of(&C::rotary_factor)}},
                    head_keys(stem),
                    {R::only("tie_word_embeddings", true)}});
}

// Of what transformers did not take over, adapters are TaskAdapters'.
ConfigKeys<C> published_keys() {
  return R::with_nothing(
      R::joined({keys("XLMRoberta", encoder_rotary_key("rotary_emb_base", 10000)),
                 {R::only("position_embedding_type", "rotary"), R::only("emb_pooler", "mean")}}),
      {"lora_adaptations", "lora_rank", "lora_alpha", "lora_dropout_p", "lora_main_params_trainable",
       "load_trained_adapters", "task_instructions", "use_reentrant"});
}

bool is_rotary(io::ConfigReader& r) {
  const Json* positions = r.find("position_embedding_type");
  return positions != nullptr && *positions == Json("rotary");
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

// Matrices with adapters beside them.
WeightMap map_of_originals(const C& c) {
  WeightMap originals = map(c);
  for (WeightRule& rule : originals) {
    std::string& name = rule.parts[0].name;
    if (!name.ends_with(".weight") || rule.parameter.find("norm") != rule.parameter.npos) continue;
    name = name.substr(0, name.rfind('.')) + kOriginal;
  }
  return originals;
}

std::vector<ExtraTensor> adapters(const C&) {
  return unread({".parametrizations.weight.0.lora_A", ".parametrizations.weight.0.lora_B"});
}

// Of either kind of files.
C settle(C c, const io::SafetensorsFile& file) {
  c = settle_pooler(c, file);
  const std::string pooler = concat("pooler.dense", kOriginal);
  c.pooler = c.pooler || file.contains(pooler) || file.contains("roberta." + pooler);
  return c;
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
          .keys = keys("JinaEmbeddingsV3", encoder_rotary_key("rope_theta", 20000)),
          .map = map,
          .prefix = "roberta.",
          .extras = extras,
          .settle = settle};
}

Family<C> jina_xlm_roberta() {
  return {.name = "xlm-roberta",
          .architecture = "XLMRobertaModel",
          .expresses = is_jina,
          .keys = published_keys(),
          .map = map_of_originals,
          .prefix = "roberta.",
          .extras = adapters,
          .claims = is_rotary,
          .settle = settle};
}

}  // namespace multihead::models::detail::jina_embeddings_v3
