#include "multihead/core/text/utf8.h"

#include <gtest/gtest.h>

namespace multihead {
namespace {

std::string encoded(unsigned c) {
  const auto byte = [](unsigned x) { return static_cast<char>(x); };
  const auto tail = [&](unsigned shift) { return byte(0x80 | (c >> shift & 0x3f)); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xc0 | c >> 6), tail(0)};
  if (c < 0x10000) return {byte(0xe0 | c >> 12), tail(6), tail(0)};
  return {byte(0xf0 | c >> 18), tail(12), tail(6), tail(0)};
}

TEST(Utf8Test, EveryCodePointIsReadAndNoSurrogate) {
  for (unsigned c = 0; c < 0x120000; ++c) {
    const std::string text = encoded(c);
    const bool valid = c < 0x110000 && (c < 0xd800 || c >= 0xe000);
    const Utf8Char got = decode_utf8(text + "x", 0);
    ASSERT_EQ(got.code_point, valid ? static_cast<int32_t>(c) : -1) << c;
    ASSERT_EQ(got.length, valid ? static_cast<int32_t>(text.size()) : 1) << c;
    if (text.size() > 1) {
      ASSERT_EQ(decode_utf8(text.substr(0, text.size() - 1), 0).code_point, -1) << c;
    }
  }
}

TEST(Utf8Test, CharactersAreCounted) {
  EXPECT_EQ(count_utf8(""), 0);
  EXPECT_EQ(count_utf8("abc"), 3);
  EXPECT_EQ(count_utf8("aé€😀"), 4);
}

TEST(Utf8Test, LongFormsAndStrayBytesAreNone) {
  for (const char* text : {"\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf", "\xf8\x88\x80\x80\x80",
                           "\x80", "\xbf", "\xfe", "\xff", "\xc3(", "\xe2\x82(", "\xf0\x9f\x98("}) {
    EXPECT_EQ(decode_utf8(text, 0).code_point, -1) << text;
    EXPECT_EQ(find_invalid_utf8(std::string("é") + text), 2u) << text;
  }
  // One mark for the bytes of a character that is cut short, as in Python and Rust.
  EXPECT_EQ(valid_utf8("a\xff\xe2\x82z"), "a\uFFFD\uFFFDz");
  EXPECT_EQ(valid_utf8("\xe4\xb8\xe4\xb8"), "\uFFFD\uFFFD");
  EXPECT_EQ(valid_utf8("\xf0\x9f\x99"), "\uFFFD");
  EXPECT_EQ(valid_utf8("\xf0\x9f"), "\uFFFD");
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(valid_utf8("\xe0\x80\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(valid_utf8("\xc0\x80\xf5\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
}

}  // namespace
}  // namespace multihead
