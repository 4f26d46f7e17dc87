// Rows of every type of field, for all families.
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>

#include "multihead/models/config_keys-inl.h"

namespace multihead::models::detail {

template <class Config>
template <class T>
ConfigKey<Config> Row<Config>::key(Name name, T Config::*member,
                                   std::function<void(Reader&, Name, Config&)> read) {
  const auto write = [=](const Config& c, Name key, Json& json) { json[key] = stored(c.*member); };
  return {name, std::move(read), write, row_of(member)};
}

template <class Config>
template <class T>
ConfigKey<Config> Row<Config>::field(Name name, T Config::*member,
                                     std::optional<std::type_identity_t<T>> fallback) {
  return key(name, member,
             [=](Reader& r, Name key, Config& c) { c.*member = read_field(r, key, member, fallback); });
}

template <class Config>
template <class T>
ConfigKey<Config> Row<Config>::field_or(Name name, T Config::*member, T Config::*other) {
  return key(name, member, [=](Reader& r, Name key, Config& c) {
    c.*member = read_field(r, key, member, std::optional(c.*other));
  });
}

namespace {

// Taking their addresses instantiates them.
template <class Config, class... T>
auto rows_of(std::variant<T Config::*...>) {
  using R = Row<Config>;
  return std::tuple(&R::template key<T>..., &R::template field<T>..., &R::template field_or<T>...);
}

[[gnu::used]] const auto all = std::tuple(
    rows_of(ConfigField<LanguageModelConfig>::Member()), rows_of(ConfigField<Seq2SeqConfig>::Member()),
    rows_of(ConfigField<EncoderConfig>::Member()), rows_of(ConfigField<ImageEncoderConfig>::Member()));

}  // namespace
}  // namespace multihead::models::detail
