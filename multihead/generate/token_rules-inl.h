// The rules that sampling and beam search share. Internal to generate.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace multihead::detail {

inline constexpr float kNever = -std::numeric_limits<float>::infinity();

/// Forbids tokens that would repeat an n-gram of `history`; n = 0: none.
void ban_repeated(int64_t n, std::span<const int32_t> history, std::span<float> scores);
/// Forbids the last token of every sequence whose others end `history`.
void ban_sequences(const std::vector<std::vector<int32_t>>& sequences, std::span<const int32_t> history,
                   std::span<float> scores);

}  // namespace multihead::detail
