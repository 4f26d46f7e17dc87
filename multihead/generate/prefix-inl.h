// Internal to generate.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace multihead {

/// A common prefix of this many tokens is worth a step of waiting.
inline constexpr int64_t kLongPrefix = 32;

/// Tokens with which both begin.
inline int64_t common_prefix(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

}  // namespace multihead
