// A family's config.json as one table: what each key sets or must be, or that it has no effect. A key in no
// row is refused, so that nothing that affects results is ignored. Internal to models.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "multihead/models/config/config_fields.h"

namespace multihead::models::detail {

template <class Config>
struct ConfigKey {
  std::string name;
  /// None: the key has no effect here.
  std::function<void(io::ConfigReader&, const std::string& key, Config&)> read = {};
  /// None: read only.
  std::function<void(const Config&, const std::string& key, Json&)> write = {};
  const ConfigField<Config>* field = nullptr;  ///< that it holds
};

template <class Config>
using ConfigKeys = std::vector<ConfigKey<Config>>;

/// Throws FormatError unless `key` is missing, null or `value` (numbers by value: 1 is 1.0).
void expect_value(io::ConfigReader& reader, const std::string& key, const Json& value);
void expect_same(io::ConfigReader& reader, const std::string& key, const std::string& original);

/// The words for an enum's values in files: transformers', where it has any. All are read, a value's first is
/// written.
template <class Enum>
std::vector<std::pair<std::string, Enum>> file_words(Enum) {
  std::vector<std::pair<std::string, Enum>> pairs;
  for (const std::string_view word : enum_words(Enum())) pairs.emplace_back(word, *value_of<Enum>(word));
  return pairs;
}
inline std::vector<std::pair<std::string, nn::NormKind>> file_words(nn::NormKind) {
  return {{"layer_norm", nn::NormKind::layer},
          {"rms_norm", nn::NormKind::rms},
          {"rms_norm_from_one", nn::NormKind::rms_from_one}};
}
inline std::vector<std::pair<std::string, Activation>> file_words(Activation) {
  return {{"linear", Activation::none},
          {"relu", Activation::relu},
          {"gelu", Activation::gelu},
          {"gelu_new", Activation::gelu_tanh},
          {"silu", Activation::silu},
          {"swish", Activation::silu},
          {"gelu_pytorch_tanh", Activation::gelu_tanh}};
}
inline std::vector<std::pair<std::string, ProblemType>> file_words(ProblemType) {
  return {{"single_label_classification", ProblemType::single_label},
          {"multi_label_classification", ProblemType::multi_label},
          {"regression", ProblemType::regression}};
}
inline std::vector<std::pair<std::string, RotaryScaling::Kind>> file_words(RotaryScaling::Kind) {
  // "dynamic" and "longrope" change with the length of the text.
  using Kind = RotaryScaling::Kind;
  return {{"default", Kind::none}, {"linear", Kind::linear}, {"llama3", Kind::llama3}, {"yarn", Kind::yarn}};
}

template <class Enum>
Enum read_word(io::ConfigReader& reader, const std::string& key, std::optional<Enum> fallback) {
  const auto pairs = file_words(Enum());
  std::vector<std::string> all;
  for (const auto& pair : pairs) all.push_back(pair.first);
  if (fallback && !reader.has(key)) return reader.ignore({key}), *fallback;
  return pairs[reader.choice(key, all)].second;
}

/// {"0": [1, 3]}: layers that lost heads, as transformers 4 writes "pruned_heads".
Json pruned_heads_json(const PrunedHeads& pruned);
PrunedHeads read_pruned_heads(io::ConfigReader& reader, const std::string& key);

/// As config.json has it.
template <class T>
Json stored(const T& value) {
  if constexpr (std::is_same_v<T, PrunedHeads>) {
    return pruned_heads_json(value);
  } else if constexpr (std::is_enum_v<T>) {
    for (const auto& [word, other] : file_words(T())) {
      if (other == value) return word;
    }
    return {};
  } else {
    return value;
  }
}

/// The types of fields, in the order of ConfigField::Member.
template <class Config, class... T>
std::variant<T...> values_of(const std::variant<T Config::*...>&);
using FieldValue = decltype(values_of(std::declval<ConfigField<LanguageModelConfig>::Member>()));

/// Rows of a family's table. Instantiated once, in config_rows.cc.
template <class Config>
struct Row {
  using Key = ConfigKey<Config>;
  using Member = typename ConfigField<Config>::Member;
  using Reader = io::ConfigReader;
  using Name = const std::string&;

