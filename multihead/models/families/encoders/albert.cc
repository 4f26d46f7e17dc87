// ALBERT (Lan et al. 2020): BERT with one layer's weights in all layers and smaller embeddings.
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail::albert {
namespace {

using C = EncoderConfig;
using R = Row<C>;

constexpr const char* kPrefix = "albert.";

bool is_albert(const C& c) {
  return c.shared_layers && c.word_dim != c.embed_dim && c.token_types > 0 && c.position_offset == 0 &&
         c.pooler_activation == PoolerActivation::tanh && c.head_activation == c.activation;
}

ConfigKeys<C> keys() {
  const auto word_dim = [](io::ConfigReader& r, const std::string& key, C& c) {
    c.word_dim = r.integer_or(key, 128, kSize);
    if (c.word_dim == c.embed_dim) r.fail(key, "must differ from hidden_size");
  };
  return R::with_nothing(
      R::joined({{R::field("vocab_size", &C::vocab_size),
                  R::field("max_position_embeddings", &C::context),
                  R::field("hidden_size", &C::embed_dim),
                  R::key("embedding_size", &C::word_dim, word_dim),
                  R::field("intermediate_size", &C::ffn_dim),
                  R::field("num_hidden_layers", &C::num_layers),
                  R::field("num_attention_heads", &C::num_heads),
                  R::constant("num_hidden_groups", 1),
                  R::constant("inner_group_num", 1),
                  {"num_hidden_groups", {}, {}, row_of(&C::shared_layers)},
                  R::field("hidden_act", &C::activation, Activation::gelu_tanh),
                  {"hidden_act",
                   [](io::ConfigReader&, const std::string&, C& c) { c.head_activation = c.activation; }}},
                 dropout_keys(1e-12, 0),
                 {R::field("type_vocab_size", &C::token_types, 2), R::field("pad_token_id", &C::pad_id, 0),
                  R::only("position_embedding_type", "absolute"), R::only("tie_word_embeddings", true),
                  R::only("is_decoder", false)},
                 head_keys("Albert")}),
      {"classifier_dropout_prob", "down_scale_factor", "gap_size", "net_structure_type",
       "num_memory_blocks"});
}

WeightMap map(const C& c) {
  const std::string root = root_of(c, kPrefix), words = root + "embeddings.",
                    layer = root + "encoder.albert_layer_groups.0.albert_layers.0.";
  WeightMap map;
  add_pairs(map, "", words,
            {{"token_embedding", "word_embeddings"},
             {"position_embedding", "position_embeddings"},
             {"type_embedding", "token_type_embeddings"}},
            false);
  add_pair(map, "embedding_norm", words + "LayerNorm");
  add_pair(map, "embedding_projection", root + "encoder.embedding_hidden_mapping_in");
  add_projections(map, "layers.0.self_attn",
                  {layer + "attention.", {"query", "key", "value"}, c.embed_dim, c.embed_dim});
  add_pairs(map, "layers.0.", layer,
            {{"self_attn.out_proj", "attention.dense"},
             {"norm1", "attention.LayerNorm"},
             {"linear1", "ffn"},
             {"linear2", "ffn_output"},
             {"norm2", "full_layer_layer_norm"}});
  if (c.pooler) add_pair(map, "pooler", root + "pooler");
  add_masked_lm(map, c, "predictions.dense", "predictions.LayerNorm", "predictions.bias");
  if (c.head == EncoderHead::classification || c.head == EncoderHead::tokens)
    add_pair(map, "classifier", "classifier");
  return map;
}

// Constants, the tied output layer, and heads that the config does not speak of.
std::vector<ExtraTensor> extras(const C& c) {
  std::vector<ExtraTensor> list = {{"embeddings.position_ids"},
                                   {"embeddings.token_type_ids"},
                                   {"predictions.decoder.weight"},
                                   {"predictions.decoder.bias"},
                                   {.suffix = "", .prefix = "sop_classifier."}};
  if (c.head != EncoderHead::masked_lm) list.push_back({.suffix = "", .prefix = "predictions."});
  return list;
}

C settle(C c, const io::SafetensorsFile& file) {
  c.pooler = c.head == EncoderHead::classification || file.contains("pooler.weight") ||
             file.contains("albert.pooler.weight");
  return c;
}

}  // namespace

Family<C> albert() {
  Family<C> family = {.name = "albert",
                      .architecture = "AlbertModel",
                      .expresses = is_albert,
                      .keys = keys(),
                      .map = map,
                      .prefix = kPrefix,
                      .extras = extras,
                      .settle = settle};
  family.defaults.shared_layers = true;
  return family;
}

}  // namespace multihead::models::detail::albert
