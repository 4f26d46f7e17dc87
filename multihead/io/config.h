// Typed reading of config.json; errors name file and field.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/core/text/json.h"

namespace multihead::io {

struct IntegerRange {
  int64_t min = std::numeric_limits<int64_t>::min();
  int64_t max = std::numeric_limits<int64_t>::max();
  bool holds(int64_t x) const { return x >= min && x <= max; }
};

struct NumberRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool exclude_min = false;  ///< {.min = 0, .exclude_min = true}: > 0
  bool exclude_max = false;
  bool holds(double x) const {
    return (exclude_min ? x > min : x >= min) && (exclude_max ? x < max : x <= max);
  }
};

/// Reads fields of a JSON object and tracks which were read. Null counts as missing.
///
///   ConfigReader config(load_json(path), path);
///   const int64_t width = config.integer("hidden_size", {.min = 1, .max = 1 << 20});
///   const double eps = config.number_or("layer_norm_eps", 1e-5, {.min = 0, .exclude_min = true});
///   config.refuse_unknown();
///
/// Throws    FormatError: config.json: "hidden_size" must be an integer in [1, 1048576], got "768" (a string)
class ConfigReader {
 public:
  /// Throws FormatError unless `object` is one. `where`: file name for messages.
  ConfigReader(Json object, std::string where);

  int64_t integer(std::string_view key, IntegerRange range = {});
  int64_t integer_or(std::string_view key, int64_t fallback, IntegerRange range = {});
  std::optional<int64_t> optional_integer(std::string_view key, IntegerRange range = {});
  double number(std::string_view key, NumberRange range = {});
  double number_or(std::string_view key, double fallback, NumberRange range = {});
  bool boolean(std::string_view key);
  bool boolean_or(std::string_view key, bool fallback);
  std::string string(std::string_view key);
  std::string string_or(std::string_view key, std::string fallback);
  /// The index of a string that must be one of `allowed`.
  size_t choice(std::string_view key, const std::vector<std::string>& allowed);
  std::vector<std::string> strings_or(std::string_view key, std::vector<std::string> fallback);
  /// A nested object; its fields are named "rope_scaling.factor" in messages.
  ConfigReader child(std::string_view key);
  /// Missing or null: none.
  std::optional<ConfigReader> optional_child(std::string_view key);

  /// Null if missing; a null field is returned as such. Counts as read.
  const Json* find(std::string_view key);
  bool has(std::string_view key) const;
  /// Marks fields that are known to have no effect here.
  void ignore(const std::vector<std::string>& keys);
  /// Throws FormatError for the first field that was not read unless it says nothing: null or empty. False and 0
  /// may be what changes a result.
  void refuse_unknown() const;
  /// Throws FormatError: config.json: "hidden_size" <problem>.
  [[noreturn]] void fail(std::string_view key, std::string_view problem) const;

 private:
  const Json* value(std::string_view key);  // null: missing or JSON null
  const Json& required(std::string_view key, std::string_view expected);
  [[noreturn]] void mismatch(std::string_view key, const std::string& expected, const Json& got) const;

  Json object_;
  std::string where_;
  std::string prefix_;
  std::set<std::string, std::less<>> asked_;
};

}  // namespace multihead::io
