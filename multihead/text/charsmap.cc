#include <utf8proc.h>

#include <cstring>

#include "multihead/core/error.h"
#include "multihead/text/sentencepiece-inl.h"
#include "multihead/text/unicode-inl.h"

namespace multihead::text {

CharsMap::CharsMap(std::string bytes) : bytes_(std::move(bytes)) {
  uint32_t size = 0;
  MH_CHECK(bytes_.size() >= sizeof size, ValueError, "precompiled_charsmap: ", bytes_.size(),
           " bytes are no table");
  std::memcpy(&size, bytes_.data(), sizeof size);
  MH_CHECK(size % 4 == 0 && size <= bytes_.size() - sizeof size, ValueError,
           "precompiled_charsmap: a trie of ", size, " bytes in a table of ", bytes_.size());
  trie_units_ = size / 4;
  texts_begin_ = sizeof size + size;
}

uint32_t CharsMap::unit(size_t index) const {
  uint32_t value = 0;
  if (index < trie_units_) std::memcpy(&value, bytes_.data() + 4 + 4 * index, sizeof value);
  return value;
}

// The shortest entry that the text begins with, as Hugging Face's tokenizers take it. Units of the double
// array: the label in the low byte, bit 8 for a value below, the offset of the children in the upper bits.
std::optional<std::string_view> CharsMap::replacement(std::string_view text) const {
  const auto offset = [](uint32_t unit) {
    return static_cast<size_t>(unit >> 10) << ((unit & (1u << 9)) >> 6);
  };
  size_t at = offset(unit(0));
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) return std::nullopt;
    at ^= byte;
    const uint32_t node = unit(at);
    if (at >= trie_units_ || (node & (1u << 31 | 0xFF)) != byte) return std::nullopt;
    at ^= offset(node);
    if ((node >> 8 & 1) == 0) continue;
    const size_t begin = texts_begin_ + (unit(at) & ~(1u << 31));
    if (begin >= bytes_.size()) return std::nullopt;
    const size_t end = std::min(bytes_.find('\0', begin), bytes_.size());
    return std::string_view(bytes_).substr(begin, end - begin);
  }
  return std::nullopt;
}

// By graphemes, if they are short, then by characters.
std::string CharsMap::apply(std::string_view text) const {
  constexpr size_t kShort = 6;
  std::string out;
  out.reserve(text.size());
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    utf8proc_int32_t state = 0;
    Utf8Char c = decode_utf8(text, end);
    for (;;) {
      end += static_cast<size_t>(c.length);
      if (end >= text.size()) break;
      const Utf8Char next = decode_utf8(text, end);
      if (c.code_point < 0 || next.code_point < 0 ||
          utf8proc_grapheme_break_stateful(c.code_point, next.code_point, &state)) {
        break;
      }
      c = next;
    }
    const std::string_view grapheme = text.substr(begin, end - begin);
    const auto whole = grapheme.size() < kShort ? replacement(grapheme) : std::nullopt;
    if (whole) out += *whole;
    for (size_t at = begin; at < end && !whole;) {
      const std::string_view character = text.substr(at, static_cast<size_t>(decode_utf8(text, at).length));
      out += replacement(character).value_or(character);
      at += character.size();
    }
    begin = end;
  }
  return out;
}

}  // namespace multihead::text
