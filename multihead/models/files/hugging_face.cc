#include "multihead/models/files/hugging_face.h"

#include <algorithm>
#include <type_traits>

#include "multihead/core/error.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/io/checkpoint.h"
#include "multihead/io/file_set.h"
#include "multihead/io/json.h"
#include "multihead/models/families/family-inl.h"
#include "multihead/models/files/adapter.h"
#include "multihead/models/files/folder_kinds-inl.h"
#include "multihead/models/files/gguf.h"
#include "multihead/models/files/gguf_encoder-inl.h"
#include "multihead/models/files/overwrite-inl.h"
#include "multihead/models/files/task_adapters.h"
#include "multihead/models/packed_weights-inl.h"
#include "multihead/nn/unfilled-inl.h"

namespace multihead::models {
namespace {

using namespace detail;  // NOLINT(google-build-using-namespace): models' own internals

constexpr const char* kHeadPrefix = "head.";  // of a language model's output layer

// Fields that came later and that the family lacks must be what they are without being said.
template <class Config>
bool can_hold(const Family<Config>& family, const Config& config) {
  if (family.map == nullptr) return true;
  const auto is_held = [&](const ConfigField<Config>& field) {
    return std::any_of(family.keys.begin(), family.keys.end(),
                       [&](const auto& key) { return key.field == &field; });
  };
  const std::vector<ConfigField<Config>>& fields = config_fields<Config>();
  return std::all_of(fields.begin(), fields.end(), [&](const ConfigField<Config>& field) {
    const auto in = [&](const Config& c) { return Row<Config>::get(c, field.member); };
    return field.stored != Stored::later || is_held(field) || in(config) == in(family.defaults);
  });
}

// The first that expresses what is resolved.
template <class Config>
const Family<Config>& family_for(const Config& config) {
  const std::vector<Family<Config>>& all = families<Config>();
  return *std::find_if(all.begin(), all.end(),
                       [&](const auto& f) { return f.expresses(config) && can_hold(f, config); });
}

// Fields that only training needs; none for encoder-decoder models.
template <class Config>
std::vector<ConfigField<Config>> training_fields() {
  std::vector<ConfigField<Config>> fields = config_fields<Config>();
  std::erase_if(fields, [](const auto& field) { return field.stored != Stored::training; });
  return fields;
}

template <class Config>
Json to_json(const Config& c, const Family<Config>& family) {
  Json json = Json::object(
      {{"architectures", Json(std::vector<Json>{family.architecture})}, {"model_type", family.name}});
  for (const ConfigKey<Config>& key : family.keys) {
    if (key.write) key.write(c, key.name, json);
  }
  for (const ConfigField<Config>& field : training_fields<Config>())
    Row<Config>::key(field.name, field.member, nullptr).write(c, field.name, json["multihead"]);
  json["torch_dtype"] = "float32";
  return json;
}

template <class Config>
Json to_json(const Config& config) {
  const Config c = resolved(config);
  return to_json(c, family_for(c));
}

template <class Config>
Json whole_to_json(const Config& config) {
  return to_json(resolved(config), families<Config>().back());
}

// The file's names of the fields that a message calls by ours, for its end.
template <class Config>
std::string names_in_file(std::string_view message, const Family<Config>& family) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz_";
  Enumeration names;
  while (!message.empty()) {
    const size_t end = std::min(message.find_first_not_of(kLetters), message.size());
    const std::string_view word = message.substr(0, end);
    const auto is_meant = [&](const ConfigKey<Config>& key) {
      return key.field != nullptr && key.field->name == word && key.name != word;
    };
    const auto found = std::ranges::find_if(family.keys, is_meant);
    if (found != family.keys.end()) names.add(concat(word, " is ", quote(found->name)));
    message.remove_prefix(std::min(end + 1, message.size()));
  }
  return names.empty() ? "" : concat(" (in this file, ", names.text(), ")");
}

template <class Config>
Config from_json(io::ConfigReader& reader, const std::string& where, const Family<Config>& family) {
  Config c = family.defaults;
  family.map != nullptr ? read_keys(reader, family.keys, c) : read_rows(reader, family.keys, c);
  std::optional<io::ConfigReader> training;
  for (const ConfigField<Config>& field : training_fields<Config>()) {
    if (!training) training = reader.optional_child("multihead");
    if (training)
      Row<Config>::read(*training, field.name, c, field.member, Row<Config>::get(c, field.member));
  }
  if (training) training->refuse_unknown();
  reader.ignore({"architectures", "torch_dtype"});
  reader.refuse_unknown();
  try {
    return resolved(c);
  } catch (const std::invalid_argument& error) {
    throw FormatError(concat(where, ": ", error.what(), names_in_file(error.what(), family)));
  }
}

// Models without their output layer are kept without the prefix.
WeightMap without_head(WeightMap map, const std::string& prefix) {
  for (WeightRule& rule : map) {
    for (WeightPart& part : rule.parts) {
      if (part.name.starts_with(prefix)) part.name.erase(0, prefix.size());
    }
  }
  std::erase_if(map, [](const WeightRule& rule) { return rule.parameter.starts_with(kHeadPrefix); });
  return map;
}

template <class Model, class Config>
WeightMap map_of(Model& model, const Family<Config>& family) {
  if (family.map == nullptr) return identity_map(nn::named_parameters(model));
  if constexpr (std::is_same_v<Model, LanguageModel>) {
    if (!model.config().head) return without_head(family.map(model.config()), family.prefix);
  }
  return family.map(model.config());
}

// A masked_lm head's output layer is the embeddings, which files may hold again.
void check_outputs(std::vector<ExtraTensor>& extras, const WeightMap& map, const std::string& prefix) {
  const auto& words = std::ranges::find(map, "token_embedding.weight", &WeightRule::parameter)->parts[0].name;
  for (ExtraTensor& e : extras) {
    for (const char* output : {"decoder.weight", "vocab_projector.weight", "lm_head.weight"})
      if (!e.problem && e.suffix.ends_with(output)) e = repeated_tensor(e.suffix, words, prefix);
  }
}

template <class Model, class Config>
std::vector<ExtraTensor> extras_of(const Model& model, const Family<Config>& family) {
  std::vector<ExtraTensor> extras;
  if (family.extras != nullptr) extras = family.extras(model.config());
  if constexpr (std::is_same_v<Model, Encoder>) {
    if (model.config().head == EncoderHead::masked_lm && family.map != nullptr)
      check_outputs(extras, family.map(model.config()), family.prefix);
  }
  if constexpr (std::is_same_v<Model, LanguageModel>) {
    if (model.config().head) return extras;
    LanguageModelConfig whole = model.config();
    whole.head = true, whole.tie_embeddings = false;
    const WeightMap map = family.map != nullptr ? family.map(whole) : WeightMap();
    for (const WeightRule& rule : map) {
      if (rule.parameter.starts_with(kHeadPrefix)) extras.push_back({rule.parts[0].name});
    }
  }
  return extras;
}

// Several families may have the same models under other names: the one most of whose names the file has.
template <class Model>
auto& family_in(const io::SafetensorsFile& file, Model& model) {
  const auto& config = model.config();
  const auto* best = &family_for(config);
  int64_t most = 0;
  for (const auto& family : families<std::decay_t<decltype(config)>>()) {
    if (!family.expresses(config) || !can_hold(family, config)) continue;
    const std::string& prefix = family.prefix;
    const auto is_there = [&](const std::string& name) {
      return file.contains(name) || file.contains(prefix + name) ||
             (name.starts_with(prefix) && file.contains(name.substr(prefix.size())));
    };
    int64_t found = 0;
    for (const WeightRule& rule : map_of(model, family)) {
      for (const WeightPart& part : rule.parts) found += is_there(part.name) ? 1 : 0;
    }
    if (found > most) most = found, best = &family;
  }
  return *best;
}

template <class Model>
io::TensorMap tensors_of(Model& model) {
  if constexpr (std::is_same_v<Model, LanguageModel>) {
    if (model.packed_dtype()) return packed_tensors(model);
  }
  const auto& family = family_for(model.config());
  io::TensorMap tensors = export_weights(nn::named_parameters(model), map_of(model, family));
  if (family.complete != nullptr) family.complete(model.config(), tensors);
  return tensors;
}

template <class Model>
void save(Model& model, const std::string& folder, bool overwrite) {
  const Json json = config_to_json(model.config());
  if (!overwrite) detail::refuse_another_model(json, folder);
  const std::string config = json.dump(2) + "\n";
  // The tokenizer of another model goes with it.
  const bool whole = overwrite && io::holds_other(folder, "config.json", config);
  io::save_files(folder, whole ? io::model_folder_files(folder) : io::kModelFiles,
                 [&](io::DirectoryWriter& writer) {
                   io::write_contents(writer, {.tensors = {{"model.safetensors", tensors_of(model)}},
                                               .files = {{"config.json", config}}});
                 });
}

template <class Model>
ImportOptions import_options(const Model& model, const auto& family, bool fresh) {
  return {.optional_prefix = family.prefix, .extras = extras_of(model, family), .fresh = fresh};
}

template <class Model>
void fill(Model& model, const io::SafetensorsFile& file, bool fresh) {
  const auto& family = family_in(file, model);
  import_weights(nn::named_parameters(model), map_of(model, family), file,
                 import_options(model, family, fresh));
}

/// `loader`: the class of transformers that reads such folders. `packed_as`: of a language model whose file
/// is not packed.
template <class Model, class Config>
Model load(const std::string& folder, Config (*read)(const Json&, const std::string&), const char* loader,
           std::optional<nn::WeightDtype> packed_as = {}) {
  const std::string path = config_path(folder);
  Config config = read(io::load_json(path), path);
  const io::SafetensorsFile file = open_weights(folder, loader);
  const Family<Config>& family = family_for(config);
  if (family.settle != nullptr) config = family.settle(config, file);
  const std::optional<nn::WeightDtype> packed = packed_dtype(file);
  check_size(file, packed ? matrix_weights(config) / 2 : matrix_weights(config));
  const nn::UnfilledParameters unfilled;
  Rng rng(0);
  Model model(config, rng);
  if constexpr (std::is_same_v<Model, LanguageModel>) {
    if (packed) {
      fill_packed(model, file, *packed);
      return model;
    }
    if (packed_as) {
      const auto& held = family_in(file, model);
      pack_while_read(model, map_of(model, held), file, import_options(model, held, true), *packed_as);
      return model;
    }
  }
  fill(model, file, true);
  return model;
}

template <class Model>
std::vector<std::string> merge(Model& model, const std::string& folder) {
  const auto& family = family_for(model.config());
  return merge_adapter(nn::named_parameters(model), map_of(model, family),
                       {.optional_prefix = family.prefix, .tied = tied_parameters(model.config())}, folder);
}

template <class Config>
std::string names_of_families() {
  Enumeration names;
  for (const auto& family : families<Config>()) {
    if (family.claims == nullptr) names.add(family.name);
  }
  return names.text();
}

// Names the kind of model that this type belongs to instead, or nothing.
template <class Config>
std::string other_kind(const std::string& type) {
  const auto is = [&]<class C>(C) { return !std::is_same_v<C, Config> && family_named<C>(type) != nullptr; };
  if (is(LanguageModelConfig()))
    return "a language model; use AutoModel, load_language_model() in C++ or the verb generate";
  if (is(Seq2SeqConfig())) return "a translator; use AutoModel, load_seq2seq() in C++ or the verb translate";
  if (is(EncoderConfig())) return "an encoder; use AutoModel, load_encoder() in C++ or the verb embed";
  if (is(ImageEncoderConfig()))
    return "an encoder of images; use AutoModel, load_image_encoder() in C++ or the verb classify --image";
  return {};
}

// The family that "model_type" names. Throws FormatError with its other kind, or the list of all families.
template <class Config>
const Family<Config>& named_family(io::ConfigReader& reader) {
  const std::string type = reader.string("model_type");
  for (const Family<Config>& family : families<Config>()) {
    if (family.name == type && family.claims != nullptr && family.claims(reader)) return family;
  }
  if (const Family<Config>* family = family_named<Config>(type)) return *family;
  const std::string other = other_kind<Config>(type);
  if (!other.empty()) reader.fail("model_type", concat("is ", quote(type, 80), ", ", other));
  reader.fail(
      "model_type",
      concat("is ", quote(type, 80), ", which is not supported; supported are, of language models, ",
             names_of_families<LanguageModelConfig>(), "; of encoder-decoder models, ",
             names_of_families<Seq2SeqConfig>(), "; of encoders, ", names_of_families<EncoderConfig>(),
             "; of encoders of images, ", names_of_families<ImageEncoderConfig>()));
}

template <class Model>
void save_unpacked(Model& model, const std::string& folder, bool overwrite, const char* loader) {
  MH_CHECK(!model.packed_dtype(), ValueError,
           "save: the encoder's weights are packed for inference; save the one that ", loader, "() gives");
  save(model, folder, overwrite);
}

template <class Model, class Load>
Model load_adapted(const std::string& folder, Load&& load_base) {
  Model model = load_base(base_of_adapter(folder));
  load_adapter(model, folder);
  return model;
}

// The encoder of its own config, which may have a head that the adapter brings.
Encoder load_adapted_encoder(const std::string& folder) {
  const std::string path = config_path(folder);
  std::vector<std::string> missing;
  Rng rng(0);
  Encoder model = with_weights(encoder_config_from_json(io::load_json(path), path),
                               load_encoder(base_of_adapter(folder), nn::WeightDtype::f32), rng, &missing);
  const std::vector<std::string> changed = merge(model, folder);
  std::erase_if(missing, [&](const std::string& name) {
    return std::find(changed.begin(), changed.end(), name) != changed.end();
  });
  MH_CHECK(missing.empty(), FormatError, folder, ": neither the adapter nor its model has ", missing.front());
  return model;
}

// What a model is packed as that is not stored packed, if it is.
std::optional<nn::WeightDtype> packing_of(std::optional<nn::WeightDtype> weights, bool packed) {
  const nn::WeightDtype dtype = weights.value_or(nn::WeightDtype::f32);
  return packed || dtype != nn::WeightDtype::f32 ? std::optional(dtype) : std::nullopt;
}

LanguageModel load_language_model_with(const std::string& folder, std::optional<nn::WeightDtype> weights,
                                       bool packed,
                                       LanguageModelConfig (*read)(const Json&, const std::string&)) {
  const bool as_f32 = weights.value_or(nn::WeightDtype::f32) == nn::WeightDtype::f32;
  const std::optional<nn::WeightDtype> packed_as = packing_of(weights, packed);
  const auto load_base = [&](const std::string& base) {
    return load_language_model_with(base, nn::WeightDtype::f32, false, read);
  };
  LanguageModel model = is_adapter_folder(folder) ? load_adapted<LanguageModel>(folder, load_base)
                        : is_gguf(folder)
                            ? load_gguf(folder, weights.has_value(), packed_as)
                            : load<LanguageModel>(folder, read, "AutoModelForCausalLM", packed_as);
  const bool other = !as_f32 && model.packed_dtype() != weights;  // of a folder packed otherwise: refused
  if (other || (packed_as && !model.packed_dtype())) model.pack_weights(*packed_as);
  return model;
}

}  // namespace

