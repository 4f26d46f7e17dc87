// Our own layout, for what no other family expresses: the fields under their own names, the weights too.
#include <utility>

#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail::own {
namespace {

template <class Config>
ConfigKeys<Config> field_keys() {
  using R = Row<Config>;
  ConfigKeys<Config> keys;
  for (const ConfigField<Config>& field : config_fields<Config>()) {
    if (field.stored == Stored::training) continue;
    keys.push_back(field.stored == Stored::always ? R::field_with(field.name, field.member, {})
                                                  : R::field_or(field.name, field.member, field.member));
  }
  return keys;
}

// Folders of earlier versions may hold fields that the model did not heed.
void drop_unheeded(io::ConfigReader&, const std::string&, LanguageModelConfig& c) {
  c = heeded(std::move(c));
}

}  // namespace

Family<LanguageModelConfig> language_model() {
  using C = LanguageModelConfig;
  ConfigKeys<C> keys = field_keys<C>();
  // Scaled frequencies are read before "rotary_base", which is told last.
  const ConfigKey<C> rotary = rotary_key();
  keys.insert(keys.begin(), {rotary.name, rotary.read});
  keys.push_back({rotary.name, drop_unheeded, [=](const C& c, const std::string& key, Json& json) {
                    if (c.rotary_scaling != RotaryScaling{}) rotary.write(c, key, json);
                  }});
  return {.name = "multihead",
          .architecture = "LanguageModel",
          .expresses = [](const C&) { return true; },
          .keys = std::move(keys)};
}

namespace {

template <class Config>
Family<Config> with_labels(const char* name, const char* architecture) {
  ConfigKeys<Config> keys = field_keys<Config>();
  keys.push_back(labels_key<Config>());
  keys.push_back({"label2id"});
  return {.name = name,
          .architecture = architecture,
          .expresses = [](const Config&) { return true; },
          .keys = std::move(keys)};
}

}  // namespace

Family<EncoderConfig> encoder() { return with_labels<EncoderConfig>("multihead_encoder", "Encoder"); }
Family<ImageEncoderConfig> image_encoder() {
  return with_labels<ImageEncoderConfig>("multihead_image_encoder", "ImageEncoder");
}

Family<Seq2SeqConfig> seq2seq() {
  using C = Seq2SeqConfig;
  return {.name = "multihead_seq2seq",
          .architecture = "Seq2Seq",
          .expresses = [](const C&) { return true; },
          .keys = field_keys<C>(),
          .defaults = {.activation = Activation::gelu, .dropout_p = 0}};
}

}  // namespace multihead::models::detail::own
