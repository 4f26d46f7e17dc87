// A family's config.json as one table: what each key sets, what it must be, or that it changes nothing. A key
// that no row names is refused, so that nothing that changes results is passed over. Internal to models.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "multihead/io/config.h"

namespace multihead::models::detail {

inline constexpr io::IntegerRange kSize = {.min = 1, .max = int64_t{1} << 31};
inline constexpr io::IntegerRange kLayers = {.min = 1, .max = 1 << 16};
inline constexpr io::NumberRange kProbability = {.min = 0, .max = 1};
inline constexpr io::NumberRange kPositive = {.min = 0, .exclude_min = true};

template <class Config>
struct ConfigKey {
  std::string name;
  /// None: the key changes nothing here.
  std::function<void(io::ConfigReader&, const std::string& key, Config&)> read = {};
};

template <class Config>
using ConfigKeys = std::vector<ConfigKey<Config>>;

/// Throws FormatError unless `key` is missing, null or `value` (numbers by value: 1 is 1.0).
void expect_value(io::ConfigReader& reader, const std::string& key, const Json& value);
void expect_same(io::ConfigReader& reader, const std::string& key, const std::string& original);

template <class Config>
struct Row {
  using Key = ConfigKey<Config>;
  using Reader = io::ConfigReader;
  using Name = const std::string&;

  static Key integer(Name name, int64_t Config::*field, io::IntegerRange range) {
    return {name, [=](Reader& r, Name key, Config& c) { c.*field = r.integer(key, range); }};
  }
  /// Missing or null: `fallback`.
  static Key integer_or(Name name, int64_t Config::*field, int64_t fallback, io::IntegerRange range) {
    return {name, [=](Reader& r, Name key, Config& c) { c.*field = r.integer_or(key, fallback, range); }};
  }
  static Key number_or(Name name, double Config::*field, double fallback, io::NumberRange range) {
    return {name, [=](Reader& r, Name key, Config& c) { c.*field = r.number_or(key, fallback, range); }};
  }
  static Key boolean_or(Name name, bool Config::*field, bool fallback) {
    return {name, [=](Reader& r, Name key, Config& c) { c.*field = r.boolean_or(key, fallback); }};
  }
  /// Missing, null or this; anything else is refused.
  static Key only(Name name, const Json& value) {
    return {name, [=](Reader& r, Name key, Config&) { expect_value(r, key, value); }};
  }
  /// transformers' other name for `original`: missing, or the same.
  static Key alias(Name name, const std::string& original) {
    return {name, [=](Reader& r, Name key, Config&) { expect_same(r, key, original); }};
  }
  static Key nothing(Name name) { return {name}; }
};

/// Keys of every config.json of transformers that change no logits: names, labels, outputs, training, and
/// what generation_config.json is asked about.
const std::vector<std::string>& neutral_keys();

/// Keys of every config.json of transformers that have one meaning here.
const std::vector<std::pair<std::string, Json>>& required_values();

/// Every row of the table; what is in none is refused.
template <class Config>
void read_keys(io::ConfigReader& reader, const ConfigKeys<Config>& keys, Config& config) {
  for (const ConfigKey<Config>& key : keys) {
    key.read ? key.read(reader, key.name, config) : reader.ignore({key.name});
  }
  reader.ignore(neutral_keys());
  for (const auto& [name, value] : required_values()) expect_value(reader, name, value);
  reader.refuse_unknown();
}

}  // namespace multihead::models::detail