void load_adapter(LanguageModel& model, const std::string& folder) {
  MH_CHECK(!model.packed_dtype(), ValueError,
           "load_adapter: the model's weights are packed; load it as it is stored");
  merge(model, folder);
}
void load_adapter(Seq2Seq& model, const std::string& folder) { merge(model, folder); }
void load_adapter(Encoder& model, const std::string& folder) {
  MH_CHECK(!model.packed_dtype(), ValueError,
           "load_adapter: the encoder's weights are packed; use the one that load_encoder() gives");
  merge(model, folder);
}

const std::string& family_of(const LanguageModelConfig& config) { return family_for(resolved(config)).name; }
const std::string& family_of(const Seq2SeqConfig& config) { return family_for(resolved(config)).name; }
const std::string& family_of(const EncoderConfig& config) { return family_for(resolved(config)).name; }
const std::string& family_of(const ImageEncoderConfig& config) { return family_for(resolved(config)).name; }

Json config_to_json(const LanguageModelConfig& config) { return to_json(config); }
Json config_to_json(const Seq2SeqConfig& config) { return to_json(config); }
Json config_to_json(const EncoderConfig& config) { return to_json(config); }
Json config_to_json(const ImageEncoderConfig& config) { return to_json(config); }

Json whole_config_to_json(const LanguageModelConfig& config) { return whole_to_json(config); }
Json whole_config_to_json(const Seq2SeqConfig& config) { return whole_to_json(config); }
Json whole_config_to_json(const EncoderConfig& config) { return whole_to_json(config); }
Json whole_config_to_json(const ImageEncoderConfig& config) { return whole_to_json(config); }

