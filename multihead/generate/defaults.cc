#include "multihead/generate/defaults.h"

#include <algorithm>
#include <map>
#include <span>

#include "multihead/core/error.h"
#include "multihead/io/checkpoint.h"
#include "multihead/io/file_set.h"
#include "multihead/models/files/adapter.h"
#include "multihead/models/files/hugging_face.h"

namespace multihead {
namespace {

using models::GenerationConfig;

template <class To, class From>
void set(To& option, const std::optional<From>& given) {
  if (given) option = *given;
}

// Keys that request what does not exist here, each with a test of whether it does.
using Refused = std::vector<std::pair<const char*, bool>>;

void refuse(const GenerationConfig& c, const Refused& list, const char* who) {
  for (const auto& [key, asked] : list) {
    MH_CHECK(!asked, FormatError, c.source, ": \"", key, "\" is not supported by ", who,
             "; remove the key to run without it");
  }
}

bool above(const std::optional<int64_t>& value, int64_t limit) { return value && *value > limit; }

void set_sampling(const GenerationConfig& c, SamplingOptions& sampling) {
  set(sampling.temperature, c.temperature);
  set(sampling.top_k, c.top_k);
  set(sampling.top_p, c.top_p);
  set(sampling.min_p, c.min_p);
}

// As in transformers, a bad word that is an end alone counts for nothing, and a suppressed token for all.
std::vector<std::vector<int32_t>> suppressed(const GenerationConfig& c, const std::vector<int32_t>& ends) {
  std::vector<std::vector<int32_t>> all;
  for (const std::vector<int32_t>& word : c.bad_words_ids) {
    const bool is_end = word.size() == 1 && std::find(ends.begin(), ends.end(), word[0]) != ends.end();
    if (!is_end) all.push_back(word);
  }
  for (const int32_t token : c.suppress_tokens) all.push_back({token});
  return all;
}

void check_id(const GenerationConfig& c, const char* key, std::optional<int64_t> given, int64_t own) {
  MH_CHECK(!given || *given == own, FormatError, c.source, ": \"", key, "\" must be ", own,
           ", as the model's config.json says, got ", *given);
}

}  // namespace

void apply(const GenerationConfig& c, GenerateOptions& options) {
  refuse(c,
         {{"num_beams", above(c.num_beams, 1)},
          {"min_length", above(c.min_length, 0)},
          {"forced_bos_token_id", c.forced_bos_token_id.has_value()}},
         "generate");
  set_sampling(c, options.sampling);
  if (c.do_sample && !*c.do_sample) options.sampling.temperature = 0;
  set(options.sampling.repetition_penalty, c.repetition_penalty);
  if (!c.eos_token_ids.empty()) options.stop_tokens = c.eos_token_ids;
  set(options.no_repeat_ngram, c.no_repeat_ngram_size);
  set(options.min_new_tokens, c.min_new_tokens);
  if (c.forced_eos_token_id) options.last_token = static_cast<int32_t>(*c.forced_eos_token_id);
  options.suppress = suppressed(c, options.stop_tokens);
}

std::vector<int32_t> turn_ends(const text::Tokenizer& tokenizer) {
  std::vector<int32_t> ends;
  for (const char* end : {"<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>"}) {
    const auto id = tokenizer.id(end);
    if (id && tokenizer.chat_template().find(end) != std::string::npos) ends.push_back(*id);
  }
  return ends;
}

namespace {

// The defaults that go with this config.json, and with generation_config.json if `from` holds one.
Json given_defaults(const std::string& from, const Json& config) {
  std::string where;
  Json json = from.empty() ? Json::object() : models::generation_json(from, where);
  for (const std::string& key : models::generation_keys()) {
    if (config.contains(key) && !json.contains(key)) json[key] = config.at(key);
  }
  return json;
}

bool is_set(const Json& json, const char* key) {
  const Json* value = json.find(key);
  return value != nullptr && !value->is_null();
}

void set_missing(Json& json, const char* key, const std::optional<int64_t>& value) {
  if (value && !is_set(json, key)) json[key] = *value;
}

}  // namespace

std::string saved_defaults(const std::string& from, const Json& config, const text::Tokenizer& tokenizer) {
  Json json = given_defaults(from, config);
  set_missing(json, "bos_token_id", tokenizer.bos_id());
  set_missing(json, "pad_token_id", tokenizer.pad_id());
  set_missing(json, "eos_token_id", tokenizer.eos_id());
  // A chat ends here at the ends of its template too.
  std::vector<Json> ends;
  if (is_set(json, "eos_token_id")) {
    const Json& eos = json.at("eos_token_id");
    const std::span<const Json> all = eos.is_array() ? eos.items() : std::span(&eos, 1);
    ends.assign(all.begin(), all.end());
  }
  const size_t given = ends.size();
  for (const int32_t end : turn_ends(tokenizer)) {
    if (std::ranges::find(ends, Json(end)) == ends.end()) ends.emplace_back(end);
  }
  if (ends.size() > given) json["eos_token_id"] = ends;
  return json.dump(2) + "\n";
}

std::string saved_defaults(const std::string& from, const models::Seq2SeqConfig& model) {
  const BeamOptions own;
  Json json = given_defaults(from, models::config_to_json(model));
  set_missing(json, "num_beams", own.beam_size);
  // Theirs counts the token that the decoder starts with, and the end.
  if (!is_set(json, "max_new_tokens"))
    set_missing(json, "max_length", std::min(own.max_length + 2, model.max_positions));
  return json.dump(2) + "\n";
}

namespace {

// Files beside a model that is saved; another's generation_config.json stays.
void save_beside(const std::string& folder, std::map<std::string, std::string> files) {
  if (!io::foreign_files(folder, {io::kGenerationFile}, io::Look::bytes).empty())
    files.erase(io::kGenerationFile);
  io::FileSet set;
  for (const auto& [name, bytes] : files) set.push_back(name);
  if (set.empty()) return;
  io::save_files(folder, set,
                 [&](io::DirectoryWriter& writer) { io::write_contents(writer, {.files = files}); });
}

}  // namespace

void save_with_tokenizer(models::LanguageModel& model, const text::Tokenizer& tokenizer,
                         const std::string& folder, bool overwrite) {
  models::save_language_model(model, folder, overwrite);
  save_beside(folder,
              {{"tokenizer.json", tokenizer.to_json()},
               {"tokenizer_config.json", tokenizer.config_json()},
               {io::kGenerationFile, saved_defaults("", models::config_to_json(model.config()), tokenizer)}});
}

void save_with_defaults(models::Seq2Seq& model, const std::string& folder, bool overwrite) {
  models::save_seq2seq(model, folder, overwrite);
  save_beside(folder, {{io::kGenerationFile, saved_defaults("", model.config())}});
}

void apply(const GenerationConfig& c, const models::Seq2SeqConfig& model, BeamOptions& options) {
  const bool sample = c.do_sample.value_or(false);
  refuse(c,
         {{"stop_strings", !c.stop_strings.empty()},
          {"early_stopping", c.never_stops_early},
          {"do_sample", sample && above(c.num_beams, 1)}},
         "translate");
  check_id(c, "forced_eos_token_id", c.forced_eos_token_id, model.eos_id);
  check_id(c, "decoder_start_token_id", c.decoder_start_token_id, model.decoder_start_id);
  for (const int32_t eos : c.eos_token_ids) check_id(c, "eos_token_id", eos, model.eos_id);
  set(options.beam_size, c.num_beams);
  set(options.length_penalty, c.length_penalty);
  set(options.repetition_penalty, c.repetition_penalty);
  set(options.no_repeat_ngram, c.no_repeat_ngram_size);
  // Theirs count the token that the decoder starts with, and at most the end.
  if (c.min_length) options.min_length = std::max<int64_t>(*c.min_length - 1, 0);
  if (c.min_new_tokens) options.min_length = *c.min_new_tokens;  // in its place
  if (c.max_length) options.max_length = std::max<int64_t>(*c.max_length - 2, 1);
  if (c.max_new_tokens) options.max_length = std::max<int64_t>(*c.max_new_tokens - 1, 1);
  set_sampling(c, options.sampling);
  if (sample) options.sample = true, options.beam_size = 1;
  options.renormalize = c.renormalize_logits;
  options.stop_early = c.early_stopping;
  if (c.forced_bos_token_id) {
    MH_CHECK(*c.forced_bos_token_id < model.target_vocab_size, FormatError, c.source,
             ": \"forced_bos_token_id\" ", *c.forced_bos_token_id, " is outside the vocabulary of ",
             model.target_vocab_size);
    options.first_token = static_cast<int32_t>(*c.forced_bos_token_id);
  }
  options.free_forced_end = c.forced_eos_token_id.has_value();
  for (const std::vector<int32_t>& word : suppressed(c, {static_cast<int32_t>(model.eos_id)})) {
    for (const int32_t token : word) {
      MH_CHECK(token < model.target_vocab_size, FormatError, c.source, ": token ", token,
               " of \"bad_words_ids\" or \"suppress_tokens\" is outside the vocabulary of ",
               model.target_vocab_size);
    }
    options.suppress.push_back(word);
  }
}

LoadedModel load_with_tokenizer(const std::string& path, std::optional<nn::WeightDtype> weights,
                                bool packed) {
  LoadedModel loaded{models::load_language_model(path, weights, packed),
                     text::Tokenizer::load(models::tokenizer_folder(path))};
  models::check_vocabulary(path, "tokenizer", loaded.tokenizer.plain_vocab_size(),
                           loaded.model.config().vocab_size);
  return loaded;
}

}  // namespace multihead
