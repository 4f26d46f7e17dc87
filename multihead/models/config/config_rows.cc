// Fields of configurations by their tables' rows, for all families.
#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "multihead/models/config/config_keys-inl.h"

namespace multihead::models::detail {
namespace {

// Reads `key` of config.json; missing or null: `usual`, unless it is required.
template <class T>
T read_value(io::ConfigReader& reader, const std::string& key, const FieldRange& range, const T& usual,
             bool is_required) {
  if constexpr (std::is_enum_v<T>) {
    return read_word(reader, key, is_required ? std::nullopt : std::optional(usual));
  } else if constexpr (std::is_same_v<T, PrunedHeads>) {
    return read_pruned_heads(reader, key);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return is_required ? reader.string(key) : reader.string_or(key, usual);
  } else if constexpr (std::is_same_v<T, bool>) {
    return is_required ? reader.boolean(key) : reader.boolean_or(key, usual);
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return is_required ? reader.integer(key, range.integer) : reader.integer_or(key, usual, range.integer);
  } else {
    return is_required ? reader.number(key, range.number) : reader.number_or(key, usual, range.number);
  }
}

}  // namespace

template <class Config>
const ConfigField<Config>* Row<Config>::find(const Member& member) {
  const std::vector<ConfigField<Config>>& all = config_fields<Config>();
  const auto found = std::ranges::find(all, member, &ConfigField<Config>::member);
  return found != all.end() ? &*found : nullptr;
}

template <class Config>
FieldValue Row<Config>::get(const Config& config, const Member& member) {
  return std::visit([&](auto m) { return FieldValue(config.*m); }, member);
}

template <class Config>
void Row<Config>::set(Config& config, const Member& member, const FieldValue& value) {
  std::visit([&](auto m) { config.*m = std::get<std::remove_cvref_t<decltype(config.*m)>>(value); }, member);
}

template <class Config>
void Row<Config>::read(Reader& reader, Name key, Config& config, const Member& member,
                       const std::optional<FieldValue>& fallback) {
  const ConfigField<Config>* row = find(member);
  const FieldValue usual = fallback ? *fallback : get(config, member);
  const FieldRange range = row != nullptr ? row->range : FieldRange();
  const auto read = [&](const auto& value) {
    return FieldValue(read_value(reader, key, range, value, !fallback));
  };
  set(config, member, std::visit(read, usual));
}

template <class Config>
ConfigKey<Config> Row<Config>::key(Name name, const Member& member,
                                   std::function<void(Reader&, Name, Config&)> read) {
  const auto write = [=](const Config& c, Name key, Json& json) {
    const FieldValue value = get(c, member);
    if (const auto* text = std::get_if<std::string>(&value); text != nullptr && text->empty()) return;
    json[key] = std::visit([](const auto& value) { return Json(stored(value)); }, value);
  };
  return {name, std::move(read), write, find(member)};
}

template <class Config>
ConfigKey<Config> Row<Config>::field_with(Name name, const Member& member,
                                          const std::optional<FieldValue>& fallback) {
  return key(name, member, [=](Reader& r, Name key, Config& c) { Row::read(r, key, c, member, fallback); });
}

template <class Config>
ConfigKey<Config> Row<Config>::field_or(Name name, const Member& member, const Member& other) {
  return key(name, member,
             [=](Reader& r, Name key, Config& c) { Row::read(r, key, c, member, get(c, other)); });
}

template struct Row<LanguageModelConfig>;
template struct Row<Seq2SeqConfig>;
template struct Row<EncoderConfig>;
template struct Row<ImageEncoderConfig>;

}  // namespace multihead::models::detail