LanguageModelConfig config_from_json(const Json& json, const std::string& where) {
  io::ConfigReader reader(json, where);
  return from_json(reader, where, named_family<LanguageModelConfig>(reader));
}

Seq2SeqConfig seq2seq_config_from_json(const Json& json, const std::string& where) {
  io::ConfigReader reader(json, where);
  const Family<Seq2SeqConfig>& family = named_family<Seq2SeqConfig>(reader);
  const std::string alone = encoder_class(reader);
  if (!alone.empty() && family_named<EncoderConfig>(family.name) != nullptr) {
    reader.fail(
        "architectures",
        concat("is ", quote(alone), ", an encoder; use AutoModel, load_encoder() in C++ or the verb embed"));
  }
  return from_json(reader, where, family);
}

EncoderConfig encoder_config_from_json(const Json& json, const std::string& where) {
  io::ConfigReader reader(json, where);
  return from_json(reader, where, named_family<EncoderConfig>(reader));
}

EncoderHead encoder_head(const std::string& folder) {
  if (is_gguf(folder)) return EncoderHead::none;
  const std::string path = config_path(folder);
  return encoder_config_from_json(io::load_json(path), path).head;
}

ImageEncoderConfig image_encoder_config_from_json(const Json& json, const std::string& where) {
  io::ConfigReader reader(json, where);
  return from_json(reader, where, named_family<ImageEncoderConfig>(reader));
}

