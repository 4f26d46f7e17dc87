// A JSON schema in the form in which texts are checked against it. Private to grammar/.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "multihead/core/text/json.h"
#include "multihead/text/grammar/byte_dfa.h"
#include "multihead/text/grammar/language.h"

namespace multihead::text::grammar {

/// Numbers between bounds, in decimals without exponent. All of them are counted in units of 10^-places, so that
/// whether digits can be continued is a question about whole numbers.
struct NumberRange {
  struct Side {
    bool exists = false;
    std::string least = "0";               ///< of the units, without sign
    std::optional<std::string> most = {};  ///< none: any
  };
  size_t places = 0;
  int64_t multiple_of = 0;  ///< of integers; 0: any
  Side positive = {}, negative = {};

  bool is_empty() const { return !positive.exists && !negative.exists; }
  bool can_begin(std::string_view text) const;
  bool has(std::string_view text) const;
  /// However it is spelt.
  bool holds(const Json& number) const;
};

struct NumberBounds {
  std::optional<Json> least, most, above, below;  ///< the last two exclusive
  int64_t multiple_of = 0;
  bool is_integer = false;
  bool is_bounded() const { return least || most || above || below || multiple_of > 0; }
};
NumberRange number_range(const NumberBounds& bounds);

struct JsonProperty {
  std::string name;
  int32_t node = 0;
  bool is_required = false;
};

/// Values of one kind.
struct JsonVariant {
  enum class Kind { literal, number, range, string, pattern, array, object };
  Kind kind = Kind::literal;
  bool is_integer = false;  ///< of numbers
  ByteDfa dfa =
      {};  ///< of literals (JSON texts) and patterns (contents of strings), and of properties' names
  std::vector<uint8_t> open = {};  ///< of a pattern: the states that any plain characters may follow
  NumberRange range = {};
  int64_t least = 0, most = -1;  ///< characters, items, properties; most < 0: any number
  std::vector<int32_t> prefix = {};
  int32_t items = 0;
  /// Where an item must be of a schema besides (`contains`): the node of both, by place; the last one for all behind.
  std::vector<int32_t> having = {};
  std::vector<JsonProperty> properties = {};
  std::vector<int32_t> name_at = {};                ///< the property whose name ends at a state of dfa, or -1
  std::vector<std::vector<int32_t>> names_at = {};  ///< those whose names go on from there
  std::vector<ByteDfa> patterns = {};               ///< of other names
  std::vector<int32_t> others = {};  ///< the node of other names, by the set of patterns that fit
  bool has_others = false;
  bool counts_names = false;  ///< whether it matters how many different ones there are

  int32_t item(int64_t index) const {
    return index < std::ssize(prefix) ? prefix[static_cast<size_t>(index)] : items;
  }
  int32_t item_having(int64_t index) const {
    return having[static_cast<size_t>(std::min<int64_t>(index, std::ssize(having) - 1))];
  }
  /// Whether such an item can come at this place or behind it.
  template <class Lives>
  bool can_find(int64_t index, const Lives& lives) const {
    for (; most < 0 || index < most; ++index) {
      if (lives(item_having(index))) return true;
      if (index >= std::ssize(having) || !lives(item(index))) return false;
    }
    return false;
  }
};

struct JsonProgram {
  std::vector<JsonVariant> variants = {};
  std::vector<std::vector<int32_t>> nodes = {};  ///< the variants of each schema; none: no value
  struct Part {
    std::string literal = {};
    int32_t node = -1;
  };
  std::vector<std::vector<Part>> sequences = {};
  std::string trigger = {};
};

LanguagePtr make_json_language(JsonProgram program);

}  // namespace multihead::text::grammar
