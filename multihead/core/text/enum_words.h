// The names of an enum's values: one list beside the enum serves files, flags, Python and messages.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace multihead {

/// Beside `enum class Shape { round, flat };`, for the values 0, 1, …:
///   constexpr auto enum_words(Shape) { return std::to_array<std::string_view>({"round", "flat"}); }
template <class Enum>
concept HasWords = requires(Enum value) {
  enum_words(value).size();
};

template <HasWords Enum>
constexpr std::string_view word_of(Enum value) {
  return enum_words(value).at(static_cast<size_t>(value));
}

template <HasWords Enum>
constexpr std::optional<Enum> value_of(std::string_view word) {
  const auto all = enum_words(Enum());
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] == word) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

template <HasWords Enum>
std::vector<std::string> word_list() {
  const auto all = enum_words(Enum());
  return {all.begin(), all.end()};
}

}  // namespace multihead
