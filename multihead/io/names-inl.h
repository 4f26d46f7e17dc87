// Names in files: validation, and what safetensors calls dtypes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/core/dtype.h"
#include "multihead/core/text/utf8.h"

namespace multihead::io {

/// A dtype of safetensors, in a table of them. Ours come first, in the order of the reference writer: largest
/// elements first, which also aligns every tensor to its element.
struct FileDtype {
  std::string_view name;
  unsigned bits;
  std::optional<Dtype> dtype;
};
const FileDtype& file_dtype(Dtype dtype);
/// "[2, 3]", of any rank that a file may claim.
std::string shape_text(const std::vector<int64_t>& shape);

/// UTF-8 without control characters: cannot forge a log line or confuse a C interface.
inline bool is_printable(std::string_view text, std::string_view also_allowed = "") {
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    const bool control = c.code_point < 0x20 || (c.code_point >= 0x7f && c.code_point < 0xa0);
    if (c.code_point < 0 || (control && also_allowed.find(text[at]) == std::string_view::npos)) return false;
    at += static_cast<size_t>(c.length);
  }
  return true;
}

/// No separators, no "." and "..": such a name stays inside its folder.
inline bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         name.find_first_of("/\\") == std::string_view::npos && is_printable(name);
}

}  // namespace multihead::io
