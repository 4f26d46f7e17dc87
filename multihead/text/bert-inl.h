// What BERT does to a text before it looks for tokens: cleaning, lower case, accents, words. Private to
// text/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "multihead/core/parallel.h"

namespace multihead::text {

/// The steps of BertNormalizer in tokenizer.json, in their order.
struct BertCleaning {
  bool clean_text = true;            ///< drops control characters, makes any white space a space
  bool handle_chinese_chars = true;  ///< spaces around ideographs
  bool strip_accents = true;         ///< decomposes (NFD) and drops non-spacing marks
  bool lowercase = true;

  friend bool operator==(const BertCleaning&, const BertCleaning&) = default;
};

/// The text with these steps done. Invalid bytes are dropped by clean_text and kept otherwise.
std::string bert_cleaned(const BertCleaning& cleaning, std::string_view text);

/// Each character in lower case.
std::string bert_lowercase(std::string_view text);

/// Calls `use` on every word: cut at white space, which is dropped, and around each punctuation character.
void bert_words(std::string_view text, FunctionRef<void(std::string_view)> use);

}  // namespace multihead::text
