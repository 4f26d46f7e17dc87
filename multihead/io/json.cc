#include "multihead/io/json.h"

#include <algorithm>
#include <charconv>

#include "multihead/core/error.h"
#include "multihead/core/files.h"

namespace multihead::io {

Json load_json(const std::string& path, const JsonLimits& limits) {
  return Json::parse(read_file(path, limits.bytes), path, limits);
}

void save_json(const std::string& path, const Json& json) {
  write_file_atomically(path, json.dump(2) + "\n");
}

Json path_to_json(const std::string& path) {
  if (find_invalid_utf8(path) == std::string::npos) return path;
  constexpr char kHex[] = "0123456789abcdef";
  std::string digits;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    digits += {kHex[byte >> 4], kHex[byte & 15]};
  }
  return Json::object({{"base16", digits}});
}

std::string path_from_json(const Json& json) {
  if (!json.is_object()) return json.as_string();
  const std::string digits = json.at("base16").as_string();
  std::string path;
  for (size_t at = 0; at < digits.size(); at += 2) {
    unsigned byte = 0;
    const char* end = digits.data() + std::min(at + 2, digits.size());
    const auto [stopped, error] = std::from_chars(digits.data() + at, end, byte, 16);
    MH_CHECK(error == std::errc() && stopped == digits.data() + at + 2, FormatError,
             "json: expected pairs of base-16 digits, got ", quote(digits));
    path += static_cast<char>(byte);
  }
  return path;
}

}  // namespace multihead::io
