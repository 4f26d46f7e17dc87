#include "multihead/text/words-inl.h"

#include "multihead/text/unicode-inl.h"

namespace multihead::text {
namespace {

bool is_spaced_word_character(int32_t c) {
  constexpr CodePoints kWithoutSpaces[] = {
      {0x0E00, 0x0FFF}, {0x1000, 0x109F},   {0x1780, 0x17FF},  {0x2E80, 0x312F}, {0x31A0, 0x31FF},
      {0x3400, 0x4DBF}, {0x4E00, 0x9FFF},   {0xA9E0, 0xA9FF},  {0xAA60, 0xAA7F}, {0xF900, 0xFAFF},
      {0xFF66, 0xFF9F}, {0x1AFF0, 0x1B16F}, {0x20000, 0x3FFFF}};
  return c != '_' && is_word_character(c) && !contains(kWithoutSpaces, c);
}

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

}  // namespace

bool is_inside_word(std::string_view text, size_t at) {
  if (continues_character(text[at])) return true;
  size_t before = at - 1;
  while (before > 0 && continues_character(text[before])) --before;
  return is_spaced_word_character(decode_utf8(text, before).code_point) &&
         is_spaced_word_character(decode_utf8(text, at).code_point);
}

}  // namespace multihead::text
