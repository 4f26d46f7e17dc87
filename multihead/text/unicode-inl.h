// Unicode as tokenizers need it: four character classes, and the printable alphabet of bytes. Private to
// text/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "multihead/core/text/utf8.h"

namespace multihead::text {

/// Character classes of pre-tokenizers' regular expressions.
enum class CharClass : uint8_t { other, letter, number, space };  // neither, \p{L}, \p{N}, \s

/// Further classes of GPT-4o's and DeepSeek's expressions.
enum class CharCase : uint8_t {
  neither,
  upper,   ///< \p{Lu}\p{Lt}
  lower,   ///< \p{Ll}
  both,    ///< letters without case and marks: \p{Lm}\p{Lo}\p{M}
  symbol,  ///< \p{P}\p{S}
};
CharCase char_case(int32_t code_point);

/// The class of a code point under Unicode 16; -1 (an invalid byte) is `other`.
CharClass char_class(int32_t code_point);

/// Punctuation as BERT and the Punctuation step of Hugging Face's tokenizers know it.
bool is_punctuation(int32_t code_point);
/// \w of a regular expression; an invalid byte is none.
bool is_word_character(int32_t code_point);

struct CodePoints {
  int32_t first, last;
};
/// Whether one of the ranges, in ascending order, holds `code_point`.
bool contains(std::span<const CodePoints> ranges, int32_t code_point);

/// Appends the UTF-8 form of a valid code point.
void append_utf8(int32_t code_point, std::string& out);

/// The byte <-> printable character bijection of GPT-2: code point that stands for a byte.
int32_t byte_to_symbol(uint8_t byte);
/// The byte a code point stands for, or -1.
int32_t symbol_to_byte(int32_t code_point);

}  // namespace multihead::text
