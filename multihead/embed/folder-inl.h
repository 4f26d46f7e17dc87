// Reads the files of a folder other than the model. Private to embed/.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
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

/// From sentence_bert_config.json, or as long as the tokenizer and the model allow.
inline int64_t read_max_length(const std::string& folder, int64_t context) {
  for (const auto& [file, key] : {std::pair("sentence_bert_config.json", "max_seq_length"),
                                  {"tokenizer_config.json", "model_max_length"}}) {
    const Json json = read_json(folder, file);
    const Json* length = find_value(json, key);
    if (length == nullptr || !length->is_number() || length->as_double() > 1e9) continue;
    MH_CHECK(length->as_double() >= 1, FormatError, folder, "/", file, ": ", key, " must be positive, got ",
             length->dump());
    return std::min(context, static_cast<int64_t>(length->as_double()));
  }
  return context;
}

}  // namespace multihead::embed::detail
