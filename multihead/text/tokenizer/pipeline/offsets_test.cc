// Offsets, and the steps of tokenizer.json that they follow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/text/json.h"
#include "multihead/text/testing-inl.h"
#include "multihead/text/tokenizer/pipeline/normalize-inl.h"
#include "multihead/text/tokenizer/tokenizer.h"
#include "multihead/text/unicode-inl.h"

namespace multihead::text {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

Json listed(const std::vector<int32_t>& ids) { return std::vector<Json>(ids.begin(), ids.end()); }

Json listed(const std::vector<Offsets>& offsets) {
  Json list = Json::array();
  for (const auto& [begin, end] : offsets) list.push_back(std::vector<Json>{begin, end});
  return list;
}

// Made by tools/goldens/tokenizer_offsets.py.
TEST(OffsetsGolden, EqualHuggingFace) {
  const Json json = golden("offsets.json");
  const auto& texts = json.at("texts").items();
  ASSERT_EQ(json.at("cases").size(), 12u);
  for (const Json& one : json.at("cases").items()) {
    const std::string name = one.at("name").as_string();
    const Tokenizer tokenizer = Tokenizer::from_json(one.at("tokenizer").dump(), name);
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::string text = texts[i].as_string();
      Encoding encoding = tokenizer.encoding(text, {.parse_special = true});
      EXPECT_EQ(encoding.ids, tokenizer.encode(text, {.parse_special = true})) << name;
      count_characters(encoding, text);
      EXPECT_EQ(listed(encoding.ids).dump(), one.at("ids").at(i).dump()) << name << ": " << quote(text);
      EXPECT_EQ(listed(encoding.offsets).dump(), one.at("offsets").at(i).dump())
          << name << ": " << quote(text);
    }
    for (size_t i = 0; one.contains("pairs") && i + 1 < texts.size(); ++i) {
      const std::string first = texts[i].as_string(), second = texts[i + 1].as_string();
      Encoding pair = tokenizer.encoding(first, second, {.parse_special = true, .max_length = 12});
      count_characters(pair, first, second);
      EXPECT_EQ(listed(pair.ids).dump(), one.at("pairs").at(i).at("ids").dump()) << name << ", pair " << i;
      EXPECT_EQ(listed(pair.offsets).dump(), one.at("pairs").at(i).at("offsets").dump())
          << name << ", pair " << i;
      EXPECT_EQ(listed(pair.sequence_ids).dump(), one.at("pairs").at(i).at("sequences").dump()) << name;
    }
  }
}

TEST(OffsetsTest, AreBytesOfWholeCharacters) {
  const Tokenizer bpe = Tokenizer::train_bpe("the cat", {.vocab_size = 260});
  const std::string text = "t\xC3\xA9\xFF\xE2\x82";  // t, an accented e, three stray bytes
  Encoding encoding = bpe.encoding(text);
  EXPECT_THAT(encoding.offsets, ElementsAre(Offsets{0, 1}, Offsets{1, 3}, Offsets{1, 3}, Offsets{3, 4},
                                            Offsets{4, 5}, Offsets{5, 6}));
  count_characters(encoding, text);
  EXPECT_THAT(encoding.offsets, ElementsAre(Offsets{0, 1}, Offsets{1, 2}, Offsets{1, 2}, Offsets{2, 3},
                                            Offsets{3, 4}, Offsets{4, 5}));
  EXPECT_THROW(count_characters(encoding, ""), ValueError);
}

TEST(OffsetsTest, TokensOfRepeatedWordsLieWhereTheyAre) {
  const Tokenizer bpe = Tokenizer::train_bpe("the cat the cat the cat", {.vocab_size = 265});
  const std::string text = "the cat the cat";
  const Encoding encoding = bpe.encoding(text);
  size_t end = 0;
  for (const Offsets& span : encoding.offsets) {
    EXPECT_EQ(span.begin, end);
    end = span.end;
  }
  EXPECT_EQ(end, text.size());
}

// Of the pieces a and b.
Tokenizer trimming_unigram() {
  return Tokenizer::from_json(R"({"model": {"type": "Unigram", "unk_id": 0,
      "vocab": [["<unk>", 0], ["a", -1], [" b", -1], [" ", -2]]},
      "truncation": {"direction": "Left", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
      "post_processor": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true}})");
}

