#include "multihead/text/languages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "multihead/core/error.h"
#include "multihead/testing/matchers.h"

namespace multihead::text {
namespace {

using ::testing::ElementsAre;

// Letters; a text is followed by </s> and en_XX.
Tokenizer tokenizer(const std::string& config, bool has_languages = true) {
  const std::string language = R"({"SpecialToken": {"id": "en_XX", "type_id": 0}}, )";
  return Tokenizer::from_contents(
      R"({"version": "1.0",
          "added_tokens": [{"id": 0, "content": "<s>", "special": true}, {"id": 1, "content": "</s>", "special": true},
                           {"id": 2, "content": "en_XX", "special": true}, {"id": 3, "content": "fr_XX", "special": true},
                           {"id": 4, "content": "<pad>", "special": true}, {"id": 7, "content": ">>fra<<", "special": false}],
          "post_processor": {"type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, )" +
          (has_languages ? language : "") + R"({"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]},
                               "en_XX": {"id": "en_XX", "ids": [2], "tokens": ["en_XX"]}}},
          "model": {"type": "BPE", "vocab": {"<s>": 0, "</s>": 1, "en_XX": 2, "fr_XX": 3, "<pad>": 4, "a": 5, "b": 6},
                    "merges": []}})",
      R"({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>")" + config + "}");
}

TEST(LanguagesTest, TheConfigsLanguagesTakeTheTemplatesPlace) {
  const Tokenizer plain = tokenizer("");
  EXPECT_THAT(encode_source(plain, "ab", 1), ElementsAre(5, 6, 2, 1));
  EXPECT_THAT(encode_source(plain, "ab", 1, "fr_XX"), ElementsAre(5, 6, 3, 1));
  EXPECT_MESSAGE(encode_target(plain, "ab", 1), ValueError, "set \"tgt_lang\" in tokenizer_config.json");
  const Tokenizer both = tokenizer(R"(, "src_lang": "fr_XX", "tgt_lang": "en_XX")");
  EXPECT_THAT(encode_source(both, "ab", 1), ElementsAre(5, 6, 3, 1));
  EXPECT_THAT(encode_source(both, "ab", 1, "en_XX"), ElementsAre(5, 6, 2, 1));
  EXPECT_THAT(encode_target(both, "ab", 1), ElementsAre(5, 6, 2, 1));
  EXPECT_THAT(encode_target(tokenizer(R"(, "tgt_lang": "fr_XX")"), "b", 1), ElementsAre(6, 3, 1));
  EXPECT_NE(plain.fingerprint(), both.fingerprint());
}

TEST(LanguagesTest, OthersHaveNone) {
  const Tokenizer one = tokenizer(R"(, "src_lang": "fr_XX")", false);
  EXPECT_THAT(encode_source(one, "ab", 1), ElementsAre(5, 6, 1));
  EXPECT_THAT(encode_target(one, "ab", 1), ElementsAre(5, 6, 1));
  EXPECT_MESSAGE(encode_source(one, "ab", 1, "fr_XX"), ValueError,
                 "template has no place for the language \"fr_XX\"");
}

TEST(LanguagesTest, ATextMayBeginWithAKnownCodeAlone) {
  const Tokenizer one = tokenizer("", false);
  EXPECT_THAT(encode_source(one, ">>fra<<ab", 1), ElementsAre(7, 5, 6, 1));
  EXPECT_MESSAGE(encode_source(one, ">>deu<<ab", 1), ValueError,
                 "the tokenizer has no language \">>deu<<\"; it has >>fra<<");
}

TEST(LanguagesTest, OnlyALanguageIsOne) {
  for (const char* other : {"</s>", "<s>", "<pad>", "a", "de_DE", ""}) {
    SCOPED_TRACE(other);
    EXPECT_MESSAGE(language_token(tokenizer(""), other), ValueError, "the tokenizer has no language");
  }
  EXPECT_EQ(language_token(tokenizer(""), "fr_XX"), 3);
  EXPECT_MESSAGE(tokenizer(R"(, "src_lang": 3)"), FormatError, "src_lang must be a string, got 3");
}

}  // namespace
}  // namespace multihead::text
