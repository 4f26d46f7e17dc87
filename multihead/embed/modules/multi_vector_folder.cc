// How folders of multi-vector models are written: by sentence-transformers, by PyLate, by Stanford's ColBERT.

#include <algorithm>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"
#include "multihead/embed/modules/folder-inl.h"
#include "multihead/embed/modules/modules-inl.h"
#include "multihead/embed/multi_vector_encoder.h"
#include "multihead/io/config.h"
#include "multihead/io/safetensors.h"
#include "multihead/models/files/adapter.h"
#include "multihead/models/files/hugging_face.h"

namespace multihead::embed {
namespace {

constexpr const char* kTokenFeature = "token_embeddings";
constexpr const char* kMultiVectorConfig = "config_sentence_transformers.json";

// Python's string.punctuation, which ColBERT leaves out of documents.
std::vector<std::string> punctuation() {
  std::vector<std::string> all;
  for (const char c : std::string_view("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")) all.emplace_back(1, c);
  return all;
}

std::vector<std::string> skip_list(const Json& json, const std::string& where) {
  MH_CHECK(json.is_array(), FormatError, where, " must be a list of words, got ", quote(json.dump(), 80));
  std::vector<std::string> words;
  for (const Json& word : json.items()) {
    MH_CHECK(word.is_string(), FormatError, where, " must be a list of words, got ", quote(json.dump(), 80));
    words.push_back(word.as_string());
  }
  return words;
}

// A setting of a folder; `missing` where there is none or null. Throws FormatError for another type.
bool flag_of(const Json& json, const char* key, bool missing, const std::string& file) {
  const Json* given = detail::find_value(json, key);
  MH_CHECK(given == nullptr || given->is_bool(), FormatError, file, ": ", key, " must be true or false, got ",
           quote(given->dump(), 80));
  return given != nullptr ? given->as_bool() : missing;
}

std::string text_of(const Json& json, const char* key, const char* missing, const std::string& file) {
  const Json* given = detail::find_value(json, key);
  MH_CHECK(given == nullptr || given->is_string(), FormatError, file, ": ", key, " must be a text, got ",
           quote(given->dump(), 80));
  return given != nullptr ? given->as_string() : missing;
}

}  // namespace

MultiVectorEncoder MultiVectorEncoder::load(const std::string& folder, nn::WeightDtype weights) {
  Prompts prompts = detail::read_prompts(folder, {"MultiVectorEncoder", "ColBERT"});
  const std::vector<detail::Module> modules = detail::read_modules(folder);
  const std::string model = modules[0].path;
  // PyLate and Stanford's ColBERT have no such module.
  const bool has_mask =
      modules.size() == 1 || detail::is_pylate(detail::read_json(folder, kMultiVectorConfig)) ||
      std::ranges::any_of(modules, [](const auto& module) { return module.kind == "MultiVectorMask"; });
  TextModel text_model = TextModel::load(model, weights);
  const int64_t context = text_model.context();
  MultiVectorEncoder loaded(std::move(text_model), text::Tokenizer::load(models::tokenizer_folder(model)));
  loaded.prompts_ = std::move(prompts);
  loaded.max_length_ = detail::read_max_length(model, context);
  detail::check_transformer(model, loaded.tokenizer_, "feature-extraction",
                            {"query_length", "document_length", "query_expansion"});
  loaded.read_modules(folder);
  loaded.read_lengths(model, has_mask);
  for (const int64_t length : {loaded.query_length_, loaded.document_length_,
                               loaded.expansion_ ? loaded.expansion_->length : int64_t{0}}) {
    MH_CHECK(length <= context, FormatError, folder, ": texts of ", length,
             " tokens are longer than the model's context of ", context);
  }
  const auto* encoder = std::get_if<models::Encoder>(&loaded.model_.any());
  // DeBERTa hides what is not attended to from itself, too.
  MH_CHECK(
      !loaded.expansion_ || loaded.expansion_->is_attended ||
          (encoder != nullptr && models::family_of(encoder->config()) != "deberta-v2"),
      FormatError, folder,
      ": query_expansion with attend false is not supported for this model (an encoder, but not DeBERTa)");
  return loaded;
}

void MultiVectorEncoder::read_modules(const std::string& folder) {
  const std::vector<detail::Module> modules = detail::read_modules(folder);
  const Json config = detail::read_json(folder, kMultiVectorConfig);
  if (modules.size() == 1) return read_stanford(folder);
  for (size_t i = 1; i < modules.size(); ++i) {
    if (modules[i].kind == "MultiVectorMask") {
      read_mask(modules[i].path);
    } else {
      steps_.push_back(detail::read_step(modules[i], dim(), kTokenFeature,
                                         "Transformer, Dense, MultiVectorMask and Normalize"));
    }
  }
  if (detail::is_pylate(config)) return read_pylate(folder);
  const std::string key = detail::pylate_setting(config);
  MH_CHECK(key.empty(), FormatError, detail::joined(folder, kMultiVectorConfig), ": ", key,
           " is read where model_type is \"ColBERT\" or missing; for others it belongs to "
           "sentence_bert_config.json");
}

// sentence_bert_config.json's lengths and query_expansion, which come before what PyLate wrote.
void MultiVectorEncoder::read_lengths(const std::string& folder, bool adds_vectors) {
  constexpr const char* kFile = "sentence_bert_config.json";
  if (const auto length = detail::read_length(folder, kFile, "query_length")) query_length_ = *length;
  if (const auto length = detail::read_length(folder, kFile, "document_length")) document_length_ = *length;
  const Json json = detail::read_json(folder, kFile);
  const Json* given = detail::find_value(json, "query_expansion");
  if (given == nullptr) return;
  io::ConfigReader config(*given, concat(folder, "/", kFile, ": query_expansion"));
  const std::string strategy = config.string_or("strategy", "");
  if (strategy != "fixed" && strategy != "min") {
    config.fail("strategy", concat("must be fixed or min, got ", quote(strategy, 80)));
  }
  if (config.find("length") == nullptr) config.fail("length", "is missing: tokens of a query");
  const Json* token = config.find("token");
  set_expansion(config.integer_or("length", 0, {.min = 1}), strategy == "fixed",
                config.boolean_or("attend", false),
                token == nullptr || token->is_null() ? "" : config.string_or("token", ""));
  config.refuse_unknown();
  MH_CHECK(adds_vectors || expansion_->is_attended, FormatError, folder, "/", kFile,
           ": query_expansion with attend false needs the module MultiVectorMask, without which the added "
           "tokens have no vectors");
}

void MultiVectorEncoder::set_expansion(int64_t length, bool cuts, bool is_attended,
                                       const std::string& token) {
  std::optional<int32_t> id;
  if (!token.empty()) {
    id = tokenizer_.id(token);
    MH_CHECK(id, FormatError, "MultiVectorEncoder: query_expansion's token ", quote(token, 80),
             " is not in the vocabulary");
  } else {
    for (const char* mask : {"[MASK]", "<mask>"}) {
      if (!id) id = tokenizer_.id(mask);
    }
    if (!id) id = tokenizer_.eos_id();
    MH_CHECK(id, FormatError,
             "MultiVectorEncoder: query_expansion needs a mask or an end token, and the tokenizer has none");
  }
  expansion_ = QueryExpansion{length, cuts, is_attended, *id};
}

void MultiVectorEncoder::set_marker(const std::string& name, const std::string& prefix) {
  std::string& prompt = prompts_.texts[name];
  prompt = prompt.starts_with(prefix) ? prompt : prefix + prompt;
  for (const std::string& marker : {prompt, prompt.substr(0, prompt.find(' '))}) {
    if (marker.empty() || !tokenizer_.id(marker)) continue;
    markers_.push_back(marker);
    return;
  }
}

void MultiVectorEncoder::skip_words(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (const std::optional<int32_t> id = tokenizer_.id(word)) skipped_.insert(*id);
  }
}

