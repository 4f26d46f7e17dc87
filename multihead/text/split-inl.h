// Pre-tokenization: cutting text into the pieces that byte pairs are merged in. Private to text/.
//
// The regular expressions published with GPT-2 and Llama 3 are hand-coded in one pass without backtracking,
// so time is linear on any input. An invalid UTF-8 byte counts as neither letter, number nor space.
#pragma once

#include <span>
#include <string_view>

#include "multihead/core/parallel.h"
#include "multihead/text/unicode-inl.h"

namespace multihead::text {

struct SplitRule {
  enum class Kind : uint8_t {
    gpt2,        // '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
    llama3,      // words may start with any one non-letter; numbers in groups of max_digits
    each_digit,  // every \p{N} alone
    digit_runs,  // runs of \p{N} apart from the rest
  };
  Kind kind = Kind::gpt2;
  int max_digits = 3;  // llama3: 3 as in Llama 3 and GPT-4, 1 as in Qwen 2

  friend bool operator==(const SplitRule&, const SplitRule&) = default;
};

/// End of the piece that starts at `begin` < text.size().
size_t piece_end(const SplitRule& rule, std::string_view text, size_t begin);

/// Calls `use` on every piece in order: the first rule cuts the text, the next one each of its pieces, and so
/// on. Without rules the text is one piece.
void split_text(std::string_view text, std::span<const SplitRule> rules,
                FunctionRef<void(std::string_view)> use);

}  // namespace multihead::text
