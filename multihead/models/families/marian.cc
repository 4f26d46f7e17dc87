// Marian and Pegasus (Zhang et al. 2020): BART without its norm of embeddings, on sinusoids.
#include "multihead/core/error.h"
#include "multihead/models/families/bart-inl.h"
#include "multihead/nn/positions.h"

namespace multihead::models::detail::marian {
namespace {

using C = Seq2SeqConfig;
using R = Row<C>;
using Reader = io::ConfigReader;

// Sinusoids in halves, layer norm after each sub-layer, biases everywhere (an output bias that is missing is
// saved as zeros).
bool is_marian_like(const C& c) {
  return c.positions == Positions::sinusoidal && c.sinusoid_layout == nn::SinusoidLayout::halves &&
         c.norm == nn::NormKind::layer && c.norm_eps == 1e-5 && c.bias;
}
bool is_marian(const C& c) { return is_marian_like(c) && !c.norm_first && !c.final_norm; }
bool is_pegasus(const C& c) {
  return is_marian_like(c) && c.norm_first && c.final_norm && c.share_embeddings;
}

void read_shared(Reader& r, const std::string& key, C& c) {
  c.share_embeddings = r.boolean_or(key, true);
  if (c.share_embeddings && c.target_vocab_size != c.source_vocab_size) {
    r.fail("decoder_vocab_size", concat("must equal vocab_size where ", key, " is true"));
  }
}

ConfigKeys<C> keys(bool norm_first) {
  return R::joined({bart::config_keys(),
                    {R::field_or("decoder_start_token_id", &C::decoder_start_id, &C::pad_id),
                     bart::output_bias_key(),
                     R::only("normalize_before", norm_first),
                     R::only("normalize_embedding", false),
                     R::only("static_position_embeddings", true),
                     R::only("add_final_layer_norm", norm_first),
                     R::only("add_bias_logits", false),
                     {"extra_pos_embeddings"}}});  // of no meaning for sinusoids
}

Tensor sinusoids(const C& c) {
  return nn::sinusoidal_positions(c.max_positions, c.embed_dim, 0, nn::SinusoidLayout::halves);
}

std::vector<ExtraTensor> extras(const C& c) {
  const auto expected = [c](const Shape& stored) -> std::vector<Tensor> {
    if (stored != Shape({c.max_positions, c.embed_dim})) return {};
    return {sinusoids(c)};
  };
  std::vector<ExtraTensor> extras = bart::extra_tensors(c);
  extras.push_back(constant_tensor("embed_positions.weight", expected, 1e-4));
  return extras;
}

// transformers wants the sinusoids of Pegasus in the file.
void complete_pegasus(const C& c, io::TensorMap& tensors) {
  bart::complete(c, tensors);
  for (const char* side : {"encoder", "decoder"}) {
    tensors[concat("model.", side, ".embed_positions.weight")] = sinusoids(c);
  }
}

// share_encoder_decoder_embeddings without tie_word_embeddings: transformers 5 unties everything and saves
// three tables besides the shared one, which nothing reads; 4 shares the two embeddings and saves one table.
// The file says which of them wrote it.
C settle(C c, const io::SafetensorsFile& file) {
  if (!c.share_embeddings || c.tie_output) return c;
  c.share_embeddings = !file.contains(bart::kSource) || !file.contains(bart::kTarget) ||
                       (file.contains(bart::kShared) && file.is_repeated(bart::kSource, bart::kShared) &&
                        file.is_repeated(bart::kTarget, bart::kShared));
  return c;
}

}  // namespace

Family<C> marian() {
  Family<C> family = {.name = "marian",
                      .architecture = "MarianMTModel",
                      .expresses = is_marian,
                      .keys = keys(false),
                      .map = bart::weight_map,
                      .extras = extras,
                      .complete = bart::complete,
                      .settle = settle};
  // Two vocabularies, where there are.
  family.keys.push_back(R::field_or("decoder_vocab_size", &C::target_vocab_size, &C::source_vocab_size));
  family.keys.push_back(R::key("share_encoder_decoder_embeddings", &C::share_embeddings, read_shared));
  return family;
}

Family<C> pegasus() {
  Family<C> family = {.name = "pegasus",
                      .architecture = "PegasusForConditionalGeneration",
                      .expresses = is_pegasus,
                      .keys = keys(true),
                      .map = bart::weight_map,
                      .extras = extras,
                      .complete = complete_pegasus};
  family.defaults.norm_first = family.defaults.final_norm = true;
  return family;
}

}  // namespace multihead::models::detail::marian
