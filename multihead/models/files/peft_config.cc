#include "multihead/models/files/peft_config-inl.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/io/json.h"

namespace multihead::models::detail {
namespace {

using Fits = std::function<bool(const Json&)>;

bool is_anything(const Json&) { return true; }
bool is_switch(const Json& value) { return value.is_bool(); }
// PEFT writes every option; what is off is false, null, 0 or empty.
bool is_off(const Json& value) {
  if (value.is_array() || value.is_object()) return value.size() == 0;
  if (value.is_number()) return value.as_double() == 0;
  return value == Json(false) || value == Json("");
}
bool is_list(const Json& value) { return value.is_array() || is_off(value); }
Fits is_word(const char* word) {
  return [=](const Json& value) { return value.is_string() && value.as_string() == word; };
}
// Others (pissa, olora, ...) subtract from the model's weights what they begin with.
bool is_plain_start(const Json& value) {
  return value.is_bool() || is_word("gaussian")(value) || is_word("eva")(value) ||
         is_word("orthogonal")(value);
}

// Null always fits; a key in no row must be off.
const std::map<std::string, Fits>& rows() {
  static const std::map<std::string, Fits> table = [] {
    std::map<std::string, Fits> all = {{"peft_type", is_anything},
                                       {"bias", is_word("none")},
                                       {"use_rslora", is_switch},
                                       {"ensure_weight_tying", is_switch},
                                       {"init_lora_weights", is_plain_start},
                                       {"megatron_config", is_off},
                                       {"exclude_modules", is_list},
                                       {"layers_pattern", is_off}};
    for (const char* any :
         {// read below
          "r", "lora_alpha", "target_modules", "modules_to_save", "layers_to_transform",
          // where it came from and how it was trained
          "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision",
          "inference_mode", "lora_dropout", "fan_in_fan_out", "megatron_core", "loftq_config", "eva_config",
          "corda_config", "lora_ga_config", "runtime_config", "qalora_group_size"}) {
      all[any] = is_anything;
    }
    return all;
  }();
  return table;
}

std::vector<std::string> words_of(const Json& json, const std::string& file, const char* key) {
  std::vector<std::string> words;
  for (const Json& word : json.items()) {
    MH_CHECK(word.is_string(), FormatError, file, ": ", key, " must hold names, got ",
             quote(word.dump(), 80));
    words.push_back(word.as_string());
  }
  return words;
}

// std::regex recurses by groups within each other and by what braces repeat: a file could use up the stack.
bool is_bounded(const std::string& pattern) {
  constexpr size_t kLongest = 4096;
  constexpr int64_t kDeepest = 100, kMostCopies = 1000;
  int64_t open = 0, copies = 1, number = 0;
  bool in_braces = false;
  for (const char c : pattern) {
    open += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (c >= '0' && c <= '9') {
      number = std::min(10 * number + (c - '0'), kMostCopies + 1);
      continue;
    }
    if (in_braces) copies *= std::max<int64_t>(number, 1);
    if (open > kDeepest || copies > kMostCopies) return false;
    number = 0;
    in_braces = c == '{' || (in_braces && c == ',');
  }
  return pattern.size() <= kLongest;
}

// A pattern is PEFT's where Python's syntax is ECMAScript's.
std::regex pattern_of(const std::string& pattern, const std::string& file) {
  auto syntax = std::regex::ECMAScript | std::regex::nosubs;
#ifdef __GLIBCXX__
  syntax |= std::regex_constants::__polynomial;  // in time that no pattern makes exponential
#endif
  const char* problem = "it is longer than 4096 bytes, nests over 100 groups or repeats over 1000 times";
  try {
    if (is_bounded(pattern)) return std::regex(pattern, syntax);
  } catch (const std::regex_error&) {
    problem = "it is no regular expression of ECMAScript";
  }
  throw FormatError(concat(file, ": target_modules ", quote(pattern, 80), " is not supported: ", problem,
                           "; give a list of names"));
}

}  // namespace

bool is_named(const std::string& layer, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return layer == name || layer.ends_with("." + name); });
}

PeftConfig load_peft_config(const std::string& folder) {
  PeftConfig config = {.file = (std::filesystem::path(folder) / "adapter_config.json").string()};
  const std::string& file = config.file;
  const Json json = io::load_json(file);
  MH_CHECK(json.is_object(), FormatError, file, ": must be an object");
  const Json* type = json.find("peft_type");  // first: other types have other keys
  MH_CHECK(type == nullptr || type->is_null() || *type == Json("LORA"), FormatError, file, ": peft_type ",
           quote(type->dump(), 80), " is not supported, only \"LORA\" is");
  for (const JsonMember& member : json.members()) {
    const auto row = rows().find(std::string(member.key));
    const bool fits =
        member.value.is_null() || (row == rows().end() ? is_off(member.value) : row->second(member.value));
    MH_CHECK(fits, FormatError, file, ": ", std::string(member.key), " ", quote(member.value.dump(), 80),
             " is not supported; merge the adapter with PEFT (merge_and_unload) and load what that saves");
  }
  const auto given = [&](const char* key) {
    const Json* value = json.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  };
  const auto number = [&](const char* key) {
    const Json* value = given(key);
    MH_CHECK(value != nullptr && value->is_number() && value->as_double() > 0, FormatError, file, ": ", key,
             " must be a positive number");
    return value->as_double();
  };
  const auto is_on = [&](const char* key) { return given(key) != nullptr && given(key)->as_bool(); };
  const double rank = number("r");
  MH_CHECK(rank == std::floor(rank) && rank <= 1 << 24, FormatError, file, ": r must be an integer, got ",
           rank);
  config.rank = static_cast<int64_t>(rank);
  config.factor = number("lora_alpha") / (is_on("use_rslora") ? std::sqrt(rank) : rank);
  const auto list = [&](const char* key) {
    const Json* value = given(key);
    return value != nullptr && value->is_array() ? words_of(*value, file, key) : std::vector<std::string>();
  };
  config.targets = list("target_modules");
  const Json* targets = given("target_modules");
  if (targets != nullptr && targets->is_string() && *targets != Json("all-linear"))
    config.pattern = pattern_of(targets->as_string(), file);
  config.saved = list("modules_to_save");
  config.excluded = list("exclude_modules");
  if (const Json* layers = given("layers_to_transform")) {
    const std::vector<Json> one = {*layers};
    for (const Json& layer : layers->is_array() ? layers->items() : std::span<const Json>(one)) {
      MH_CHECK(layer.is_integer() && layer.as_int() >= 0, FormatError, file,
               ": layers_to_transform must hold numbers of layers, got ", layer.dump());
      config.layers.insert(layer.as_int());
    }
  }
  return config;
}

}  // namespace multihead::models::detail
