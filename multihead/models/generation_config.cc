#include "multihead/models/generation_config.h"

#include <algorithm>
#include <filesystem>

#include "multihead/core/error.h"
#include "multihead/io/gguf.h"
#include "multihead/io/json.h"
#include "multihead/models/config/config_keys-inl.h"
#include "multihead/models/files/adapter.h"
#include "multihead/models/files/gguf.h"

namespace multihead::models {
namespace {

using namespace detail;  // NOLINT(google-build-using-namespace): models' own internals

using C = GenerationConfig;
using Field = Row<C>;
using Reader = io::ConfigReader;

constexpr io::IntegerRange kToken = {.min = 0, .max = INT32_MAX};
constexpr io::IntegerRange kCount = {.min = 0, .max = int64_t{1} << 31};

Field::Key count(const std::string& name, std::optional<int64_t> C::*field) {
  return {name, [=](Reader& r, const std::string& key, C& c) { c.*field = r.optional_integer(key, kCount); }};
}

Field::Key number(const std::string& name, std::optional<double> C::*field) {
  return {name, [=](Reader& r, const std::string& key, C& c) {
            if (r.has(key)) c.*field = r.number(key);
          }};
}

int32_t token_of(const Reader& r, const std::string& key, const Json& value) {
  if (!value.is_integer() || value.as_int() < 0 || value.as_int() > kToken.max) {
    r.fail(key, concat("must hold token ids, got ", quote(value.dump())));
  }
  return static_cast<int32_t>(value.as_int());
}

// One id or an array of ids.
std::vector<int32_t> tokens_of(const Reader& r, const std::string& key, const Json& value) {
  if (!value.is_array()) return {token_of(r, key, value)};
  std::vector<int32_t> tokens;
  for (const Json& item : value.items()) tokens.push_back(token_of(r, key, item));
  return tokens;
}

// A key that is missing or null says nothing; `read` gets the value of any other.
Field::Key given(const std::string& name, void (*read)(Reader&, const std::string& key, const Json&, C&)) {
  return {name, [=](Reader& r, const std::string& key, C& c) {
            if (const Json* json = r.find(key); json != nullptr && !json->is_null()) read(r, key, *json, c);
          }};
}

void read_end(Reader& r, const std::string& key, const Json& json, C& c) {
  c.eos_token_ids = tokens_of(r, key, json);
}

void read_forced_end(Reader& r, const std::string& key, const Json& json, C& c) {
  const std::vector<int32_t> tokens = tokens_of(r, key, json);
  if (tokens.size() != 1) r.fail(key, "must be one token id");
  c.forced_eos_token_id = tokens[0];
}

void read_bad_words(Reader& r, const std::string& key, const Json& json, C& c) {
  if (!json.is_array()) r.fail(key, "must be an array of arrays of token ids");
  for (const Json& word : json.items()) {
    if (!word.is_array() || word.size() == 0) r.fail(key, "must be an array of arrays of token ids");
    c.bad_words_ids.push_back(tokens_of(r, key, word));
  }
}

void read_suppressed(Reader& r, const std::string& key, const Json& json, C& c) {
  c.suppress_tokens = tokens_of(r, key, json);
}

void read_stop_strings(Reader& r, const std::string& key, const Json& json, C& c) {
  if (json.is_string()) {
    c.stop_strings = {json.as_string()};
  } else {
    c.stop_strings = r.strings_or(key, {});
  }
}

void read_sampling(Reader& r, const std::string& key, const Json&, C& c) { c.do_sample = r.boolean(key); }

void read_renormalize(Reader& r, const std::string& key, const Json&, C& c) {
  c.renormalize_logits = r.boolean(key);
}

// true ends a search as soon as num_beams hypotheses have ended, false when none can overtake at this length,
// "never" when none can at any.
void read_early_stopping(Reader& r, const std::string& key, const Json& json, C& c) {
  c.never_stops_early = json == Json("never");
  c.early_stopping = !c.never_stops_early && r.boolean(key);
}

ConfigKeys<C> make_keys() {
  ConfigKeys<C> rows = {
      given("do_sample", read_sampling), number("temperature", &C::temperature), count("top_k", &C::top_k),
      number("top_p", &C::top_p), number("min_p", &C::min_p),
      number("repetition_penalty", &C::repetition_penalty), number("length_penalty", &C::length_penalty),
      count("num_beams", &C::num_beams), count("no_repeat_ngram_size", &C::no_repeat_ngram_size),
      count("min_length", &C::min_length), count("max_length", &C::max_length),
      count("min_new_tokens", &C::min_new_tokens), count("max_new_tokens", &C::max_new_tokens),
      count("decoder_start_token_id", &C::decoder_start_token_id),
      count("forced_bos_token_id", &C::forced_bos_token_id), given("eos_token_id", read_end),
      given("forced_eos_token_id", read_forced_end), given("bad_words_ids", read_bad_words),
      given("suppress_tokens", read_suppressed), given("stop_strings", read_stop_strings),
      given("early_stopping", read_early_stopping), given("renormalize_logits", read_renormalize),
      // Known, and not to be had here.
      Field::only("begin_suppress_tokens", Json::array()), Field::only("typical_p", 1),
      Field::only("epsilon_cutoff", 0), Field::only("eta_cutoff", 0),
      Field::only("encoder_repetition_penalty", 1), Field::only("encoder_no_repeat_ngram_size", 0),
      Field::only("guidance_scale", 1), Field::only("diversity_penalty", 0),
      Field::only("num_beam_groups", 1), Field::only("penalty_alpha", 0),
      Field::only("token_healing", false)};
  for (const char* name :
       {// read with the model or the tokenizer
        "bos_token_id", "pad_token_id",
        // what is returned
        "num_return_sequences", "output_scores", "output_logits", "return_dict_in_generate",
        "return_legacy_cache",
        // how it is computed
        "remove_invalid_values", "cache_implementation", "cache_config", "max_cache_len", "low_memory",
        "prefill_chunk_size", "compile_config", "disable_compile", "continuous_batching_config", "max_time",
        // guessing ahead
        "use_mtp", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
        "assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind", "target_lookbehind",
        "prompt_lookup_num_tokens", "max_matching_ngram_size", "speculation_type",
        // where it came from
        "_from_model_config"}) {
    rows.push_back({name});
  }
  for (const char* name :
       {"top_h", "exponential_decay_length_penalty", "sequence_bias", "dola_layers", "constraints",
        "force_words_ids", "forced_decoder_ids", "watermarking_config", "assistant_ensemble_weight"}) {
    rows.push_back(Field::only(name, Json()));
  }
  return rows;
}

const ConfigKeys<C>& keys() {
  static const ConfigKeys<C> table = make_keys();
  return table;
}

}  // namespace

const std::vector<std::string>& generation_keys() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Field::Key& key : keys()) all.push_back(key.name);
    return all;
  }();
  return names;
}

