// Unicode as tokenizers need it: strict UTF-8 and four character classes. Private to text/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "multihead/core/json.h"

namespace multihead::text {

struct DecodedChar {
  int32_t code_point;  // -1: the byte starts no valid UTF-8 sequence
  int32_t length;      // 1 for such a byte
};

/// What a pre-tokenizer's regular expression can ask of a character.
enum class CharClass : uint8_t { other, letter, number, space };  // neither, \p{L}, \p{N}, \s

/// The character at `position` (which must be inside `text`).
DecodedChar decode_char_slow(std::string_view text, size_t position);
inline DecodedChar decode_char(std::string_view text, size_t position) {
  const auto byte = static_cast<unsigned char>(text[position]);
  if (byte < 0x80) return {byte, 1};
  return decode_char_slow(text, position);
}

/// The class of a code point under Unicode 16; -1 (an invalid byte) is `other`.
CharClass char_class(int32_t code_point);

/// Appends the UTF-8 form of a valid code point.
void append_utf8(int32_t code_point, std::string& out);

/// Offset of the first byte that is not valid UTF-8, or npos.
size_t find_invalid_utf8(std::string_view text);

/// The byte <-> printable character bijection of GPT-2: code point that stands for a byte.
int32_t byte_to_symbol(uint8_t byte);
/// The byte a code point stands for, or -1.
int32_t symbol_to_byte(int32_t code_point);

/// `text` in quotes for a message: what a terminal would obey is escaped, and what is no UTF-8; cut after 80
/// bytes.
inline std::string in_quotes(std::string_view text) { return quote(text); }

}  // namespace multihead::text
