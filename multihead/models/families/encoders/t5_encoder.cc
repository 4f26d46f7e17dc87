// The encoders of T5 and mT5 alone (T5EncoderModel, sentence-t5), from folders of the whole model too.
#include "multihead/models/families/t5-inl.h"

namespace multihead::models::detail::t5_encoder {
namespace {

using C = EncoderConfig;
using R = Row<C>;

constexpr const char* kPrefix = "transformer.";  // of models with a head

bool is_t5_encoder(const C& c) {
  return !c.learned_positions && c.rotary_base == 0 && c.context == kT5Positions && c.relative_buckets > 0 &&
         c.norm == nn::NormKind::rms && c.norm_first && !c.embedding_norm && !c.bias && !c.scale_scores &&
         c.word_dim == c.embed_dim && c.token_types == 0 && c.position_offset == 0 && !c.pooler &&
         (c.head == EncoderHead::none || c.head == EncoderHead::tokens) && !c.transforms_labels &&
         c.attention_dropout_p == c.dropout_p && c.ffn_dropout_p == c.dropout_p;
}

// Any class but that of labels is read for its encoder.
ConfigKey<C> head(const std::string& stem) {
  const std::string tokens = stem + "ForTokenClassification";
  const auto read = [=](io::ConfigReader& r, const std::string& key, C& c) {
    const std::vector<std::string> given = r.strings_or(key, {});
    if (!given.empty() && given[0] == tokens) c.head = EncoderHead::tokens;
  };
  const auto write = [=](const C& c, const std::string& key, Json& json) {
    json[key] = Json(std::vector<Json>{c.head == EncoderHead::tokens ? tokens : stem + "EncoderModel"});
  };
  return {"architectures", read, write, row_of(&C::head)};
}

WeightMap map(const C& c) {
  const std::string root = root_of(c, kPrefix);
  WeightMap map = {{"token_embedding.weight", {{root + "shared.weight"}}}};
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string ours = concat("layers.", i, "."), theirs = concat(root, "encoder.block.", i, ".layer.");
    add_t5_attention(map, c, ours + "self_attn", theirs + "0.SelfAttention");
    add_t5_feed_forward(map, c, ours, theirs, 1);
  }
  add_pair(map, "final_norm", root + "encoder.final_layer_norm", false);
  add_pair(map, "relative_bias", root + "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
           false);
  if (c.head == EncoderHead::tokens) add_pair(map, "classifier", "classifier");
  return map;
}

std::vector<ExtraTensor> extras(const C&) {
  return {repeated_tensor("encoder.embed_tokens.weight", "shared.weight", kPrefix),
          {.suffix = "", .prefix = "decoder."},
          {"lm_head.weight"}};
}

Family<C> t5_encoder_like(const char* model_type, const std::string& stem, const char* usual_projection) {
  Family<C> family = {
      .name = model_type,
      .architecture = stem + "EncoderModel",
      .expresses = is_t5_encoder,
      .keys = R::with_nothing(R::joined({t5_keys(&C::vocab_size, &C::num_layers, usual_projection),
                                         {head(stem), labels_key<C>(), R::only("is_decoder", false)}}),
                              {"num_decoder_layers", "is_encoder_decoder", "eos_token_id",
                               "tie_word_embeddings", "decoder_start_token_id", "scale_decoder_outputs"}),
      .map = map,
      .prefix = kPrefix,
      .extras = extras};
  C& c = family.defaults;
  c.learned_positions = c.embedding_norm = c.bias = c.scale_scores = c.pooler = false;
  c.context = kT5Positions, c.token_types = 0;
  c.norm = nn::NormKind::rms, c.norm_first = true;
  return family;
}

}  // namespace

Family<C> t5_encoder() { return t5_encoder_like("t5", "T5", "relu"); }
Family<C> mt5_encoder() { return t5_encoder_like("mt5", "MT5", "gated-gelu"); }

}  // namespace multihead::models::detail::t5_encoder
