#include "multihead/text/corpus/token_labels.h"

#include <gtest/gtest.h>

#include "multihead/core/error.h"

namespace multihead::text {
namespace {

using Texts = std::vector<std::string>;

TEST(TokenLabelsTest, PiecesOfACharacterCarryItsNameAndTheirNumber) {
  const struct {
    const char* what;
    Texts pieces, labels;
  } cases[] = {
      {"nothing", {}, {}},
      {"whole characters", {"the", " é", "狐"}, {"the", " é", "狐"}},
      {"an empty token", {"a", "", "b"}, {"a", "", "b"}},
      {"two halves", {"\xC3", "\xA9"}, {"é¹⁄₂", "é²⁄₂"}},
      {"a piece behind text", {" \xE7\x8B", "\x90."}, {" 狐¹⁄₂", "狐²⁄₂."}},
      {"four pieces",
       {"\xF0", "\x9F", "\xA6", "\x8A"},
       {"🦊¹⁄₄", "🦊²⁄₄", "🦊³⁄₄", "🦊⁴⁄₄"}},
      {"an empty token inside a character", {"\xC3", "", "\xA9"}, {"é¹⁄₂", "", "é²⁄₂"}},
      {"the end of one, the start of the next", {"\xC3", "\xA9\xC3", "\xA8"}, {"é¹⁄₂", "é²⁄₂è¹⁄₂", "è²⁄₂"}},
      {"a character that never ends", {"a\xE2", "\x82", "b"}, {"a<0xE2>", "<0x82>", "b"}},
      {"no UTF-8 at all", {"\xFF\x80"}, {"<0xFF><0x80>"}},
      {"a surrogate", {"\xED\xA0\x80"}, {"<0xED><0xA0><0x80>"}},
  };
  for (const auto& c : cases) EXPECT_EQ(token_labels(c.pieces), c.labels) << c.what;
}

TEST(TokenLabelsTest, ATokenizerThatFallsBackToBytes) {
  const Tokenizer tokenizer =
      Tokenizer::train_bpe(std::vector<std::string_view>{"the fox"}, {.vocab_size = 258});
  const Texts labels = token_labels(tokenizer, tokenizer.encode("a狐"));
  EXPECT_EQ(labels, (Texts{"a", "狐¹⁄₃", "狐²⁄₃", "狐³⁄₃"}));
  const std::vector<int32_t> outside = {100000};
  EXPECT_EQ(token_labels(tokenizer, outside), Texts{"<100000>"});  // models may be padded to such ids
  const std::vector<int32_t> negative = {-1};
  EXPECT_THROW(token_labels(tokenizer, negative), ValueError);
}

}  // namespace
}  // namespace multihead::text