TEST(OffsetsTest, UnknownTokensAreTrimmedToo) {
  const Tokenizer unigram = trimming_unigram();
  for (const std::string space : {"\u0085", "\u00A0", "\u2028", "\u2029", "\u202F", "\u205F", "\u3000"}) {
    EXPECT_THAT(unigram.encoding("a!" + space).offsets, ElementsAre(Offsets{0, 1}, Offsets{1, 2}));
  }
}

TEST(OffsetsTest, TheFirstTokenThatIsLeftKeepsItsSpace) {
  const Tokenizer unigram = trimming_unigram();
  EXPECT_THAT(unigram.encoding("a ba").offsets, ElementsAre(Offsets{0, 1}, Offsets{2, 3}, Offsets{3, 4}));
  EXPECT_THAT(unigram.encoding("a ba", {.as_file = true}).offsets, ElementsAre(Offsets{1, 3}, Offsets{3, 4}));
}

TEST(OffsetsTest, AddedTokensOfWhiteSpaceAreFoundWhereOthersSwallowedIt) {
  const auto ids = [](const char* strips, const char* text) {
    Json json = Json::parse(Tokenizer::train_wordpiece("a b a b", {.vocab_size = 9}).to_json());
    json["added_tokens"].push_back(Json::parse(
        concat(R"({"id": 9, "content": " ", "special": false, "single_word": false, "normalized": false,)",
               strips, "}")));
    const Encoding encoding = Tokenizer::from_json(json.dump()).encoding(text, {.add_template = false});
    return std::pair(encoding.ids, encoding.offsets);
  };
  EXPECT_THAT(
      ids(R"("lstrip": false, "rstrip": true)", "a  \nb"),
      Pair(ElementsAre(5, 9, 9, 6), ElementsAre(Offsets{0, 1}, Offsets{1, 4}, Offsets{2, 4}, Offsets{4, 5})));
  EXPECT_THAT(ids(R"("lstrip": true, "rstrip": true)", "a  b"),
              Pair(ElementsAre(5, 9, 6), ElementsAre(Offsets{0, 1}, Offsets{1, 3}, Offsets{3, 4})));
}

TEST(OffsetsTest, NormalFormsAreTheSameWithAndWithout) {
  std::mt19937 random(2);
  const auto character = [&] {
    constexpr int32_t kFirst[] = {0x41,   0xC0,   0x300,  0x591,  0x900,  0xAC00,
                                  0x1100, 0x1E00, 0x3040, 0xFB00, 0x1D100};
    return static_cast<int32_t>(kFirst[random() % std::size(kFirst)] + random() % 0x80);
  };
  for (int round = 0; round < 4000; ++round) {
    std::string text;
    for (size_t i = random() % 12; i-- > 0;) append_utf8(character(), text);
    if (round % 7 == 0) text.insert(random() % (text.size() + 1), 1, '\xFF');
    for (const Normalizer form : {Normalizer::nfc, Normalizer::nfd, Normalizer::nfkc, Normalizer::nfkd}) {
      const auto plain = normalized(form, text), aligned = normalized(form, text, true);
      ASSERT_EQ(plain.has_value(), aligned.has_value());
      if (!plain) continue;
      ASSERT_EQ(plain->text, aligned->text) << quote(text) << static_cast<int>(form);
      ASSERT_EQ(aligned->from.size(), aligned->text.size());
      for (const size_t at : aligned->from) ASSERT_LT(at, text.size());
    }
  }
}

TEST(OffsetsTest, LongTextsTakeLinearTimeSlow) {
  const Json json = golden("offsets.json");
  for (const Json& one : json.at("cases").items()) {
    const Tokenizer tokenizer = Tokenizer::from_json(one.at("tokenizer").dump());
    for (const char* part :
         {"x", " ", "zz", " <mask>", "\xCC\x81", "\xCC\xA3\xCC\x81", "\x80", "the \xEF\xB7\xBA"}) {
      std::string text;
      while (text.size() < 200'000) text += part;
      Encoding encoding = tokenizer.encoding(text, {.parse_special = true});
      EXPECT_EQ(encoding.offsets.size(), encoding.ids.size());
      count_characters(encoding, text);
    }
  }
}

}  // namespace
}  // namespace multihead::text
