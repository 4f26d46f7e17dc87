#include "multihead/text/corpus/spans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "multihead/core/error.h"

namespace multihead::text {
namespace {

using ::testing::HasSubstr;

std::string error_of(std::string_view content) {
  try {
    parse_spans(content, "f");
    return "accepted";
  } catch (const FormatError& error) {
    return error.what();
  }
}

std::string shown(const SpannedText& one) {
  std::string line = one.text;
  for (const Span& span : one.spans) {
    line += "|" + span.label + "=" + one.text.substr(span.place.begin, span.place.end - span.place.begin);
  }
  return line;
}

TEST(SpansTest, TaggedWords) {
  const auto all = parse_spans(
      "-DOCSTART- O\r\n\nAnna NN B-PER\nMaria  NN I-PER \nin APPR O\nBad NE B-LOC\nUlm NE I-LOC\n"
      "Bonn NE B-LOC\n\n\nx X I-PER\ny X I-LOC\n",
      "f");
  ASSERT_EQ(all.size(), 2);
  EXPECT_EQ(shown(all[0]), "Anna Maria in Bad Ulm Bonn|PER=Anna Maria|LOC=Bad Ulm|LOC=Bonn");
  EXPECT_EQ(shown(all[1]), "x y|PER=x|LOC=y");
  EXPECT_EQ(all[1].line, 11);
  EXPECT_THAT(error_of("a B-X\nb NN O\n"), HasSubstr("f: line 2 has 3 columns, the lines before have 2"));
  EXPECT_THAT(error_of("a B-X\nb\n"), HasSubstr("f: line 2: expected a word and its tag, got \"b\""));
  EXPECT_THAT(error_of("a X\n"), HasSubstr("f: line 1: a tag must be O, B-… or I-…"));
  EXPECT_THAT(error_of("\n"), HasSubstr("has no texts"));
}

// A word had lost what stood behind its first blank.
TEST(SpansTest, WordsBetweenTabsMayHoldSpaces) {
  const auto all = parse_spans("10 000\tNUM\tB-SUM \nEuro\t\tI-SUM\t\r\n\nparis\tX Y\tO\n", "f");
  ASSERT_EQ(all.size(), 2);
  EXPECT_EQ(shown(all[0]), "10 000 Euro|SUM=10 000 Euro");
  EXPECT_EQ(shown(all[1]), "paris");
  EXPECT_THAT(error_of("a\tO\nparis B-LOC\n"),
              HasSubstr("f: line 2: expected a word and its tag, between which this file has TABs, got "
                        "\"paris B-LOC\""));
  EXPECT_THAT(error_of("a\tO\n\tO\n"), HasSubstr("f: line 2: expected a word and its tag"));
}

// A comment was the word "#", with the tag O where its last word was one.
TEST(SpansTest, CommentsAreRefused) {
  const char* hint = "lines that begin with \"# \" are not read as comments";
  for (const char* content : {"# text = vitamin O\nparis\tB-LOC\n", "# text = vitamin O\nparis B-LOC\n",
                              "# sent_id = 1\nparis B-LOC\n", "paris B-LOC\n\n# text = vitamin O\nin O\n"}) {
    EXPECT_THAT(error_of(content), HasSubstr(hint)) << content;
  }
  EXPECT_EQ(shown(parse_spans("# O\n5 B-N\n", "f")[0]), "# 5|N=5");  // a word
}

TEST(SpansTest, ObjectsCountCharacters) {
  const auto all = parse_spans(
      R"({"text": "Köln und Ulm", "entities": [{"start": 9, "end": 12, "label": "LOC"}, {"start": 0, "end": 4, "label": "LOC"}]})"
      "\n",
      "f");
  ASSERT_EQ(all.size(), 1);
  EXPECT_EQ(shown(all[0]), "Köln und Ulm|LOC=Köln|LOC=Ulm");
  EXPECT_THAT(error_of(R"({"text": "ab", "entities": [{"start": 1, "end": 3, "label": "L"}]})"),
              HasSubstr("line 1: an entity must lie within the 2 characters of the text, got [1, 3)"));
  EXPECT_THAT(error_of(R"({"text": "ab"})"), HasSubstr("\"entities\" is missing"));
}

TEST(SpansTest, EntitiesHaveALabelEachAndDoNotOverlap) {
  const auto error_of_two = [](const std::string& second) {
    return error_of(
        "{\"text\": \"abc\", \"entities\": []}\n"
        "{\"text\": \"a b c\", \"entities\": [{\"start\": 0, \"end\": 3, \"label\": \"L\"}, " +
        second + "]}\n");
  };
  EXPECT_EQ(error_of_two(R"({"start": 4, "end": 5, "label": "L"})"), "accepted");
  EXPECT_THAT(error_of_two(R"({"start": 2, "end": 5, "label": "M"})"),
              HasSubstr("f: line 2: the entities \"L\" and \"M\" overlap, and a token has one label"));
  EXPECT_THAT(error_of_two(R"({"start": 0, "end": 3, "label": "L"})"), HasSubstr("overlap"));
  EXPECT_THAT(error_of_two(R"({"start": 4, "end": 5, "label": ""})"),
              HasSubstr("f: line 2: an entity has no label"));
  EXPECT_THAT(error_of_two(R"({"start": 4, "end": 5, "label": "O"})"),
              HasSubstr("f: line 2: an entity is called \"O\""));
  EXPECT_THAT(error_of("a O\nb B-O\n"), HasSubstr("f: line 1: an entity is called \"O\""));
}

// eval's guesses have no blanks at their edges, and would never be equal to entities that had.
TEST(SpansTest, BlanksAtTheEdgesOfAnEntityAreNotOfIt) {
  const auto all = parse_spans(
      R"({"text": "ein Köln \n und", "entities": [{"start": 3, "end": 11, "label": "LOC"}, {"start": 9, "end": 14, "label": "X"}]})",
      "f");
  EXPECT_EQ(shown(all[0]), "ein Köln \n und|LOC=Köln|X=und");
  EXPECT_THAT(error_of(R"({"text": "a \t b", "entities": [{"start": 1, "end": 4, "label": "L"}]})"),
              HasSubstr("line 1: the entity [1, 4) holds nothing but blanks"));
}

}  // namespace
}  // namespace multihead::text
