#include "multihead/train/data/masking.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "multihead/core/error.h"

namespace multihead::train {
namespace {

text::Tokenizer tokenizer() {
  return text::Tokenizer::train_bpe("the cats sat, the cats ran; the other cats",
                                    {.vocab_size = 275, .special = {.others = {"[MASK]", "[SEP]"}}});
}

TEST(MaskingTest, WordsAreHiddenWholeAndSpecialTokensNever) {
  const text::Tokenizer t = tokenizer();
  const Masker mask(t, {.share = 0.3});
  const std::vector<int32_t> tokens =
      t.encode("the cats running[SEP] unheard-of sat, cats", {.parse_special = true});
  std::vector<std::string> pieces;
  for (const int32_t id : tokens) pieces.push_back(t.decode({&id, 1}, {.continued = true}));
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const MaskedText masked = mask(tokens, {seed, 5});
    ASSERT_EQ(masked.places.size(), masked.targets.size());
    ASSERT_FALSE(masked.places.empty());
    std::vector<bool> hidden(tokens.size());
    for (size_t i = 0; i < masked.places.size(); ++i) {
      const auto place = static_cast<size_t>(masked.places[i]);
      EXPECT_EQ(masked.targets[i], tokens[place]);
      EXPECT_NE(pieces[place], "[SEP]");
      hidden[place] = true;
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (!hidden[i]) {
        EXPECT_EQ(masked.tokens[i], tokens[i]);
      }
      const bool goes_on =
          i > 0 && std::isalnum(pieces[i][0]) != 0 && std::isalnum(pieces[i - 1].back()) != 0;
      if (goes_on) {
        EXPECT_EQ(hidden[i], hidden[i - 1]) << seed << ": " << pieces[i - 1] << "|" << pieces[i];
      }
    }
    EXPECT_EQ(mask(tokens, {seed, 5}).tokens, masked.tokens);
  }
}

// The bytes of one character are hidden together.
TEST(MaskingTest, ScriptsWithoutSpacesAreHiddenByCharacters) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += i % 2 == 0 ? "今天天气很好。" : "ใครขายไข่ไก่";
  const auto bpe = text::Tokenizer::train_bpe(std::vector<std::string_view>{text},
                                              {.vocab_size = 262, .special = {.others = {"[MASK]"}}});
  const auto pieces =
      text::Tokenizer::train_wordpiece(std::vector<std::string_view>{text}, {.vocab_size = 60});
  for (const text::Tokenizer& t : {bpe, pieces}) {
    const Masker mask(t, {});
    const std::vector<int32_t> tokens = t.encode(text);
    const auto share = static_cast<double>(mask(tokens, {3, 0}).places.size());
    EXPECT_NEAR(share / static_cast<double>(tokens.size()), 0.15, 0.01);
  }
  const std::vector<int32_t> one = bpe.encode("龘");
  ASSERT_GT(one.size(), 1u);
  EXPECT_EQ(Masker(bpe, {})(one, {3, 0}).places.size(), one.size());
}

TEST(MaskingTest, AWordThatIsTooLongStaysUnlessThereIsNoOther) {
  const text::Tokenizer t = tokenizer();
  const Masker mask(t, {.share = 0.2});
  const std::vector<int32_t> tokens = t.encode("the xylophonequartzjackdaws,, cats ran ran ran");
  for (uint64_t seed = 0; seed < 50; ++seed) {
    EXPECT_LE(mask(tokens, {seed, 0}).places.size(), tokens.size() / 5 + 1) << seed;
  }
  const std::vector<int32_t> two = t.encode("xylophones, cat");
  for (uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(mask(two, {seed, 0}).places, mask(two, {0, 0}).places) << seed;  // the comma, the shortest
  }
}

TEST(MaskingTest, EightOfTenAreTheMaskAndOneIsAnyToken) {
  const text::Tokenizer t = tokenizer();
  const Masker mask(t, {.share = 0.15, .whole_words = false});
  const std::vector<int32_t> tokens(400, *t.id("Ġcats"));
  int64_t count = 0, masks = 0, same = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const MaskedText masked = mask(tokens, {seed, 0});
    EXPECT_EQ(masked.places.size(), 60u);
    for (const int64_t place : masked.places) {
      const int32_t token = masked.tokens[static_cast<size_t>(place)];
      ++count, masks += token == *t.id("[MASK]"), same += token == tokens[0];
    }
  }
  EXPECT_NEAR(static_cast<double>(masks) / static_cast<double>(count), 0.8, 0.02);
  EXPECT_NEAR(static_cast<double>(same) / static_cast<double>(count), 0.1, 0.02);
}

TEST(MaskingTest, NeedsATokenForIt) {
  EXPECT_THROW(Masker(text::Tokenizer::train_bpe("the cat", {.vocab_size = 260}), {}), ValueError);
}

}  // namespace
}  // namespace multihead::train
