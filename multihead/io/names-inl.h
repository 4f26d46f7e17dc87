// Which strings from a file may be used as names.
#pragma once

#include <string>
#include <string_view>

#include "multihead/core/json.h"

namespace multihead::io {

/// UTF-8 without control characters: such a name cannot forge a line of a log or confuse a C interface.
inline bool is_printable(std::string_view text, std::string_view also_allowed = "") {
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_sequence(text, i);
    const auto byte = static_cast<unsigned char>(text[i]);
    if (length == 0) return false;
    if ((byte < 0x20 || byte == 0x7f) && also_allowed.find(text[i]) == std::string_view::npos) return false;
    if (byte == 0xc2 && static_cast<unsigned char>(text[i + 1]) < 0xa0) return false;  // U+0080..U+009F
    i += length;
  }
  return true;
}

/// No separators, no "." and "..": such a file name can never leave its folder.
inline bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         name.find_first_of("/\\") == std::string_view::npos && is_printable(name);
}

}  // namespace multihead::io
