// Letters of ASCII, whatever the locale. Internal to the library.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace multihead {

inline std::string in_lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

/// Without the bytes of `blanks` at both ends.
inline std::string_view trimmed(std::string_view text, std::string_view blanks = " ") {
  const size_t begin = std::min(text.find_first_not_of(blanks), text.size());
  return text.substr(begin, text.find_last_not_of(blanks) + 1 - begin);
}

}  // namespace multihead
