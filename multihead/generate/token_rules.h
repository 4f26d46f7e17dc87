// Which tokens may come next, whatever a model thinks of them.
#pragma once

#include <cstdint>
#include <span>

#include "multihead/generate/generate.h"

namespace multihead {

/// Throws ValueError naming the first invalid rule of generate(): no_repeat_ngram, min_new_tokens, suppress,
/// first_token, last_token; and a constraint beside those that it excludes.
void check_rules(const GenerateOptions& options, int64_t vocab_size);

/// Throws ValueError unless prompt and new tokens fit the context, where Overflow::error wants them to;
/// generate() does so itself, before the first token.
void check_length(const models::LanguageModel& model, int64_t prompt, const GenerateOptions& options);

/// Sets the logits [V] of tokens that those rules exclude to -inf, for loops of one's own; generate() does so
/// itself. `text`: prompt and new tokens, of which the last `fresh` are new.
void apply_rules(const GenerateOptions& options, std::span<const int32_t> text, int64_t fresh,
                 std::span<float> logits);

}  // namespace multihead
