// Draft tokens for speculative decoding (Leviathan, Kalman, Matias 2023): GenerateOptions::draft.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "multihead/models/language_model.h"

namespace multihead {

using Draft = std::function<std::vector<int32_t>(std::span<const int32_t> text, int64_t most)>;

/// Drafts what followed the last occurrence of the text's last `longest` tokens, or of fewer if they are new:
/// for texts that repeat or quote themselves. Throws ValueError unless longest >= 1.
Draft prompt_lookup(int64_t longest = 3);

/// The most probable continuation by a smaller model with the same tokens. For one sequence: it keeps a
/// state. Drafts end where its context does.
Draft draft_model(const models::LanguageModel& model);

}  // namespace multihead
