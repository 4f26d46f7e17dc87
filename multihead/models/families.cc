// The families that can be read and written, in the order in which messages list them. Our own express
// everything and come last.
#include "multihead/core/error.h"
#include "multihead/models/family-inl.h"

namespace multihead::models::detail {

Family<LanguageModelConfig> gpt2(), gpt_neox(), opt(), phi(), llama(), mistral(), qwen2(), qwen3(), phi3(),
    gemma(), gemma2(), gemma3(), own_language_model();
Family<Seq2SeqConfig> marian(), pegasus(), bart(), mbart(), t5(), mt5(), m2m100(), own_seq2seq();
Family<EncoderConfig> bert(), roberta(), xlm_roberta(), camembert(), mpnet(), distilbert(), electra(),
    modernbert(), albert(), t5_encoder(), mt5_encoder(), own_encoder();
Family<ImageEncoderConfig> vit(), own_image_encoder();

namespace {

// Qwen3Model of Qwen3ForCausalLM.
std::string base_of(const Family<LanguageModelConfig>& family) {
  if (!family.base.empty()) return family.base;
  const std::string& whole = family.architecture;
  for (const std::string_view head : {"ForCausalLM", "LMHeadModel"}) {
    if (whole.ends_with(head)) return whole.substr(0, whole.size() - head.size()) + "Model";
  }
  return whole;
}

// "architectures" tells whether there is an output layer.
Family<LanguageModelConfig> with_base(Family<LanguageModelConfig> family) {
  using C = LanguageModelConfig;
  const std::string whole = family.architecture, base = base_of(family);
  family.keys.push_back({"architectures",
                         [=](io::ConfigReader& r, const std::string& key, C& c) {
                           const std::vector<std::string> given = r.strings_or(key, {});
                           c.head = given.empty() || given[0] != base;
                         },
                         [=](const C& c, const std::string& key, Json& json) {
                           json[key] = Json(std::vector<Json>{c.head ? whole : base});
                         },
                         row_of(&C::head)});
  return family;
}

}  // namespace

template <>
const std::vector<Family<LanguageModelConfig>>& families() {
  static const std::vector<Family<LanguageModelConfig>> all = [] {
    std::vector<Family<LanguageModelConfig>> list;
    for (auto* family : {gpt2, gpt_neox, opt, phi, llama, mistral, qwen2, qwen3, phi3, gemma, gemma2, gemma3})
      list.push_back(with_base(family()));
    list.push_back(own_language_model());
    return list;
  }();
  return all;
}

template <>
const std::vector<Family<Seq2SeqConfig>>& families() {
  static const std::vector<Family<Seq2SeqConfig>> all = {marian(), pegasus(), bart(),   mbart(),
                                                         t5(),     mt5(),     m2m100(), own_seq2seq()};
  return all;
}

template <>
const std::vector<Family<EncoderConfig>>& families() {
  static const std::vector<Family<EncoderConfig>> all = {
      bert(),    roberta(),    xlm_roberta(), camembert(),  mpnet(),       distilbert(),
      electra(), modernbert(), albert(),      t5_encoder(), mt5_encoder(), own_encoder()};
  return all;
}

template <>
const std::vector<Family<ImageEncoderConfig>>& families() {
  static const std::vector<Family<ImageEncoderConfig>> all = {vit(), own_image_encoder()};
  return all;
}

void add_pair(WeightMap& map, const std::string& ours, const std::string& theirs, bool bias) {
  map.push_back({ours + ".weight", {{theirs + ".weight"}}});
  if (bias) map.push_back({ours + ".bias", {{theirs + ".bias"}}});
}

void add_projections(WeightMap& map, const std::string& attention, const StoredProjections& stored) {
  const auto& [query, key, value] = stored.names;
  for (const char* kind : {"weight", "bias"}) {
    if (kind[0] == 'b' && !stored.bias) continue;
    map.push_back({concat(attention, ".in_proj_", kind),
                   {{concat(query, ".", kind), stored.query_rows},
                    {concat(key, ".", kind), stored.key_rows},
                    {concat(value, ".", kind), stored.key_rows}}});
  }
}

}  // namespace multihead::models::detail
