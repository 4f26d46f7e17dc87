// Letters of ASCII, whatever the locale. Internal to the library.
#pragma once

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

}  // namespace multihead