void MultiVectorEncoder::read_mask(const std::string& folder) {
  const std::string file = detail::joined(folder, "config.json");
  const Json json = io::load_json(file);
  io::ConfigReader config(json, file);
  if (const Json* words = config.find("skiplist_words"); words != nullptr && !words->is_null())
    skip_words(skip_list(*words, file + ": skiplist_words"));
  if (const Json* tasks = config.find("skiplist_tasks"); tasks != nullptr && !tasks->is_null()) {
    skips_queries_ = skips_documents_ = false;
    for (const std::string& task : skip_list(*tasks, file + ": skiplist_tasks")) {
      (task == "query" ? skips_queries_ : skips_documents_) = true;
      if (task != "query" && task != "document") {
        config.fail("skiplist_tasks", concat("may name query and document, got ", quote(task, 80)));
      }
    }
  }
  if (const Json* only = config.find("keep_only_token_ids"); only != nullptr && !only->is_null()) {
    config.fail("keep_only_token_ids", "is not supported");
  }
  config.refuse_unknown();
}

// PyLate up to version 3: Transformer and Dense, the rest in config_sentence_transformers.json.
void MultiVectorEncoder::read_pylate(const std::string& folder) {
  const std::string file = detail::joined(folder, kMultiVectorConfig);
  const Json json = detail::read_json(folder, kMultiVectorConfig);
  for (const auto& [key, name] : {std::pair("query_prefix", "query"), {"document_prefix", "document"}}) {
    if (detail::find_value(json, key) != nullptr) set_marker(name, text_of(json, key, "", file));
  }
  const std::optional<int64_t> queries = detail::read_length(folder, kMultiVectorConfig, "query_length");
  if (const auto length = detail::read_length(folder, kMultiVectorConfig, "document_length"))
    document_length_ = *length;
  MH_CHECK(detail::find_value(json, "query_expansion") == nullptr, FormatError, file,
           ": query_expansion is supported in sentence_bert_config.json alone");
  if (flag_of(json, "do_query_expansion", true, file)) {
    const bool attends = flag_of(json, "attend_to_mask_tokens", false, file);
    set_expansion(queries.value_or(32), true, flag_of(json, "attend_to_expansion_tokens", attends, file), "");
  } else if (queries) {
    query_length_ = *queries;
  }
  const Json* words = detail::find_value(json, "skiplist_words");
  skip_words(words != nullptr ? skip_list(*words, file + ": skiplist_words") : punctuation());
  steps_.push_back({.kind = VectorStep::Kind::normalize});
}

