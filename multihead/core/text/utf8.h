// UTF-8, and text as messages and terminals may be given it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace multihead {

struct Utf8Char {
  int32_t code_point;  ///< -1: the byte starts no valid sequence (RFC 3629: no surrogates, no long forms)
  int32_t length;      ///< 1 for such a byte
};

Utf8Char decode_utf8_slow(std::string_view text, size_t at);
/// The character at `at`, which must be inside `text`.
inline Utf8Char decode_utf8(std::string_view text, size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 0x80) return {byte, 1};
  return decode_utf8_slow(text, at);
}

/// Offset of the first byte that is not valid UTF-8, or npos.
size_t find_invalid_utf8(std::string_view text);
/// Characters: bytes that do not continue another.
int64_t count_utf8(std::string_view text);
/// Bytes at the front of `text` that end with a whole character; the rest, at most 3 bytes, may be the start
/// of one still to come. For showing generated text as it grows.
size_t complete_utf8(std::string_view text);
/// `text` with the replacement character for every byte that is not valid UTF-8.
std::string valid_utf8(std::string_view text);

/// Text as one line of a terminal may show it: control characters (C0, C1, DEL), those that turn the
/// direction of writing, and bytes outside UTF-8 are escaped, so that a name from a file cannot forge a line,
/// move the cursor or hide what follows.
std::string printable(std::string_view text);
/// The same in double quotes for messages, cut after `limit` bytes.
std::string quote(std::string_view text, size_t limit = 80);
/// The text after its byte order mark, if it begins with one.
std::string_view without_byte_order_mark(std::string_view text);
/// Whether a terminal obeys the character instead of showing it, besides the characters below U+0020.
bool is_terminal_control(int32_t code_point);

}  // namespace multihead
