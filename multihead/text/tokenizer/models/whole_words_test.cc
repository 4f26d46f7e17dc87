// Tokenizers of whole words: WordLevel, as courses train it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "multihead/core/error.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::text {
namespace {

using ::testing::ElementsAre;

Tokenizer words(const std::string& pre_tokenizer, const std::string& normalizer = "null") {
  return Tokenizer::from_json(concat(
      R"({"version": "1.0", "truncation": null, "padding": null, "post_processor": null, "decoder": null,)",
      R"("added_tokens": [{"id": 0, "content": "[UNK]", "single_word": false, "lstrip": false, "rstrip": false,)",
      R"("normalized": false, "special": true}], "normalizer": )", normalizer, R"(, "pre_tokenizer": )",
      pre_tokenizer,
      R"(, "model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "the": 1, "cat": 2, ".": 3, "the cat": 4}}})"));
}

// Ids and texts of tokenizers 0.23.
TEST(WholeWordsTest, AWordIsATokenOrUnknown) {
  const Tokenizer t = words(R"({"type": "Whitespace"})");
  EXPECT_EQ(t.kind(), Tokenizer::Kind::words);
  EXPECT_THAT(t.encode("the cats, the cat."), ElementsAre(1, 0, 0, 1, 2, 3));
  EXPECT_THAT(t.encode("The\tcat"), ElementsAre(0, 2));
  EXPECT_THAT(words(R"({"type": "Whitespace"})", R"({"type": "Lowercase"})").encode("The"), ElementsAre(1));
  EXPECT_EQ(t.decode({{1, 2, 3}}), "the cat .");
  EXPECT_EQ(t.encoding("the cat.").offsets[1].begin, 4U);
}

TEST(WholeWordsTest, WithoutCutsTheTextIsOneWord) {
  EXPECT_THAT(words("null").encode("the cat"), ElementsAre(4));
  EXPECT_THAT(words("null").encode("the"), ElementsAre(1));
}

TEST(WholeWordsTest, PlainWordsAreNoSpecialTokens) {
  const Tokenizer t = words(R"({"type": "WhitespaceSplit"})");
  EXPECT_THAT(t.encode("[UNK] the", {.parse_special = true}), ElementsAre(0, 1));
  EXPECT_THAT(t.encode("[UNK]"), ElementsAre(0));
  EXPECT_NE(t.fingerprint(), words(R"({"type": "Whitespace"})").fingerprint());
}

}  // namespace
}  // namespace multihead::text
