// JSON files.
#pragma once

#include <string>

#include "multihead/core/text/json.h"

namespace multihead::io {

/// Reads and parses a file. Throws IoError (cannot read), FormatError (too large, not JSON; with line and
/// byte).
Json load_json(const std::string& path, const JsonLimits& limits = {});
/// Writes a file atomically, indented by two spaces, with a final newline. Throws IoError; nothing is changed
/// then.
void save_json(const std::string& path, const Json& json);

/// A UTF-8 path as a string, any other as {"base16": "…"}.
Json path_to_json(const std::string& path);
/// Throws FormatError.
std::string path_from_json(const Json& json);

}  // namespace multihead::io
