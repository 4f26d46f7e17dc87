// Strict JSON: what RFC 8259 says, no duplicate keys, no byte order mark, limited depth. Private to text/.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace multihead::text {

/// Parses a whole document. Throws FormatError naming `name`, the place and the fault; time is linear, and
/// depth is limited to 64.
nlohmann::json parse_json(std::string_view text, const std::string& name);

/// "null", "boolean", "number", "string", "array" or "object", for messages.
const char* json_kind(const nlohmann::json& value);

}  // namespace multihead::text
