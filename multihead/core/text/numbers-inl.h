// Numbers that are spelled in texts.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace multihead {

/// The number that the whole text spells, whatever the locale: digits, after '-' if it is signed, without '+' or spaces; a
/// floating-point one also as nan or inf. Nothing if it spells none or one that Number cannot hold.
template <class Number, class... Base>
std::optional<Number> spelled_number(std::string_view text, Base... base) {
  Number value = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value, base...);
  if (error != std::errc() || stopped != end) return std::nullopt;
  return value;
}

}  // namespace multihead
