// Reads the files of a folder other than the model. Private to embed/.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "multihead/core/error.h"
#include "multihead/io/json.h"

namespace multihead::embed::detail {

/// A file of a folder; null where there is none.
inline Json read_json(const std::string& folder, const char* file) {
  std::error_code ignored;
  const std::filesystem::path path = std::filesystem::path(folder) / file;
  return std::filesystem::exists(path, ignored) ? io::load_json(path.string()) : Json();
}

inline const Json* find_value(const Json& json, const char* key) {
  const Json* value = json.is_object() ? json.find(key) : nullptr;
  return value == nullptr || value->is_null() ? nullptr : value;
}

inline std::optional<int64_t> read_length(const std::string& folder, const char* file, const char* key) {
  const Json json = read_json(folder, file);
  const Json* length = find_value(json, key);
  if (length == nullptr || !length->is_number() || length->as_double() > 1e9) return {};
  MH_CHECK(length->as_double() >= 1, FormatError, folder, "/", file, ": ", key, " must be positive, got ",
           length->dump());
  return static_cast<int64_t>(length->as_double());
}

/// As long as the tokenizer and the model allow.
inline int64_t read_tokenizer_length(const std::string& folder, int64_t context) {
  return std::min(context,
                  read_length(folder, "tokenizer_config.json", "model_max_length").value_or(context));
}

/// From sentence_bert_config.json, or the tokenizer's.
inline int64_t read_max_length(const std::string& folder, int64_t context) {
  const std::optional<int64_t> own = read_length(folder, "sentence_bert_config.json", "max_seq_length");
  return own ? std::min(context, *own) : read_tokenizer_length(folder, context);
}

}  // namespace multihead::embed::detail
