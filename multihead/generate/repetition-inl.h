// The repetition penalty of sampling and beam search.
#pragma once

#include <cstdint>
#include <set>
#include <span>

namespace multihead::detail {

/// Makes tokens of the history less likely (Keskar et al. 2019); those outside the vocabulary are left out.
inline void penalize(double penalty, std::span<const int32_t> history, std::span<float> scores) {
  if (penalty == 1) return;
  for (const int32_t token : std::set<int32_t>(history.begin(), history.end())) {
    if (token < 0 || static_cast<size_t>(token) >= scores.size()) continue;
    float& score = scores[static_cast<size_t>(token)];
    score = static_cast<float>(score > 0 ? score / penalty : score * penalty);
  }
}

}  // namespace multihead::detail
