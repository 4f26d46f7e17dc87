#include "multihead/text/words-inl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace multihead::text {
namespace {

// The text with a bar before every byte that starts a word, a sign or a blank.
std::string divided(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    if (at > 0 && !is_inside_word(text, at)) out += '|';
    out += text[at];
  }
  return out;
}

TEST(WordsTest, AreLettersDigitsAndMarks) {
  EXPECT_EQ(divided("don't go2 x_y"), "don|'|t| |go2| |x|_|y");
  EXPECT_EQ(divided("naïve—größer “Привет”"), "naïve|—|größer| |“|Привет|”");
  EXPECT_EQ(divided("e\u0301t हिन्दी 한국어"), "e\u0301t| |हिन्दी| |한국어");
}

TEST(WordsTest, AreCharactersWhereNoSpacesAreWritten) {
  EXPECT_EQ(divided("今天abc好。"), "今|天|abc|好|。");
  EXPECT_EQ(divided("カナと"), "カ|ナ|と");
  EXPECT_EQ(divided("ไก่"), "ไ|ก|่");
}

TEST(WordsTest, BytesOutsideUtf8AreNone) { EXPECT_EQ(divided("a\xFF\xFFz"), "a|\xFF|\xFF|z"); }

}  // namespace
}  // namespace multihead::text
