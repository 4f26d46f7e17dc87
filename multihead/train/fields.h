// Settings as named fields: one list serves flags, files, comparison and documentation.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "multihead/core/json.h"

namespace multihead::train {

/// One of several words.
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
  /// A resumed run may have another value: it changes what is reported and kept, not what is learnt.
  bool free_on_resume = false;
};

/// A field for an enum whose values are 0, 1, … in the order of `names`.
template <class Enum>
Choice choice(Enum& value, std::vector<std::string> names) {
  return {std::move(names), [&value] { return static_cast<size_t>(value); },
          [&value](size_t i) { value = static_cast<Enum>(i); }};
}

/// Reads a value as written on a command line. Throws ValueError: "--lr must be a number, got "x"".
void assign(const Field& field, std::string_view text);
/// Reads a value from JSON; throws FormatError.
void assign(const Field& field, const Json& value);
Json to_json(const Field& field);
/// {"weight_decay": 0.1, …}: names with underscores.
Json to_json(const std::vector<Field>& fields);
/// Members without a field throw FormatError; fields without a member keep their value.
void assign_all(const std::vector<Field>& fields, const Json& object, std::string_view where);

/// Whole decimal numbers, and finite ones; whatever the locale. Throws ValueError naming `what`.
int64_t parse_integer(std::string_view what, std::string_view text);
double parse_number(std::string_view what, std::string_view text);

}  // namespace multihead::train
