// BERT and the families that share its plan and most of its names: RoBERTa, XLM-R, CamemBERT, MPNet,
// ELECTRA.
#include "multihead/core/error.h"
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail::bert {
namespace {

using C = EncoderConfig;
using R = Row<C>;
using Reader = io::ConfigReader;

/// The differences between them.
struct Kin {
  const char* model_type;
  const char* stem;    ///< of the classes: "Bert"
  const char* prefix;  ///< of the weights
};
constexpr Kin kBert = {"bert", "Bert", "bert."};
constexpr Kin kElectra = {"electra", "Electra", "electra."};

bool is_bert(const C& c) {
  return c.word_dim == c.embed_dim && c.token_types > 0 && c.position_offset == 0 &&
         c.pooler_activation == PoolerActivation::tanh && c.head_activation == c.activation;
}
bool is_offset(const C& c) {
  return c.word_dim == c.embed_dim && c.position_offset == c.pad_id + 1 &&
         c.pooler_activation == PoolerActivation::tanh && c.head_activation == Activation::gelu;
}
bool is_roberta(const C& c) { return is_offset(c) && c.token_types > 0; }

// transformers has a key for it and computes with 32 whatever it says.
constexpr int64_t kMpnetBuckets = 32;
bool is_mpnet(const C& c) { return is_offset(c) && c.token_types == 0; }
bool is_electra(const C& c) {
  return c.token_types > 0 && c.position_offset == 0 && c.head_activation == Activation::gelu &&
         c.pooler == (c.head == EncoderHead::classification) &&
         (!c.pooler || c.pooler_activation == PoolerActivation::gelu);
}

void read_pad(Reader& r, const std::string& key, C& c) {
  c.pad_id = r.integer_or(key, c.pad_id, kSizeOrNone);
}

// The last rows of RoBERTa's table of positions belong to the first: the table has offset rows more.
ConfigKey<C> offset_context() {
  return {"max_position_embeddings",
          [](Reader& r, const std::string& key, C& c) {
            c.position_offset = c.pad_id + 1;
            c.context = r.integer(key, kSize) - c.position_offset;
            if (c.context < 1) r.fail(key, "leaves no position after the padding's");
          },
          [](const C& c, const std::string& key, Json& json) { json[key] = c.context + c.position_offset; },
          row_of(&C::context)};
}

ConfigKeys<C> common_keys(const ConfigKey<C>& context) {
  return R::joined({{R::key("pad_token_id", &C::pad_id, read_pad)},
                    bert_keys(context, 1e-12),
                    {R::only("position_embedding_type", "absolute"), R::only("tie_word_embeddings", true),
                     R::only("is_decoder", false)}});
}

/// Names of an attention's parts, after "encoder.layer.N.attention.".
struct AttentionNames {
  const char *query, *key, *value, *out, *norm;
};
constexpr AttentionNames kBertAttention = {"self.query", "self.key", "self.value", "output.dense",
                                           "output.LayerNorm"};
constexpr AttentionNames kMpnetAttention = {"attn.q", "attn.k", "attn.v", "attn.o", "LayerNorm"};

void add_layer(WeightMap& map, const C& c, const AttentionNames& names, const std::string& ours,
               const std::string& theirs) {
  const std::string attention = theirs + "attention.";
  add_projections(map, ours + "self_attn",
                  {attention, {names.query, names.key, names.value}, c.embed_dim, c.embed_dim});
  add_pairs(map, ours, attention, {{"self_attn.out_proj", names.out}, {"norm1", names.norm}});
  add_pairs(map, ours, theirs,
            {{"linear1", "intermediate.dense"}, {"linear2", "output.dense"}, {"norm2", "output.LayerNorm"}});
}

WeightMap common_map(const C& c, const std::string& prefix, const AttentionNames& names = kBertAttention) {
  const std::string embeddings = prefix + "embeddings.";
  WeightMap map = {{"token_embedding.weight", {{embeddings + "word_embeddings.weight"}}},
                   {"position_embedding.weight", {{embeddings + "position_embeddings.weight"}}}};
  if (c.token_types > 0) {
    map.push_back({"type_embedding.weight", {{embeddings + "token_type_embeddings.weight"}}});
  }
  add_pair(map, "embedding_norm", embeddings + "LayerNorm");
  for (int64_t i = 0; i < c.num_layers; ++i) {
    add_layer(map, c, names, concat("layers.", i, "."), concat(prefix, "encoder.layer.", i, "."));
  }
  if (c.head == EncoderHead::tokens) add_pair(map, "classifier", "classifier");
  return map;
}

WeightMap bert_map(const C& c) {
  const std::string root = root_of(c, kBert.prefix);
  WeightMap map = common_map(c, root);
  if (c.pooler) add_pair(map, "pooler", root + "pooler.dense");
  if (c.head == EncoderHead::classification) add_pair(map, "classifier", "classifier");
  add_masked_lm(map, c, "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm",
                "cls.predictions.bias");
  return map;
}

WeightMap roberta_map(const C& c) {
  const std::string root = root_of(c, "roberta.");
  WeightMap map = common_map(c, root);
  add_roberta_heads(map, c, root);
  return map;
}

WeightMap mpnet_map(const C& c) {
  const std::string root = root_of(c, "mpnet.");
  WeightMap map = common_map(c, root, kMpnetAttention);
  map.push_back({"relative_bias.weight", {{root + "encoder.relative_attention_bias.weight"}}});
  add_roberta_heads(map, c, root);
  return map;
}

WeightMap electra_map(const C& c) {
  const std::string root = root_of(c, kElectra.prefix);
  WeightMap map = common_map(c, root);
  if (c.word_dim != c.embed_dim) add_pair(map, "embedding_projection", root + "embeddings_project");
  if (c.head == EncoderHead::classification) {
    add_pair(map, "pooler", "classifier.dense");
    add_pair(map, "classifier", "classifier.out_proj");
  }
  add_masked_lm(map, c, "generator_predictions.dense", "generator_predictions.LayerNorm",
                "generator_lm_head.bias");
  return map;
}

// Constants, tied weights, and the heads that other tasks left behind. A file may hold a head that its config
// does not speak of, such as ColBERT's projection: the encoder alone is read then.
std::vector<ExtraTensor> extras(const C& c) {
  std::vector<ExtraTensor> list =
      unread({"embeddings.position_ids", "embeddings.token_type_ids", "cls.seq_relationship.weight",
              "cls.seq_relationship.bias", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias",
              "lm_head.decoder.weight", "lm_head.decoder.bias", "generator_lm_head.weight",
              "discriminator_predictions.dense.weight", "discriminator_predictions.dense.bias",
              "discriminator_predictions.dense_prediction.weight",
              "discriminator_predictions.dense_prediction.bias"});
  if (c.head != EncoderHead::none) return list;
  for (const ExtraTensor& extra : unread(
           {"cls.predictions.bias", "cls.predictions.transform.dense.weight",
            "cls.predictions.transform.dense.bias", "cls.predictions.transform.LayerNorm.weight",
            "cls.predictions.transform.LayerNorm.bias", "cls.predictions.transform.LayerNorm.gamma",
            "cls.predictions.transform.LayerNorm.beta", "lm_head.bias", "lm_head.dense.weight",
            "lm_head.dense.bias", "lm_head.layer_norm.weight", "lm_head.layer_norm.bias", "linear.weight"})) {
    list.push_back(extra);
  }
  return list;
}

Family<C> bert_like(const Kin& kin, bool (*expresses)(const C&), const ConfigKey<C>& context) {
  return {.name = kin.model_type,
          .architecture = concat(kin.stem, "Model"),
          .expresses = expresses,
          .keys = R::joined({common_keys(context), head_keys(kin.stem)}),
          .prefix = kin.prefix,
          .extras = extras,
          .settle = settle_pooler};
}

ConfigKey<C> types_key() { return R::field("type_vocab_size", &C::token_types, 2); }

Family<C> roberta_like(const char* model_type, const char* stem) {
  Family<C> family = bert_like({model_type, stem, "roberta."}, is_roberta, offset_context());
  family.keys.push_back(types_key());
  family.map = roberta_map;
  family.defaults.pad_id = 1;
  return family;
}

}  // namespace

Family<C> bert() {
  Family<C> family = bert_like(kBert, is_bert, R::field("max_position_embeddings", &C::context));
  family.keys.push_back(types_key());
  family.map = bert_map;
  // Its masked_lm head has the activation of the layers.
  family.keys.push_back(
      {"hidden_act", [](Reader&, const std::string&, C& c) { c.head_activation = c.activation; }});
  return family;
}

Family<C> roberta() { return roberta_like("roberta", "Roberta"); }
Family<C> xlm_roberta() { return roberta_like("xlm-roberta", "XLMRoberta"); }
Family<C> camembert() { return roberta_like("camembert", "Camembert"); }

Family<C> mpnet() {
  Family<C> family = bert_like({"mpnet", "MPNet", "mpnet."}, is_mpnet, offset_context());
  family.keys.push_back(R::constant("relative_attention_num_buckets", kMpnetBuckets));
  family.map = mpnet_map;
  // transformers counts MPNet's positions from 1, whatever the key says.
  std::erase_if(family.keys, [](const ConfigKey<C>& key) { return key.name == "pad_token_id"; });
  family.keys.push_back({"pad_token_id"});
  family.defaults.relative_buckets = kMpnetBuckets;
  family.defaults.token_types = 0;
  family.defaults.pad_id = 1;
  return family;
}

Family<C> electra() {
  Family<C> family = bert_like(kElectra, is_electra, R::field("max_position_embeddings", &C::context));
  family.keys.push_back(types_key());
  family.map = electra_map;
  family.settle = settle_by_head;
  family.defaults.pooler = false;
  family.defaults.pooler_activation = PoolerActivation::gelu;
  family.keys.push_back(R::field_or("embedding_size", &C::word_dim, &C::embed_dim));
  family.keys = R::with_nothing(family.keys, {"summary_type", "summary_use_proj", "summary_activation",
                                              "summary_last_dropout", "generator_size"});
  return family;
}

}  // namespace multihead::models::detail::bert
