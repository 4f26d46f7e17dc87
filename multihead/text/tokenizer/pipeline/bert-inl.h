// BERT's normalisation of texts: cleaning, lower case, accents. Private to text/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "multihead/text/tokenizer/pipeline/rewritten-inl.h"

namespace multihead::text {

/// The steps of BertNormalizer in tokenizer.json, in their order.
struct BertCleaning {
  bool clean_text = true;            ///< drops control characters, makes any white space a space
  bool handle_chinese_chars = true;  ///< spaces around ideographs
  bool strip_accents = true;         ///< decomposes (NFD) and drops non-spacing marks
  bool lowercase = true;

  friend bool operator==(const BertCleaning&, const BertCleaning&) = default;
};

/// Appends the text with these steps done. Invalid bytes are dropped by clean_text and kept otherwise.
void bert_cleaned(const BertCleaning& cleaning, std::string_view text, Rewritten& out);

/// Appends each character in lower case.
void bert_lowercase(std::string_view text, Rewritten& out);

}  // namespace multihead::text
