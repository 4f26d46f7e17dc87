// The heads of encoders in config.json: a class of transformers, and the names of labels.
#include "multihead/core/error.h"
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail {
namespace {

using C = EncoderConfig;
using R = Row<C>;
using Reader = io::ConfigReader;

constexpr std::pair<const char*, EncoderHead> kClasses[] = {
    {"Model", EncoderHead::none},
    {"ForMaskedLM", EncoderHead::masked_lm},
    {"ForSequenceClassification", EncoderHead::classification},
    {"ForTokenClassification", EncoderHead::tokens},
    {"ForPreTraining", EncoderHead::none}};

ConfigKey<C> head_key(const std::string& stem) {
  const auto read = [=](Reader& r, const std::string& key, C& c) {
    const std::vector<std::string> given = r.strings_or(key, {});
    if (given.empty() || (stem == "Bert" && given[0] == "HF_ColBERT") ||
        (stem == "XLMRoberta" && given[0] == "XLMRobertaLoRA")) {
      return;
    }
    for (const auto& [suffix, head] : kClasses) {
      if (given[0] == stem + suffix) {
        c.head = head;
        if (head == EncoderHead::classification) c.pooler = true;
        return;
      }
    }
    r.fail(key, concat("is ", quote(given[0]), "; supported are ", stem,
                       "Model, ForMaskedLM, ForSequenceClassification and ForTokenClassification"));
  };
  const auto write = [=](const C& c, const std::string& key, Json& json) {
    for (const auto& [suffix, head] : kClasses) {
      if (head != c.head) continue;
      json[key] = Json(std::vector<Json>{stem + suffix});
      return;
    }
  };
  return {"architectures", read, write, row_of(&C::head)};
}

}  // namespace

ConfigKeys<C> dropout_keys(double norm_eps, double dropout) {
  return {R::field("layer_norm_eps", &C::norm_eps, norm_eps),
          R::field("hidden_dropout_prob", &C::dropout_p, dropout),
          R::field("attention_probs_dropout_prob", &C::attention_dropout_p, dropout),
          R::field("initializer_range", &C::init_std, 0.02)};
}

ConfigKeys<C> bert_keys(const ConfigKey<C>& context, double norm_eps) {
  return R::joined({size_keys<C>(context),
                    {R::field("hidden_act", &C::activation, Activation::gelu)},
                    dropout_keys(norm_eps)});
}

ConfigKeys<C> head_keys(const std::string& stem) {
  return {head_key(stem), labels_key<C>(), problem_key<C>()};
}

template <class Config>
ConfigKey<Config> labels_key() {
  const auto read = [](Reader& r, const std::string& key, Config& c) {
    if (c.head != EncoderHead::classification && c.head != EncoderHead::tokens) return r.ignore({key});
    const Json* given = r.find(key);
    if (given == nullptr || !given->is_object()) {
      c.num_labels = r.integer_or("num_labels", 2, kSize);
      return;
    }
    c.num_labels = static_cast<int64_t>(given->size());
    for (int64_t i = 0; i < c.num_labels; ++i) {
      const Json* name = given->find(std::to_string(i));
      if (name == nullptr || !name->is_string()) r.fail(key, concat("has no name for label ", i));
      c.labels.push_back(name->as_string());
    }
  };
  const auto write = [](const Config& c, const std::string& key, Json& json) {
    if (c.num_labels == 0) return;
    json[key] = Json::object();
    for (int64_t i = 0; i < c.num_labels; ++i) {
      const auto at = static_cast<size_t>(i);
      const std::string name = c.labels.empty() ? concat("LABEL_", i) : c.labels[at];
      json[key][std::to_string(i)] = name;
      json["label2id"][name] = i;
    }
  };
  return {"id2label", read, write, row_of(&Config::num_labels)};
}
template ConfigKey<EncoderConfig> labels_key();
template ConfigKey<ImageEncoderConfig> labels_key();

template <class Config>
ConfigKey<Config> problem_key() {
  const auto read = [](Reader& r, const std::string& key, Config& c) {
    if (c.head != EncoderHead::classification) return r.ignore({key});
    c.problem_type = read_word(r, key, std::optional(ProblemType::unstated));
  };
  const auto write = [](const Config& c, const std::string& key, Json& json) {
    if (c.problem_type != ProblemType::unstated) json[key] = stored(c.problem_type);
  };
  return {"problem_type", read, write, row_of(&Config::problem_type)};
}
template ConfigKey<EncoderConfig> problem_key();
template ConfigKey<ImageEncoderConfig> problem_key();

std::string root_of(const C& c, const char* prefix) { return c.head == EncoderHead::none ? "" : prefix; }

void add_masked_lm(WeightMap& map, const C& c, const char* dense, const char* norm, const char* bias) {
  if (c.head != EncoderHead::masked_lm) return;
  add_pair(map, "head_dense", dense);
  add_pair(map, "head_norm", norm);
  map.push_back({"head_bias", {{bias}}});
}

void add_roberta_heads(WeightMap& map, const C& c, const std::string& root) {
  const bool classifies = c.head == EncoderHead::classification;
  if (c.pooler) add_pair(map, "pooler", classifies ? "classifier.dense" : root + "pooler.dense");
  if (classifies) add_pair(map, "classifier", "classifier.out_proj");
  add_masked_lm(map, c, "lm_head.dense", "lm_head.layer_norm", "lm_head.bias");
}

C settle_pooler(C c, const io::SafetensorsFile& file) {
  const auto has_pooler = [](const std::string& name) { return name.ends_with("pooler.dense.weight"); };
  const std::vector<std::string> names = file.names();
  c.pooler = c.head == EncoderHead::classification || std::any_of(names.begin(), names.end(), has_pooler);
  return c;
}

C settle_by_head(C c, const io::SafetensorsFile&) {
  c.pooler = c.head == EncoderHead::classification;
  return c;
}

}  // namespace multihead::models::detail
