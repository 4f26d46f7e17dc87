#include "multihead/io/config.h"

#include <algorithm>
#include <cmath>

#include "multihead/core/error.h"

namespace multihead::io {
namespace {

// Bounds far outside any plausible value are not worth mentioning in a message.
std::string describe(IntegerRange range) {
  const bool low = range.min != std::numeric_limits<int64_t>::min();
  const bool high = range.max != std::numeric_limits<int64_t>::max();
  if (low && high) return concat("an integer in [", range.min, ", ", range.max, "]");
  if (low) return concat("an integer >= ", range.min);
  if (high) return concat("an integer <= ", range.max);
  return "an integer";
}

std::string describe(NumberRange range) {
  std::string text = "a finite number";
  if (std::isfinite(range.min)) text += concat(range.exclude_min ? " > " : " >= ", range.min);
  if (std::isfinite(range.min) && std::isfinite(range.max)) text += " and";
  if (std::isfinite(range.max)) text += concat(range.exclude_max ? " < " : " <= ", range.max);
  return text;
}

std::string describe(const std::vector<std::string>& allowed) {
  std::string text = "one of";
  for (size_t i = 0; i < allowed.size(); ++i) text += (i > 0 ? ", " : " ") + quote(allowed[i]);
  return text;
}

}  // namespace

ConfigReader::ConfigReader(Json object, std::string where)
    : object_(std::move(object)), where_(std::move(where)) {
  MH_CHECK(object_.is_object(), FormatError, where_, ": must be a JSON object, got ", name(object_.kind()));
}

void ConfigReader::fail(std::string_view key, std::string_view problem) const {
  throw FormatError(concat(where_, ": ", quote(prefix_ + std::string(key)), " ", problem));
}

void ConfigReader::mismatch(std::string_view key, const std::string& expected, const Json& got) const {
  std::string text;
  if (got.is_array() || got.is_object()) {
    text = name(got.kind());
  } else if (got.is_string()) {
    text = quote(got.as_string()) + " (a string)";
  } else {
    text = got.dump();
  }
  fail(key, concat("must be ", expected, ", got ", text));
}

const Json* ConfigReader::find(std::string_view key) {
  asked_.emplace(key);
  return object_.find(key);
}

const Json* ConfigReader::value(std::string_view key) {
  const Json* json = find(key);
  return json == nullptr || json->is_null() ? nullptr : json;
}

const Json& ConfigReader::required(std::string_view key, std::string_view expected) {
  const Json* json = find(key);
  if (json == nullptr) fail(key, concat("is missing; expected ", expected));
  return *json;
}

int64_t ConfigReader::integer(std::string_view key, IntegerRange range) {
  const Json& json = required(key, describe(range));
  if (!json.is_integer() || !range.holds(json.as_int())) mismatch(key, describe(range), json);
  return json.as_int();
}

int64_t ConfigReader::integer_or(std::string_view key, int64_t fallback, IntegerRange range) {
  return value(key) == nullptr ? fallback : integer(key, range);
}

std::optional<int64_t> ConfigReader::optional_integer(std::string_view key, IntegerRange range) {
  if (value(key) == nullptr) return std::nullopt;
  return integer(key, range);
}

double ConfigReader::number(std::string_view key, NumberRange range) {
  const Json& json = required(key, describe(range));
  if (!json.is_number()) mismatch(key, describe(range), json);
  const double number = json.as_double();
  if (!range.holds(number)) mismatch(key, describe(range), json);
  return number;
}

double ConfigReader::number_or(std::string_view key, double fallback, NumberRange range) {
  return value(key) == nullptr ? fallback : number(key, range);
}

bool ConfigReader::boolean(std::string_view key) {
  const Json& json = required(key, "true or false");
  if (!json.is_bool()) mismatch(key, "true or false", json);
  return json.as_bool();
}

bool ConfigReader::boolean_or(std::string_view key, bool fallback) {
  return value(key) == nullptr ? fallback : boolean(key);
}

std::string ConfigReader::string(std::string_view key) {
  const Json& json = required(key, "a string");
  if (!json.is_string()) mismatch(key, "a string", json);
  return json.as_string();
}

std::string ConfigReader::string_or(std::string_view key, std::string fallback) {
  return value(key) == nullptr ? std::move(fallback) : string(key);
}

size_t ConfigReader::choice(std::string_view key, const std::vector<std::string>& allowed) {
  const Json& json = required(key, describe(allowed));
  if (!json.is_string()) mismatch(key, describe(allowed), json);
  const auto it = std::find(allowed.begin(), allowed.end(), json.as_string());
  if (it == allowed.end()) mismatch(key, describe(allowed), json);
  return static_cast<size_t>(it - allowed.begin());
}

std::vector<std::string> ConfigReader::strings_or(std::string_view key, std::vector<std::string> fallback) {
  const Json* json = value(key);
  if (json == nullptr) return fallback;
  if (!json->is_array()) mismatch(key, "an array of strings", *json);
  std::vector<std::string> result;
  for (const Json& item : json->items()) {
    if (!item.is_string()) mismatch(key, "an array of strings, its item", item);
    result.push_back(item.as_string());
  }
  return result;
}

ConfigReader ConfigReader::child(std::string_view key) {
  const Json& json = required(key, "an object");
  if (!json.is_object()) mismatch(key, "an object", json);
  ConfigReader reader(json, where_);
  reader.prefix_ = prefix_ + std::string(key) + ".";
  return reader;
}

std::optional<ConfigReader> ConfigReader::optional_child(std::string_view key) {
  if (value(key) == nullptr) return std::nullopt;
  return child(key);
}

bool ConfigReader::has(std::string_view key) const {
  const Json* json = object_.find(key);
  return json != nullptr && !json->is_null();
}

void ConfigReader::ignore(const std::vector<std::string>& keys) { asked_.insert(keys.begin(), keys.end()); }

namespace {

bool is_empty(const Json& value) {
  if (value.is_array() || value.is_object()) return value.size() == 0;
  return value.is_null() || value == Json("");
}

}  // namespace

void ConfigReader::refuse_unknown() const {
  for (const JsonMember& member : object_.members()) {
    const std::string_view key = member.key.view();
    const Json& given = member.value;
    if (asked_.contains(key) || is_empty(given)) continue;
    fail(key, concat("is unknown and may affect results, got ", quote(given.dump())));
  }
}

}  // namespace multihead::io