WeightMap weight_map(LanguageModel& model) { return map_of(model, family_for(model.config())); }
WeightMap weight_map(Seq2Seq& model) { return map_of(model, family_for(model.config())); }
WeightMap weight_map(Encoder& model) { return map_of(model, family_for(model.config())); }
WeightMap weight_map(ImageEncoder& model) { return map_of(model, family_for(model.config())); }

EncoderConfig with_head(const EncoderConfig& config, EncoderHead head,
                        const std::vector<std::string>& labels) {
  EncoderConfig c = resolved(config);
  const Family<EncoderConfig>& family = family_for(c);
  c.head = head, c.labels = labels, c.num_labels = std::ssize(labels);
  c.problem_type = ProblemType::unstated;
  if (family.map == nullptr) {
    c.pooler = head == EncoderHead::classification && !c.transforms_labels;
    return resolved(c);
  }
  io::ConfigReader reader(to_json(c, family), "config");
  const bool classifies = head == EncoderHead::classification;
  EncoderConfig read = from_json(reader, "config", family);
  read.pooler = classifies && read.pooler;
  return read;
}

io::TensorMap encoder_tensors(Encoder& model) { return tensors_of(model); }
io::TensorMap language_model_tensors(LanguageModel& model) { return tensors_of(model); }
io::TensorMap seq2seq_tensors(Seq2Seq& model) { return tensors_of(model); }