GenerationConfig generation_config_from_json(const Json& json, const std::string& where) {
  Reader reader(json, where);
  GenerationConfig c{.source = where};
  read_keys(reader, keys(), c);
  return c;
}

namespace {

// Where texts end, if it is not the eos token alone, as the tokenizer says: the ends of a turn and of a
// message are ends too.
std::vector<int32_t> gguf_ends(const std::string& path) {
  const io::GgufFile file(path);
  std::vector<int32_t> ends;
  for (const char* role : {"eos", "eot", "eom"}) {
    const std::string key = concat("tokenizer.ggml.", role, "_token_id");
    const int64_t id = file.has(key) ? file.integer(key) : -1;
    const bool is_token = id >= 0 && id < std::ssize(file.strings("tokenizer.ggml.tokens"));
    if (is_token && std::find(ends.begin(), ends.end(), id) == ends.end())
      ends.push_back(static_cast<int32_t>(id));
  }
  return ends.size() > 1 ? ends : std::vector<int32_t>();
}

}  // namespace

Json generation_json(const std::string& folder, std::string& where) {
  where = folder;
  Json json = Json::object();
  if (is_gguf(folder)) {
    const std::vector<int32_t> ends = gguf_ends(folder);
    if (!ends.empty()) json["eos_token_id"] = std::vector<Json>(ends.begin(), ends.end());
    return json;
  }
  const std::filesystem::path path(folder);
  std::error_code ignored;
  where = (path / "generation_config.json").string();
  if (std::filesystem::exists(where, ignored)) return io::load_json(where);
  if (is_adapter_folder(folder)) return generation_json(base_of_adapter(folder), where);
  // The rest of config.json is the model's.
  where = (path / "config.json").string();
  const Json config = io::load_json(where);
  for (const std::string& key : generation_keys()) {
    if (const Json* value = config.is_object() ? config.find(key) : nullptr) json[key] = *value;
  }
  // BART's older name for it, which transformers reads so.
  const Json* forced = config.is_object() ? config.find("force_bos_token_to_be_generated") : nullptr;
  const Json* bos = forced != nullptr && *forced == Json(true) ? config.find("bos_token_id") : nullptr;
  if (bos != nullptr) json["forced_bos_token_id"] = *bos;
  return json;
}

GenerationConfig load_generation_config(const std::string& folder) {
  std::string where;
  const Json json = generation_json(folder, where);
  return generation_config_from_json(json, where);
}

}  // namespace multihead::models
