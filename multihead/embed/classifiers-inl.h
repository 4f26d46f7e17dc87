// Shared by the classifiers. Private to embed/.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "multihead/core/error.h"

namespace multihead::embed::detail {

/// A label's name, or LABEL_i as transformers calls those without.
inline std::string label_name(const std::vector<std::string>& names, int64_t index) {
  return index < std::ssize(names) ? names[static_cast<size_t>(index)] : concat("LABEL_", index);
}

/// Tokens of a text that are read. Throws ValueError naming `who`.
inline int64_t length_limit(const char* who, int64_t max_length, int64_t context) {
  MH_CHECK(max_length >= 0, ValueError, who, ": max_length must not be negative, got ", max_length);
  MH_CHECK(max_length <= context, ValueError, who, ": max_length ", max_length,
           " is more than the model reads, ", context);
  return max_length > 0 ? max_length : context;
}

}  // namespace multihead::embed::detail