// The projection lies among the model's weights.
void MultiVectorEncoder::read_stanford(const std::string& folder) {
  MH_CHECK(
      detail::is_stanford(folder), FormatError, folder,
      ": not a multi-vector model: no modules follow the Transformer, and config.json's architectures is not "
      "HF_ColBERT");
  const io::SafetensorsFile weights(detail::joined(folder, "model.safetensors"));
  VectorStep projection;
  projection.weight = weights.load("linear.weight").to(Dtype::f32);
  MH_CHECK(projection.weight.rank() == 2 && projection.weight.size(1) == dim(), FormatError, folder,
           ": linear.weight must be [out, ", dim(), "], got ", projection.weight.shape());
  steps_ = {projection, {.kind = VectorStep::Kind::normalize}};
  const std::string file = detail::joined(folder, "artifact.metadata");
  const Json metadata = detail::read_json(folder, "artifact.metadata");
  const std::string similarity = text_of(metadata, "similarity", "cosine", file);
  MH_CHECK(similarity == "cosine", FormatError, file, ": similarity ", quote(similarity, 80),
           " is not supported; vectors are compared by \"cosine\"");
  set_marker("query", text_of(metadata, "query_token_id", "[unused0]", file) + " ");
  set_marker("document", text_of(metadata, "doc_token_id", "[unused1]", file) + " ");
  if (const auto length = detail::read_length(folder, "artifact.metadata", "doc_maxlen"))
    document_length_ = *length;
  set_expansion(detail::read_length(folder, "artifact.metadata", "query_maxlen").value_or(32), true,
                flag_of(metadata, "attend_to_mask_tokens", false, file), "");
  if (flag_of(metadata, "mask_punctuation", true, file)) skip_words(punctuation());
}

}  // namespace multihead::embed
