// Settings as named fields: one list serves flags, files, comparison and documentation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "multihead/core/text/enum_words.h"
#include "multihead/core/text/json.h"
#include "multihead/models/config/config_fields.h"

namespace multihead::train {

/// One of several enum values.
struct Choice {
  std::vector<std::string> names;
  std::function<size_t()> get;
  std::function<void(size_t)> set;
};

/// A reference to one setting.
struct Field {
  std::string name;  ///< "weight-decay"
  std::string help;
  std::variant<int64_t*, double*, bool*, std::string*, Choice> value;
  int64_t least = std::numeric_limits<int64_t>::min();  ///< of an integer; see check_least()
  /// A resumed run may change it: it affects what is reported and kept, not training.
  bool free_on_resume = false;
  /// The default with --init, in words, if it is another than the value: "the model's".
  std::string with_init = {};
};

/// A field for an enum with words.
template <HasWords Enum>
Choice choice(Enum& value) {
  return {word_list<Enum>(), [&value] { return static_cast<size_t>(value); },
          [&value](size_t i) { value = static_cast<Enum>(i); }};
}

/// The fields of a model's configuration that have a flag, in the table's order.
template <class Config>
std::vector<Field> model_fields(Config& config) {
  std::vector<Field> list;
  for (const models::ConfigField<Config>& field : models::config_fields<Config>()) {
    if (field.flag == nullptr) continue;
    const auto add = [&](auto& value) {
      using Value = std::remove_reference_t<decltype(value)>;
      if constexpr (std::is_enum_v<Value>) {
        list.push_back({field.flag, field.help, choice(value)});
      } else if constexpr (!std::is_same_v<Value, models::PrunedHeads>) {  // which has no flag
        list.push_back({field.flag, field.help, &value});
      }
    };
    std::visit([&](auto member) { add(config.*member); }, field.member);
  }
  for (Field& field : list) field.with_init = "the model's";
  return list;
}

/// The same with sizes, from the flag `first` on, before lengths, which come first in config.json.
template <class Config>
void add_model_fields(std::vector<Field>& list, Config& config, std::string_view first) {
  std::vector<Field> all = model_fields(config);
  std::rotate(all.begin(), std::ranges::find(all, first, &Field::name),
              std::ranges::find(all, std::string_view("positions"), &Field::name));
  list.insert(list.end(), all.begin(), all.end());
}

/// Sets Field::with_init of the field of this name.
void note_with_init(std::vector<Field>& list, std::string_view name, std::string words);
/// The value in words.
std::string text_of(const Field& field);

/// The name that a setting of an earlier version has now; most have kept theirs. With - or _ between words.
std::string current_name(std::string_view name);

/// Reads a value as written on a command line. Throws ValueError: "--lr must be a number, got "x"".
void assign(const Field& field, std::string_view text);
/// Reads a value from JSON; throws FormatError.
void assign(const Field& field, const Json& value);
Json to_json(const Field& field);
/// Throws ValueError: "train: --steps must be at least 1, got 0".
void check_least(const std::vector<Field>& fields);
/// The fields that a resumed run must share.
std::vector<Field> identity(std::vector<Field> fields);
/// {"weight_decay": 0.1, …}: names with underscores.
Json to_json(const std::vector<Field>& fields);
/// Names of earlier versions are understood. Members without a field throw FormatError; fields without a
/// member keep their value.
void assign_all(const std::vector<Field>& fields, const Json& object, std::string_view where);

/// Decimal integers and finite numbers, in any locale. Throws ValueError naming `what`.
int64_t parse_integer(std::string_view what, std::string_view text);
double parse_number(std::string_view what, std::string_view text);

}  // namespace multihead::train