  /// Null: not in the table.
  static const ConfigField<Config>* find(const Member& member);
  static FieldValue get(const Config& config, const Member& member);
  static void set(Config& config, const Member& member, const FieldValue& value);
  /// Sets a field to the value under any of its names: its row says what it must be.
  static void read(Reader& reader, Name key, Config& config, const Member& member,
                   const std::optional<FieldValue>& fallback);

  /// Written as `member` is.
  static Key key(Name name, const Member& member, std::function<void(Reader&, Name, Config&)> read);
  static Key field_with(Name name, const Member& member, const std::optional<FieldValue>& fallback);
  /// A field under this name. Missing or null: `fallback`, if there is one.
  template <class T>
  static Key field(Name name, T Config::*member, std::optional<std::type_identity_t<T>> fallback = {}) {
    return field_with(name, member, fallback ? std::optional<FieldValue>(*fallback) : std::nullopt);
  }
  /// Missing or null: what another field is, or what it already is itself.
  static Key field_or(Name name, const Member& member, const Member& other);
  /// Written for transformers, which has two fields where we have one; not read.
  static Key copy(Name name, const Member& member) { return key(name, member, nullptr); }
  /// Written, and read as `only`.
  static Key constant(Name name, const Json& value) {
    const auto read = [=](Reader& r, Name key, Config&) { expect_value(r, key, value); };
    return {name, read, [=](const Config&, Name key, Json& json) { json[key] = value; }};
  }
  /// Written, and read as this and nothing else: a missing key is transformers' other default.
  static Key required(Name name, const Json& value) {
    Key key = constant(name, value);
    key.read = [=](Reader& r, Name key, Config&) {
      const Json* given = r.find(key);
      if (given != nullptr && *given == value) return;
      r.fail(key, concat("must be ", value.dump(), ", got ",
                         given == nullptr ? "nothing" : quote(given->dump(), 80)));
    };
    return key;
  }
  /// Missing, null or this; anything else is refused.
  static Key only(Name name, const Json& value) {
    return {name, [=](Reader& r, Name key, Config&) { expect_value(r, key, value); }};
  }
  /// transformers' alias of `original`: missing or equal.
  static Key alias(Name name, const std::string& original) {
    return {name, [=](Reader& r, Name key, Config&) { expect_same(r, key, original); }};
  }
  /// One table of several.
  static ConfigKeys<Config> joined(std::initializer_list<ConfigKeys<Config>> parts) {
    ConfigKeys<Config> all;
    for (const ConfigKeys<Config>& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  }
  /// Keys that change nothing here.
  static ConfigKeys<Config> with_nothing(ConfigKeys<Config> keys, std::initializer_list<const char*> names) {
    for (const char* name : names) keys.push_back({name});
    return keys;
  }
};

extern template struct Row<LanguageModelConfig>;
extern template struct Row<Seq2SeqConfig>;
extern template struct Row<EncoderConfig>;
extern template struct Row<ImageEncoderConfig>;

/// Null: not in the table.
template <class Config, class T>
const ConfigField<Config>* row_of(T Config::*member) {
  return Row<Config>::find(member);
}

/// Keys common to transformers' config.json files that do not affect logits: names, labels, outputs,
/// training, generation.
const std::vector<std::string>& neutral_keys();

/// Keys common to transformers' config.json files that have one meaning here.
const std::vector<std::pair<std::string, Json>>& required_values();

/// Every row of the table.
template <class Config>
void read_rows(io::ConfigReader& reader, const ConfigKeys<Config>& keys, Config& config) {
  for (const ConfigKey<Config>& key : keys) {
    key.read ? key.read(reader, key.name, config) : reader.ignore({key.name});
  }
}

/// The same for a file of transformers; what is in none of its rows is refused.
template <class Config>
void read_keys(io::ConfigReader& reader, const ConfigKeys<Config>& keys, Config& config) {
  read_rows(reader, keys, config);
  reader.ignore(neutral_keys());
  for (const auto& [name, value] : required_values()) {
    const auto is_row = [&name = name](const ConfigKey<Config>& key) { return key.name == name; };
    if (std::none_of(keys.begin(), keys.end(), is_row)) expect_value(reader, name, value);
  }
  reader.refuse_unknown();
}

}  // namespace multihead::models::detail
