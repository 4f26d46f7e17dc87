// T5 (Raffel et al. 2020), 1.1, Flan and mT5: biases by distance, unscaled scores, RMS norms, no biases.
#include "multihead/models/families/t5-inl.h"

namespace multihead::models::detail::t5 {
namespace {

using C = Seq2SeqConfig;
using R = Row<C>;

constexpr const char* kShared = "shared.weight";
constexpr const char* kHead = "lm_head.weight";

bool is_t5(const C& c) {
  return c.positions == Positions::none && c.max_positions == kT5Positions && c.relative_buckets > 0 &&
         c.norm == nn::NormKind::rms && c.norm_first && c.final_norm && !c.bias && !c.output_bias &&
         c.share_embeddings && !c.scale_embeddings && c.attention_dropout_p == c.dropout_p &&
         c.ffn_dropout_p == c.dropout_p;
}

// T5 1.0 scales what its tied output layer reads; 1.1 does neither. transformers 4 takes one for the other, 5
// has a key for the scale and ties what the file does not hold apart.
R::Key output_scale() {
  return R::key("scale_decoder_outputs", &C::scale_output,
                [](io::ConfigReader& r, const std::string& key, C& c) {
                  c.scale_output = r.find(key) == nullptr ? c.tie_output : r.boolean_or(key, false);
                });
}

ConfigKeys<C> keys(const std::string& usual_projection) {
  return R::joined({t5_keys(&C::source_vocab_size, &C::encoder_layers, usual_projection),
                    {R::field_or("num_decoder_layers", &C::decoder_layers, &C::encoder_layers),
                     R::field("tie_word_embeddings", &C::tie_output, true),
                     R::constant("is_encoder_decoder", true), R::field("eos_token_id", &C::eos_id, 1),
                     R::field_or("decoder_start_token_id", &C::decoder_start_id, &C::pad_id)}});
}

void add_stack(WeightMap& map, const C& c, bool decoder) {
  const std::string stack = decoder ? "decoder" : "encoder";
  const int64_t layers = decoder ? c.decoder_layers : c.encoder_layers;
  for (int64_t i = 0; i < layers; ++i) {
    const std::string ours = concat("transformer.", stack, ".layers.", i, "."),
                      theirs = concat(stack, ".block.", i, ".layer.");
    add_t5_attention(map, c, ours + "self_attn", theirs + "0.SelfAttention");
    if (decoder) add_t5_attention(map, c, ours + "multihead_attn", theirs + "1.EncDecAttention");
    add_t5_feed_forward(map, c, ours, theirs, decoder ? 2 : 1);
  }
  add_pair(map, concat("transformer.", stack, ".norm"), stack + ".final_layer_norm", false);
  add_pair(map, stack + "_bias", stack + ".block.0.layer.0.SelfAttention.relative_attention_bias", false);
}

WeightMap map(const C& c) {
  WeightMap map = {{"source_embedding.weight", {{kShared}}}};
  if (!c.tie_output) map.push_back({"output.weight", {{kHead}}});
  add_stack(map, c, false);
  add_stack(map, c, true);
  return map;
}

std::vector<ExtraTensor> extras(const C& c) {
  std::vector<ExtraTensor> extras = {
      repeated_tensor("encoder.embed_tokens.weight", kShared),
      repeated_tensor("decoder.embed_tokens.weight", kShared),
      // Published beside the others; nothing reads it.
      {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"}};
  if (c.tie_output) extras.push_back(repeated_tensor(kHead, kShared));
  return extras;
}

C settle(C c, const io::SafetensorsFile& file) {
  c.tie_output = !file.contains(kHead) || file.is_repeated(kHead, kShared);
  return c;
}

Family<C> t5_like(const char* model_type, const char* architecture, const char* usual_projection) {
  Family<C> family = {.name = model_type,
                      .architecture = architecture,
                      .expresses = is_t5,
                      .keys = keys(usual_projection),
                      .map = map,
                      .extras = extras,
                      .settle = settle};
  C& c = family.defaults;
  c.positions = Positions::none, c.max_positions = kT5Positions;
  c.norm = nn::NormKind::rms, c.norm_first = c.final_norm = true;
  c.bias = c.output_bias = c.scale_embeddings = c.scale_scores = false;
  return family;
}

}  // namespace

Family<C> t5() {
  Family<C> family = t5_like("t5", "T5ForConditionalGeneration", "relu");
  family.keys.push_back(output_scale());
  return family;
}

// Its output layer scales nothing. Read only: T5 has room for it.
Family<C> mt5() { return t5_like("mt5", "MT5ForConditionalGeneration", "gated-gelu"); }

}  // namespace multihead::models::detail::t5
