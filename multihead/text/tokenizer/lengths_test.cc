// Texts that are cut and padded as tokenizer.json says, and two published ways of splitting. That all of it
// equals Hugging Face's tokenizers is python/tests/test_tokenizer_lengths.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"
#include "multihead/text/tokenizer/pipeline/split-inl.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::text {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// [CLS] is 2, [SEP] 3; a to e are 5 to 9.
Tokenizer words_with(const char* truncation, const char* padding) {
  const std::string whole = Tokenizer::train_wordpiece("a b c d e a b c d e", {.vocab_size = 20}).to_json();
  Json json = Json::parse(whole);
  json["truncation"] = Json::parse(truncation), json["padding"] = Json::parse(padding);
  return Tokenizer::from_json(json.dump());
}

constexpr const char* kRight = R"({"direction":"Right","max_length":5,"strategy":"LongestFirst","stride":0})";
constexpr const char* kLeft = R"({"direction":"Left","max_length":5,"strategy":"OnlyFirst","stride":1})";
constexpr const char* kBatch = R"({"strategy":"BatchLongest","direction":"Left","pad_to_multiple_of":4,
    "pad_id":0,"pad_type_id":1,"pad_token":"[PAD]"})";
constexpr const char* kFixed = R"({"strategy":{"Fixed":7},"direction":"Right","pad_to_multiple_of":null,
    "pad_id":0,"pad_type_id":0,"pad_token":"[PAD]"})";

TEST(LengthsTest, TextsAreCutAsTheFileSaysOnRequestOnly) {
  const Tokenizer right = words_with(kRight, "null"), left = words_with(kLeft, "null");
  EXPECT_EQ(right.encode("a b c d e").size(), 7u);
  EXPECT_THAT(right.encode("a b c d e", {.as_file = true}), ElementsAre(2, 5, 6, 7, 3));
  EXPECT_THAT(left.encode("a b c d e", {.as_file = true}), ElementsAre(2, 7, 8, 9, 3));
  EXPECT_THAT(left.encode("a b c d e", {.max_length = 4, .as_file = true}), ElementsAre(2, 8, 9, 3));
  EXPECT_THAT(left.encode("a b", {.as_file = true}), ElementsAre(2, 5, 6, 3));
  EXPECT_EQ(left.encoding("a b c d e", {.as_file = true}).offsets[1], (Offsets{4, 5}));
  // Only the first of two: it loses two of its three.
  EXPECT_THAT(left.encode_pair("a b c", "d", {.as_file = true}).ids, ElementsAre(2, 7, 3, 8, 3));
  EXPECT_THROW(left.encode_pair("a", "b c d e", {.as_file = true}), ValueError);
}

TEST(LengthsTest, TextsArePaddedAsTheFileSays) {
  const Tokenizer fixed = words_with("null", kFixed), batch = words_with("null", kBatch);
  EXPECT_THAT(fixed.encode("a", {.as_file = true}), ElementsAre(2, 5, 3, 0, 0, 0, 0));
  EXPECT_THAT(fixed.encoding("a", {.as_file = true}).attention_mask, ElementsAre(1, 1, 1, 0, 0, 0, 0));
  const Encoding one = batch.encoding("a", {.as_file = true});
  EXPECT_THAT(one.ids, ElementsAre(0, 2, 5, 3));
  EXPECT_THAT(one.type_ids, ElementsAre(1, 0, 0, 0));
  EXPECT_THAT(one.sequence_ids, ElementsAre(-1, -1, 0, -1));
  std::vector<Encoding> list = {batch.encoding("a"), batch.encoding("a b c")};
  batch.pad(list);
  EXPECT_THAT(list[0].ids, ElementsAre(0, 0, 0, 0, 0, 2, 5, 3));
  EXPECT_THAT(list[1].attention_mask, ElementsAre(0, 0, 0, 1, 1, 1, 1, 1));
  EXPECT_THROW(words_with("null", "null").pad(list), ValueError);
}

TEST(LengthsTest, PaddingIsCalledAsTheFileSays) {
  const auto names = [](const std::string& pad) {
    const std::string padding = R"({"strategy":{"Fixed":4},"pad_id":0,"pad_token":")" + pad + "\"}";
    const Tokenizer tokenizer = words_with("null", padding.c_str());
    return tokenizer.tokens(tokenizer.encoding("a", {.as_file = true}));
  };
  EXPECT_THAT(names("[PAD]"), ElementsAre("[CLS]", "a", "[SEP]", "[PAD]"));
  EXPECT_THAT(names("<pad>"), ElementsAre("[CLS]", "a", "[SEP]", "<pad>"));
}

TEST(LengthsTest, TypesAreThoseOfTheTemplate) {
  Json json = Json::parse(Tokenizer::train_wordpiece("a b c a b c", {.vocab_size = 20}).to_json());
  json["post_processor"] = Json::parse(R"({"type":"TemplateProcessing","single":[
      {"SpecialToken":{"id":"[CLS]","type_id":3}}, {"Sequence":{"id":"A","type_id":2}},
      {"SpecialToken":{"id":"[SEP]","type_id":1}}],
      "special_tokens":{"[CLS]":{"ids":[2]},"[SEP]":{"ids":[3]}}})");
  const Tokenizer tokenizer = Tokenizer::from_json(json.dump());
  EXPECT_THAT(tokenizer.encoding("a b").type_ids, ElementsAre(3, 2, 2, 1));
  EXPECT_THAT(tokenizer.encoding("a b", {.add_template = false}).type_ids, ElementsAre(2, 2));
  EXPECT_THAT(tokenizer.encode("a b", {.end = 3}), ElementsAre(2, 5, 6, 3));
  EXPECT_THAT(tokenizer.encode("a", {.end = 2}), ElementsAre(2, 5, 3, 2));
}

