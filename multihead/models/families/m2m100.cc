// M2M100 (Fan et al. 2020) and NLLB: mBART on sinusoids without a norm of embeddings; tokens of languages.
#include "multihead/core/error.h"
#include "multihead/models/families/bart-inl.h"

namespace multihead::models::detail::m2m100 {
namespace {

using C = Seq2SeqConfig;
using R = Row<C>;

bool is_m2m100(const C& c) {
  return c.positions == Positions::sinusoidal && c.sinusoid_layout == nn::SinusoidLayout::tensor2tensor &&
         c.position_offset == c.pad_id + 1 && c.norm == nn::NormKind::layer && c.norm_eps == 1e-5 &&
         c.norm_first && c.final_norm && c.bias && !c.output_bias && c.share_embeddings;
}

ConfigKeys<C> keys() {
  ConfigKeys<C> all = bart::config_keys();
  for (const R::Key& own : {R::field("scale_embedding", &C::scale_embeddings, true),
                            R::field("activation_function", &C::activation, Activation::relu),
                            R::field("attention_dropout", &C::attention_dropout_p, 0.1)}) {
    *std::ranges::find(all, own.name, &R::Key::name) = own;
  }
  all.push_back({"pad_token_id",
                 [](io::ConfigReader&, const std::string&, C& c) { c.position_offset = c.pad_id + 1; },
                 {},
                 row_of(&C::position_offset)});
  all.push_back(R::field_or("decoder_start_token_id", &C::decoder_start_id, &C::eos_id));
  return R::with_nothing(all, {"max_length", "num_beams", "early_stopping"});
}

// The sinusoids of old files, which follow from the rest.
std::vector<ExtraTensor> extras(const C& c) {
  std::vector<ExtraTensor> list = bart::extra_tensors(c);
  list.push_back({"embed_positions.weights"});
  return list;
}

// The padding token has no position.
C settle(C c, const io::SafetensorsFile& file) {
  MH_CHECK(c.pad_id != c.eos_id && c.pad_id != c.decoder_start_id, FormatError, file.path(),
           ": in its config.json, pad_token_id ", c.pad_id,
           " is eos_token_id or decoder_start_token_id, too");
  return c;
}

void complete(const C& c, io::TensorMap& tensors) {
  if (!c.tie_output) tensors[bart::kSource] = tensors[bart::kTarget] = tensors.at(bart::kShared);
}

}  // namespace

Family<C> m2m100() {
  Family<C> family = {.name = "m2m_100",
                      .architecture = "M2M100ForConditionalGeneration",
                      .expresses = is_m2m100,
                      .keys = keys(),
                      .map = bart::weight_map,
                      .prefix = "model.",
                      .extras = extras,
                      .complete = complete,
                      .settle = settle};
  C& c = family.defaults;
  c.sinusoid_layout = nn::SinusoidLayout::tensor2tensor;
  c.norm_first = c.final_norm = true;
  c.output_bias = false;
  return family;
}

}  // namespace multihead::models::detail::m2m100
