// Jina Embeddings v2 (Günther et al. 2023): BERT with linear biases in place of positions and gated
// feed-forward layers. Its folders call themselves "bert" and bring code of their own; that code drops nothing
// after the feed-forward layers, which differs from here in training alone.
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail::jina_bert {
namespace {

using C = EncoderConfig;
using R = Row<C>;
using Reader = io::ConfigReader;

bool is_jina_bert(const C& c) {
  return c.alibi && c.gated && c.bias && c.layer_bias && !c.ffn_in_bias && c.embedding_norm &&
         !c.norm_first && c.word_dim == c.embed_dim && c.token_types > 0 && c.position_offset == 0 &&
         (c.activation == Activation::gelu || c.activation == Activation::relu) &&
         c.ffn_dropout_p == c.dropout_p && c.pooler_activation == PoolerActivation::tanh;
}

bool claims(Reader& r) {
  const Json* positions = r.find("position_embedding_type");
  return positions != nullptr && *positions == Json("alibi");
}

// Gated with gelu or relu; "original", BERT's own layers, is refused.
ConfigKey<C> gate_key() {
  constexpr const char* kGelu = "geglu";
  constexpr const char* kRelu = "reglu";
  return {"feed_forward_type",
          [](Reader& r, const std::string& key, C& c) {
            c.activation = r.choice(key, {kGelu, kRelu}) == 0 ? Activation::gelu : Activation::relu;
          },
          [](const C& c, const std::string& key, Json& json) {
            json[key] = c.activation == Activation::gelu ? kGelu : kRelu;
          },
          row_of(&C::activation)};
}

// The classes are found in the code that the folder names.
void write_code(const C&, const std::string& key, Json& json) {
  const std::string code = "jinaai/jina-bert-implementation--";
  json[key] = Json::object({{"AutoConfig", code + "configuration_bert.JinaBertConfig"},
                            {"AutoModel", code + "modeling_bert.JinaBertModel"}});
  for (const char* task : {"MaskedLM", "SequenceClassification", "TokenClassification"}) {
    json[key][concat("AutoModelFor", task)] = concat(code, "modeling_bert.JinaBertFor", task);
  }
}

ConfigKeys<C> keys() {
  const auto dropout = [](Reader& r, const std::string& key, C& c) {
    c.dropout_p = c.ffn_dropout_p = r.number_or(key, 0.1, kProbability);
  };
  return R::with_nothing(R::joined({size_keys<C>(),
                                    {R::field("hidden_act", &C::head_activation, Activation::gelu),
                                     gate_key(),
                                     R::field("layer_norm_eps", &C::norm_eps, 1e-12),
                                     R::key("hidden_dropout_prob", &C::dropout_p, dropout),
                                     R::field("attention_probs_dropout_prob", &C::attention_dropout_p, 0.1),
                                     R::field("initializer_range", &C::init_std, 0.02),
                                     R::field("pad_token_id", &C::pad_id, 0),
                                     R::field("type_vocab_size", &C::token_types, 2),
                                     {"hidden_dropout_prob", {}, {}, row_of(&C::ffn_dropout_p)},
                                     R::constant("position_embedding_type", "alibi"),
                                     {"position_embedding_type", {}, {}, row_of(&C::alibi)},
                                     {"feed_forward_type", {}, {}, row_of(&C::gated)},
                                     {"feed_forward_type", {}, {}, row_of(&C::ffn_in_bias)},
                                     {"auto_map", {}, write_code}},
                                    head_keys("JinaBert"),
                                    {R::only("tie_word_embeddings", true), R::only("is_decoder", false),
                                     R::only("emb_pooler", "mean")}}),
                         {"model_max_length", "attn_implementation"});
}

WeightMap map(const C& c) {
  const std::string root = root_of(c, "bert.");
  WeightMap map = {{"token_embedding.weight", {{root + "embeddings.word_embeddings.weight"}}},
                   {"type_embedding.weight", {{root + "embeddings.token_type_embeddings.weight"}}}};
  add_pair(map, "embedding_norm", root + "embeddings.LayerNorm");
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string ours = concat("layers.", i, "."), theirs = concat(root, "encoder.layer.", i, ".");
    add_projections(map, ours + "self_attn",
                    {theirs + "attention.self.", {"query", "key", "value"}, c.embed_dim, c.embed_dim});
    map.push_back({ours + "linear1.weight", {{theirs + "mlp.gated_layers.weight"}}});
    add_pairs(map, ours, theirs,
              {{"self_attn.out_proj", "attention.output.dense"},
               {"norm1", "attention.output.LayerNorm"},
               {"linear2", "mlp.wo"},
               {"norm2", "mlp.layernorm"}});
  }
  if (c.pooler) add_pair(map, "pooler", root + "pooler.dense");
  if (c.num_labels > 0) add_pair(map, "classifier", "classifier");
  add_masked_lm(map, c, "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm",
                "cls.predictions.bias");
  return map;
}

std::vector<ExtraTensor> extras(const C& c) {
  std::vector<ExtraTensor> list = unread({"embeddings.position_ids", "encoder.alibi",
                                          "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"});
  if (c.head != EncoderHead::none) return list;
  for (const ExtraTensor& extra :
       unread({"cls.predictions.bias", "cls.predictions.transform.dense.weight",
               "cls.predictions.transform.dense.bias", "cls.predictions.transform.LayerNorm.weight",
               "cls.predictions.transform.LayerNorm.bias"})) {
    list.push_back(extra);
  }
  return list;
}

// The published embedders say that they have a masked_lm head, which their files lack.
C settle(C c, const io::SafetensorsFile& file) {
  if (c.head == EncoderHead::masked_lm && !file.contains("cls.predictions.bias")) c.head = EncoderHead::none;
  return settle_pooler(c, file);
}

}  // namespace

Family<C> jina_bert() {
  Family<C> family = {.name = "bert",
                      .architecture = "JinaBertModel",
                      .expresses = is_jina_bert,
                      .keys = keys(),
                      .map = map,
                      .prefix = "bert.",
                      .extras = extras,
                      .claims = claims,
                      .settle = settle};
  C& defaults = family.defaults;
  defaults.alibi = defaults.gated = true;
  defaults.ffn_in_bias = false;
  return family;
}

}  // namespace multihead::models::detail::jina_bert
