// DistilBERT: BERT without types of tokens and pooler, under names of its own.
#include "multihead/core/error.h"
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail::distilbert {
namespace {

using C = EncoderConfig;
using R = Row<C>;

bool is_distilbert(const C& c) {
  return c.word_dim == c.embed_dim && c.token_types == 0 && c.position_offset == 0 && c.norm_eps == 1e-12 &&
         c.head_activation == c.activation && c.pooler == (c.head == EncoderHead::classification) &&
         (!c.pooler || c.pooler_activation == PoolerActivation::relu);
}

ConfigKeys<C> keys() {
  return R::with_nothing(
      R::joined({{R::field("vocab_size", &C::vocab_size),
                  R::field("max_position_embeddings", &C::context),
                  R::field("dim", &C::embed_dim),
                  R::field("hidden_dim", &C::ffn_dim),
                  R::field("n_layers", &C::num_layers),
                  R::field("n_heads", &C::num_heads),
                  {"activation",
                   [](io::ConfigReader& r, const std::string& key, C& c) {
                     R::read(r, key, c, &C::activation, Activation::gelu);
                     c.head_activation = c.activation;
                   },
                   [](const C& c, const std::string& key, Json& json) { json[key] = stored(c.activation); },
                   row_of(&C::activation)},
                  R::field("dropout", &C::dropout_p, 0.1),
                  R::field("attention_dropout", &C::attention_dropout_p, 0.1),
                  R::field("initializer_range", &C::init_std, 0.02),
                  R::field("pad_token_id", &C::pad_id, 0),
                  R::only("tie_word_embeddings", true),
                  R::only("tie_weights_", true)},
                 head_keys("DistilBert")}),
      // The table of positions is in the file, however it was made.
      {"sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "is_decoder"});
}

WeightMap map(const C& c) {
  const std::string root = root_of(c, "distilbert.");
  WeightMap map = {{"token_embedding.weight", {{root + "embeddings.word_embeddings.weight"}}},
                   {"position_embedding.weight", {{root + "embeddings.position_embeddings.weight"}}}};
  add_pair(map, "embedding_norm", root + "embeddings.LayerNorm");
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string ours = concat("layers.", i, "."), theirs = concat(root, "transformer.layer.", i, ".");
    add_projections(map, ours + "self_attn",
                    {theirs + "attention.", {"q_lin", "k_lin", "v_lin"}, c.embed_dim, c.embed_dim});
    add_pairs(map, ours, theirs,
              {{"self_attn.out_proj", "attention.out_lin"},
               {"norm1", "sa_layer_norm"},
               {"linear1", "ffn.lin1"},
               {"linear2", "ffn.lin2"},
               {"norm2", "output_layer_norm"}});
  }
  if (c.head == EncoderHead::classification) add_pair(map, "pooler", "pre_classifier");
  if (c.num_labels > 0 && c.head != EncoderHead::none) add_pair(map, "classifier", "classifier");
  add_masked_lm(map, c, "vocab_transform", "vocab_layer_norm", "vocab_projector.bias");
  return map;
}

std::vector<ExtraTensor> extras(const C& c) {
  if (c.head != EncoderHead::none) return unread({"vocab_projector.weight", "embeddings.position_ids"});
  return unread({"vocab_projector.weight", "embeddings.position_ids", "vocab_projector.bias",
                 "vocab_transform.weight", "vocab_transform.bias", "vocab_layer_norm.weight",
                 "vocab_layer_norm.bias"});
}

}  // namespace

Family<C> distilbert() {
  Family<C> family = {.name = "distilbert",
                      .architecture = "DistilBertModel",
                      .expresses = is_distilbert,
                      .keys = keys(),
                      .map = map,
                      .prefix = "distilbert.",
                      .extras = extras,
                      .settle = settle_by_head};
  family.defaults.token_types = 0;
  family.defaults.pooler = false;
  family.defaults.pooler_activation = PoolerActivation::relu;
  return family;
}

}  // namespace multihead::models::detail::distilbert