// tokenizer_config.json says which end of a long text is kept, and whether ids say which text they belong to.
TEST(LengthsTest, TheConfigHasTheLastWord) {
  const Tokenizer words = words_with(kRight, "null");
  const auto with = [&](const char* config) { return Tokenizer::from_contents(words.to_json(), config); };
  const EncodeOptions cut = {.max_length = 4};
  const Tokenizer left = with(R"({"truncation_side": "left"})"), right = with("{}");
  EXPECT_THAT(left.encode("a b c d e", cut), ElementsAre(2, 8, 9, 3));
  EXPECT_THAT(right.encode("a b c d e", cut), ElementsAre(2, 5, 6, 3));
  EXPECT_THAT(left.encode_pair("a b c", "d", {.max_length = 6}).ids, ElementsAre(2, 6, 7, 3, 8, 3));
  const Tokenizer again = Tokenizer::from_contents(left.to_json(), left.config_json());
  EXPECT_THAT(again.encode("a b c d e", cut), ElementsAre(2, 8, 9, 3));
  EXPECT_NE(left.fingerprint(), right.fingerprint());
  EXPECT_THAT([&] { with(R"({"truncation_side": "middle"})"); },
              ThrowsMessage<FormatError>(HasSubstr("truncation_side must be")));
  const Tokenizer plain = with(R"({"model_input_names": ["input_ids", "attention_mask"]})");
  EXPECT_THAT(plain.encode_pair("a", "b").type_ids, Each(0));
  EXPECT_THAT(plain.encode_pair("a", "b", {.as_file = true}).type_ids, Contains(1));
  EXPECT_THAT(right.encode_pair("a", "b").type_ids, Contains(1));
}

TEST(LengthsTest, WhatIsNotKnownIsRefusedByName) {
  const auto error_with = [](const char* truncation, const char* padding) -> std::string {
    try {
      words_with(truncation, padding);
    } catch (const FormatError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(error_with(R"({"max_length":-1})", "null"), HasSubstr("truncation.max_length"));
  EXPECT_THAT(error_with(R"({"max_length":9,"strategy":"Both"})", "null"), HasSubstr("truncation.strategy"));
  EXPECT_THAT(error_with(R"({"max_length":9,"direction":"Up"})", "null"), HasSubstr("truncation.direction"));
  EXPECT_THAT(error_with("null", R"({"strategy":"Fixed","pad_id":0})"), HasSubstr("padding.strategy"));
  EXPECT_THAT(error_with("null", R"({"strategy":"BatchLongest","pad_id":99})"), HasSubstr("padding.pad_id"));
  EXPECT_THAT(error_with("null", R"({"strategy":{"Fixed":2147483647},"pad_id":0})"),
              HasSubstr("[0, 1048576]"));
  EXPECT_THAT(error_with("[]", "null"), HasSubstr("truncation must be an object"));
}

std::vector<std::string> pieces_of(SplitRule::Kind kind, std::string_view text) {
  std::vector<std::string> pieces;
  split_text(text, SplitRule{.kind = kind}, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

TEST(LengthsTest, GptFourOCutsWhereLowerCaseEnds) {
  const auto pieces = [](std::string_view text) { return pieces_of(SplitRule::Kind::gpt4o, text); };
  EXPECT_THAT(pieces("camelCaseHTTPServer it'S"), ElementsAre("camel", "Case", "HTTPServer", " it'S"));
  EXPECT_THAT(pieces("東ABC ABC東AB"), ElementsAre("東", "ABC", " ABC東", "AB"));
  EXPECT_THAT(pieces(" 1234 //\n/x"), ElementsAre(" ", "123", "4", " //\n/", "x"));
  EXPECT_THAT(pieces("\u0301A b\u0301.\u0301"), ElementsAre("\u0301", "A", " b\u0301", ".\u0301"));
  EXPECT_THAT(pieces("a  \n  b"), ElementsAre("a", "  \n", " ", " b"));
}

TEST(LengthsTest, DeepSeekKeepsNumbersAndInvisibleCharactersApart) {
  const auto pieces = [](std::string_view text) { return pieces_of(SplitRule::Kind::deepseek, text); };
  EXPECT_THAT(pieces("a.bcé 12 x"), ElementsAre("a", ".bc", "é", " ", "12", " x"));
  EXPECT_THAT(pieces("1\x01\x01 != a"), ElementsAre("1\x01\x01", " !=", " a"));
  EXPECT_THAT(pieces("7b\r\n\n c"), ElementsAre("7b", "\r\n\n", " c"));
  EXPECT_THAT(pieces_of(SplitRule::Kind::cjk_runs, "a東京カb"), ElementsAre("a", "東京カ", "b"));
}

TEST(LengthsTest, WordsOfAnExpressionAreNotThoseOfTheWhitespaceStep) {
  const std::string text = "a\u200Db\u00B2 c";
  EXPECT_THAT(pieces_of(SplitRule::Kind::words, text), ElementsAre("a\u200Db", "\u00B2", " ", "c"));
  ASSERT_TRUE(known_pattern(R"(\w+|[^\w\s]+)"));
  EXPECT_THAT(pieces_of(known_pattern(R"(\w+|[^\w\s]+)")->kind, text),
              ElementsAre("a", "\u200D", "b\u00B2", " ", "c"));
  // To Oniguruma, by which tokenizers cuts, these numbers belong to both classes.
  EXPECT_THAT(pieces_of(SplitRule::Kind::regex_words, "<\u00B2> <\u00BDa \u00B9<"),
              ElementsAre("<\u00B2>", " ", "<\u00BD", "a", " ", "\u00B9", "<"));
}

}  // namespace
}  // namespace multihead::text
