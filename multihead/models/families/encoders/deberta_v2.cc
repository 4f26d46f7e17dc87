// DeBERTa v3 (He et al. 2023) and the models of version 2 with the same plan: BERT whose layers know positions by
// disentangled attention. transformers calls both deberta-v2.
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail::deberta_v2 {
namespace {

using C = EncoderConfig;
using R = Row<C>;
using Reader = io::ConfigReader;

bool is_deberta(const C& c) {
  return c.distance_span > 0 && c.rotary_base == 0 && !c.gated && c.bias && c.layer_bias &&
         c.embedding_norm && !c.norm_first && c.word_dim == c.embed_dim && c.position_offset == 0 &&
         c.head_activation == c.activation && c.pooler == (c.head == EncoderHead::classification) &&
         (!c.pooler || c.pooler_activation == PoolerActivation::gelu);
}

ConfigKey<C> distance() {
  return {"max_relative_positions",
          [](Reader& r, const std::string& key, C& c) {
            const int64_t given = r.integer_or(key, -1, {.min = -1, .max = kBuckets.max});
            c.relative_distance = given > 0 ? given : c.context;
          },
          [](const C& c, const std::string& key, Json& json) { json[key] = c.relative_distance; },
          row_of(&C::relative_distance)};
}

// "p2c|c2p" or a list of them: positions with contents, contents with positions.
ConfigKey<C> compared() {
  return {"pos_att_type",
          [](Reader& r, const std::string& key, C&) {
            const Json* given = r.find(key);
            const std::string text = given == nullptr ? "nothing" : given->dump();
            for (const char* accepted :
                 {R"("p2c|c2p")", R"("c2p|p2c")", R"(["p2c","c2p"])", R"(["c2p","p2c"])"}) {
              if (text == accepted) return;
            }
            r.fail(key, concat("must be \"p2c|c2p\", got ", quote(text, 80)));
          },
          [](const C&, const std::string& key, Json& json) {
            json[key] = Json(std::vector<Json>{Json("p2c"), Json("c2p")});
          }};
}

// Written and without a default, since theirs is another.
ConfigKey<C> required(const char* name, const Json& value) {
  return {name,
          [=](Reader& r, const std::string& key, C&) {
            const Json* given = r.find(key);
            if (given == nullptr || *given != value) {
              r.fail(key, concat("must be ", value.dump(), ", got ",
                                 given == nullptr ? "nothing" : quote(given->dump(), 80)));
            }
          },
          [=](const C&, const std::string& key, Json& json) { json[key] = value; }};
}

ConfigKey<C> pooled_size() {
  return {"pooler_hidden_size",
          [](Reader& r, const std::string& key, C& c) {
            if (r.integer_or(key, c.embed_dim, kSize) != c.embed_dim) r.fail(key, "must be hidden_size");
          },
          {}};
}

ConfigKeys<C> keys() {
  return {R::field("vocab_size", &C::vocab_size),
          R::field("max_position_embeddings", &C::context, 512),
          R::field("hidden_size", &C::embed_dim),
          R::field("intermediate_size", &C::ffn_dim),
          R::field("num_hidden_layers", &C::num_layers),
          R::field("num_attention_heads", &C::num_heads),
          R::field("hidden_act", &C::activation, Activation::gelu),
          {"hidden_act", [](Reader&, const std::string&, C& c) { c.head_activation = c.activation; }},
          R::field("layer_norm_eps", &C::norm_eps, 1e-7),
          R::field("hidden_dropout_prob", &C::dropout_p, 0.1),
          R::field("attention_probs_dropout_prob", &C::attention_dropout_p, 0.1),
          R::field("initializer_range", &C::init_std, 0.02),
          R::field("pad_token_id", &C::pad_id, 0),
          R::field("type_vocab_size", &C::token_types, 0),
          R::field("position_biased_input", &C::learned_positions, true),
          required("relative_attention", true),
          required("share_att_key", true),
          required("norm_rel_ebd", "layer_norm"),
          R::field("position_buckets", &C::distance_span),
          distance(),
          compared(),
          head_key("DebertaV2"),
          labels_key<C>(),
          problem_key<C>(),
          pooled_size(),
          R::only("pooler_hidden_act", "gelu"),
          R::only("legacy", true),
          R::only("conv_kernel_size", 0),
          R::only("tie_word_embeddings", true),
          {"pooler_dropout"},
          {"cls_dropout"}};
}

// Models without a head are kept without the prefix.
WeightMap map(const C& c) {
  const std::string root = c.head == EncoderHead::none ? "" : "deberta.";
  const std::string embeddings = root + "embeddings.", layers = root + "encoder.layer.";
  WeightMap map = {{"token_embedding.weight", {{embeddings + "word_embeddings.weight"}}},
                   {"distance_embedding.weight", {{root + "encoder.rel_embeddings.weight"}}}};
  if (c.learned_positions) {
    map.push_back({"position_embedding.weight", {{embeddings + "position_embeddings.weight"}}});
  }
  if (c.token_types > 0) {
    map.push_back({"type_embedding.weight", {{embeddings + "token_type_embeddings.weight"}}});
  }
  add_pair(map, "embedding_norm", embeddings + "LayerNorm");
  add_pair(map, "distance_norm", root + "encoder.LayerNorm");
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string ours = concat("layers.", i, "."), theirs = concat(layers, i, "."),
                      attention = theirs + "attention.";
    add_projections(
        map, ours + "self_attn",
        {{attention + "self.query_proj", attention + "self.key_proj", attention + "self.value_proj"},
         c.embed_dim,
         c.embed_dim});
    add_pair(map, ours + "self_attn.out_proj", attention + "output.dense");
    add_pair(map, ours + "norm1", attention + "output.LayerNorm");
    add_pair(map, ours + "linear1", theirs + "intermediate.dense");
    add_pair(map, ours + "linear2", theirs + "output.dense");
    add_pair(map, ours + "norm2", theirs + "output.LayerNorm");
  }
  if (c.pooler) add_pair(map, "pooler", "pooler.dense");
  if (c.num_labels > 0) add_pair(map, "classifier", "classifier");
  if (c.head == EncoderHead::masked_lm) {
    add_pair(map, "head_dense", "cls.predictions.transform.dense");
    add_pair(map, "head_norm", "cls.predictions.transform.LayerNorm");
    map.push_back({"head_bias", {{"cls.predictions.bias"}}});
  }
  return map;
}

// The tied output layer, positions that the input goes without, and the heads that training left behind.
std::vector<ExtraTensor> extras(const C& c) {
  std::vector<ExtraTensor> list = {
      {"cls.predictions.decoder.weight"}, {"cls.predictions.decoder.bias"}, {"embeddings.position_ids"}};
  if (!c.learned_positions) list.push_back({"embeddings.position_embeddings.weight"});
  if (c.head == EncoderHead::masked_lm) return list;
  for (const char* head : {"lm_predictions.lm_head.", "mask_predictions."}) {
    for (const char* layer : {"dense.", "LayerNorm.", "classifier."}) {
      for (const char* kind : {"weight", "bias"}) list.push_back({concat(head, layer, kind)});
    }
  }
  list.push_back({"lm_predictions.lm_head.bias"});
  return list;
}

}  // namespace

Family<C> deberta_v2() {
  Family<C> family = {.name = "deberta-v2",
                      .architecture = "DebertaV2Model",
                      .expresses = is_deberta,
                      .keys = keys(),
                      .map = map,
                      .prefix = "deberta.",
                      .extras = extras};
  C& defaults = family.defaults;
  defaults.token_types = 0;
  defaults.pooler = false;
  defaults.pooler_activation = PoolerActivation::gelu;
  return family;
}

}  // namespace multihead::models::detail::deberta_v2