void save_language_model(LanguageModel& model, const std::string& folder, bool overwrite) {
  save(model, folder, overwrite);
}
void save_seq2seq(Seq2Seq& model, const std::string& folder, bool overwrite) {
  save(model, folder, overwrite);
}

void save_encoder(Encoder& model, const std::string& folder, bool overwrite) {
  save_unpacked(model, folder, overwrite, "load_encoder");
}
void save_image_encoder(ImageEncoder& model, const std::string& folder, bool overwrite) {
  save_unpacked(model, folder, overwrite, "load_image_encoder");
}

LanguageModel load_language_model(const std::string& folder, std::optional<nn::WeightDtype> weights,
                                  bool packed) {
  return load_language_model_with(folder, weights, packed, config_from_json);
}
LanguageModel load_decoder(const std::string& folder, std::optional<nn::WeightDtype> weights, bool packed) {
  return load_language_model_with(folder, weights, packed, [](const Json& json, const std::string& where) {
    LanguageModelConfig config = config_from_json(json, where);
    config.head = false;
    return config;
  });
}
Seq2Seq load_seq2seq(const std::string& folder) {
  if (is_adapter_folder(folder)) return load_adapted<Seq2Seq>(folder, load_seq2seq);
  return load<Seq2Seq>(folder, seq2seq_config_from_json, "AutoModelForSeq2SeqLM");
}

Encoder load_encoder(const std::string& folder, std::optional<nn::WeightDtype> weights, bool packed,
                     const std::string& task) {
  const std::optional<nn::WeightDtype> packed_as = packing_of(weights, packed);
  const TaskAdapters adapters = task.empty() ? TaskAdapters() : read_task_adapters(folder);
  const std::string adapter = task.empty() ? "" : adapters.named(task);
  if (is_gguf(folder)) return detail::load_gguf_encoder(folder, weights.has_value(), packed_as);
  Encoder model = is_adapter_folder(folder) ? load_adapted_encoder(folder)
                                            : load<Encoder>(folder, encoder_config_from_json, "AutoModel");
  if (!adapter.empty()) {
    const io::SafetensorsFile file = open_weights(folder, "AutoModel");
    const auto& family = family_in(file, model);
    add_task(nn::named_parameters(model), map_of(model, family), file, family.prefix, adapters, adapter);
  }
  if (packed_as) model.pack_weights(*packed_as);
  return model;
}

ImageEncoder load_image_encoder(const std::string& folder) {
  return load<ImageEncoder>(folder, image_encoder_config_from_json, "AutoModel");
}

void load_weights(Seq2Seq& model, const std::string& path) { fill(model, io::SafetensorsFile(path), false); }
void load_weights(Encoder& model, const std::string& path) { fill(model, io::SafetensorsFile(path), false); }

}  // namespace multihead::models
