// Internal to generate.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace multihead {

/// A common prefix of this many tokens is worth a step of waiting.
inline constexpr int64_t kLongPrefix = 32;

/// Tokens with which both begin.
inline int64_t common_prefix(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

/// Tokens of a prompt and its continuation, however many are asked for.
inline int64_t whole_length(int64_t prompt, int64_t max_new_tokens) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return max_new_tokens > kMost - prompt ? kMost : prompt + std::max<int64_t>(max_new_tokens, 0);
}

}  // namespace multihead
