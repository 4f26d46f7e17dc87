// Pre-tokenization: cutting text into the pieces that byte pairs are merged in. Private to text/.
//
// The regular expressions published with GPT-2 and Llama 3 are hand-coded in one pass without backtracking,
// so time is linear on any input. An invalid UTF-8 byte counts as neither letter, number nor space.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "multihead/core/threads/parallel.h"
#include "multihead/text/unicode-inl.h"

namespace multihead::text {

struct SplitRule {
  enum class Kind : uint8_t {
    gpt2,          // '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
    llama3,        // words may start with any one non-letter; numbers in groups of max_digits
    each_digit,    // \p{N}
    digit_runs,    // \p{N}, the runs kept together
    words,         // \w+|[^\w\s]+ ; what does not match is white space
    clip,          // '(?:[sdmt]|ll|ve|re)|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+ ; likewise
    white_space,   // \s
    white_runs,    // \s+
    ascii_digits,  // [0-9]
    bert,          // \s, with the punctuation apart: each such character is a piece
    punctuation,   // one such character
    number_runs,   // \p{N}{1,max_digits}
    gpt4o,         // words begin with any one non-letter and where lower case ends; numbers by max_digits
    deepseek,      // words of ASCII letters after a punctuation mark, of letters and marks; symbols
    cjk_runs,      // [一-龥぀-ゟ゠-ヿ]+
    space_runs,    // " {2,}"
    outer_spaces,  // "\A +| +\z"
    wide_blanks,   // \s{2,}|[\n\r\t]
    qwen35,        // as llama3, with marks among the letters
    ggml_marks,    // [\p{P}$+<=>^~|]+ of llama.cpp's default
    three_digits,  // [0-9][0-9][0-9]
    line_ends,     // [\r\n]
    spaced_words,  // \s?\p{L}+
    spaced_marks,  // \s?\p{P}+
    cjk_korean,    // [一-龥ࠀ-一가-퟿]+ of DeepSeek Coder
    text,          // the text itself
    regex_words,   // as words, where \w is Oniguruma's: ² ³ ¹ ¼ ½ ¾, but no joiners
  };
  /// The treatment of the matches, each of which cuts the text on both sides.
  enum class Behavior : uint8_t { isolated, removed, contiguous, merged_with_previous, merged_with_next };

  Kind kind = Kind::gpt2;
  int max_digits = 3;  // llama3: 3 as in Llama 3 and GPT-4, 1 as in Qwen 2
  Behavior behavior = Behavior::isolated;
  bool is_inverted = false;  // what does not match is what counts as a match
  std::string text = {};

  friend bool operator==(const SplitRule&, const SplitRule&) = default;
};

/// A regular expression that is known here, if it is.
std::optional<SplitRule> known_pattern(std::string_view regex);

/// Calls `use` on the matches and on what lies between them, in order.
void each_stretch(std::string_view text, const SplitRule& rule,
                  FunctionRef<void(size_t begin, size_t end, bool is_match)> use);

/// Calls `use` on every piece in order.
void split_text(std::string_view text, const SplitRule& rule, FunctionRef<void(std::string_view)> use);

/// The first rule cuts the text, the next one each of its pieces, and so on. Without rules the text is one
/// piece.
void split_text(std::string_view text, std::span<const SplitRule> rules,
                FunctionRef<void(std::string_view)> use);

}  // namespace multihead::text
