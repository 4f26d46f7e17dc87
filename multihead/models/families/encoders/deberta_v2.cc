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

ConfigKey<C> pooled_size() {
  return {"pooler_hidden_size",
          [](Reader& r, const std::string& key, C& c) {
            if (r.integer_or(key, c.embed_dim, kSize) != c.embed_dim) r.fail(key, "must be hidden_size");
          },
          {}};
}

void read_buckets(Reader& r, const std::string& key, C& c) { c.distance_span = r.integer(key, kSize); }

ConfigKeys<C> keys() {
  return R::joined(
      {bert_keys(R::field("max_position_embeddings", &C::context, 512), 1e-7),
       {{"hidden_act", [](Reader&, const std::string&, C& c) { c.head_activation = c.activation; }},
        R::field("pad_token_id", &C::pad_id, 0),
        R::field("type_vocab_size", &C::token_types, 0),
        R::field("position_biased_input", &C::learned_positions, true),
        R::required("relative_attention", true),
        R::required("share_att_key", true),
        R::required("norm_rel_ebd", "layer_norm"),
        R::key("position_buckets", &C::distance_span, read_buckets),
        distance(),
        compared()},
       head_keys("DebertaV2"),
       {pooled_size(),
        R::only("pooler_hidden_act", "gelu"),
        R::only("legacy", true),
        R::only("conv_kernel_size", 0),
        R::only("tie_word_embeddings", true),
        {"pooler_dropout"},
        {"cls_dropout"}}});
}

WeightMap map(const C& c) {
  const std::string root = root_of(c, "deberta."), embeddings = root + "embeddings.";
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
    const std::string ours = concat("layers.", i, "."), theirs = concat(root, "encoder.layer.", i, ".");
    add_projections(
        map, ours + "self_attn",
        {theirs + "attention.self.", {"query_proj", "key_proj", "value_proj"}, c.embed_dim, c.embed_dim});
    add_pairs(map, ours, theirs,
              {{"self_attn.out_proj", "attention.output.dense"},
               {"norm1", "attention.output.LayerNorm"},
               {"linear1", "intermediate.dense"},
               {"linear2", "output.dense"},
               {"norm2", "output.LayerNorm"}});
  }
  if (c.pooler) add_pair(map, "pooler", "pooler.dense");
  if (c.num_labels > 0) add_pair(map, "classifier", "classifier");
  add_masked_lm(map, c, "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm",
                "cls.predictions.bias");
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
