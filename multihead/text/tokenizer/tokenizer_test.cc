#include "multihead/text/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"
#include "multihead/testing/files.h"
#include "multihead/text/testing-inl.h"

namespace multihead::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kMixedText[] =
    "The cat sat on the mat. The dog didn't; it's the dog that'll sit.\n  El ni\xC3\xB1o, 12345 "
    "\xE7\x8C\xAB\n";

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

std::filesystem::path fresh_folder(const char* name) {
  const auto path = std::filesystem::path(::testing::TempDir()) / (std::string("text_tokenizer_") + name);
  std::filesystem::remove_all(path);
  return path;
}

std::string random_bytes(std::mt19937& rng, size_t size) {
  constexpr std::string_view kPieces[] = {" ",
                                          "  ",
                                          "\n",
                                          "\r\n",
                                          "the",
                                          "'s",
                                          "'",
                                          "7",
                                          "\xC3\xA9",
                                          "\xE2\x82",
                                          "\xF0\x9F\x98\x80",
                                          "\xFF",
                                          "\x80",
                                          "\0",
                                          "<|endoftext|>",
                                          "\xC2\xA0"};
  std::string out;
  while (out.size() < size) {
    if (rng() % 4 == 0) {
      out += static_cast<char>(rng());
    } else {
      out += kPieces[rng() % std::size(kPieces)];
    }
  }
  return out;
}

// Tokenizers trained by Hugging Face, and the ids they gave. Made by tools/goldens/text_tokenizers.py.
TEST(TokenizerGolden, IdsEqualHuggingFace) {
  const Json json = golden("tokenizers.json");
  const auto& texts = json.at("texts").items();
  ASSERT_GE(texts.size(), 15u);
  ASSERT_GE(json.at("cases").size(), 12u);
  for (const Json& one : json.at("cases").items()) {
    const std::string& name = one.at("name").as_string();
    const Tokenizer tokenizer = Tokenizer::from_json(one.at("tokenizer").dump(), name);
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::string& text = texts[i].as_string();
      EXPECT_EQ(tokenizer.encode(text), ids_of(one.at("ids").at(i))) << name << ": " << text;
      EXPECT_EQ(tokenizer.encode(text, {.parse_special = true}), ids_of(one.at("ids_parsing_special").at(i)))
          << name << ": " << text;
    }
  }
}

TEST(TokenizerGolden, TrainingEqualsHuggingFace) {
  const Json json = golden("tokenizers.json");
  const Json& theirs = json.at("cases").at(size_t{0});
  ASSERT_EQ(theirs.at("name").as_string(), "gpt2");
  const Tokenizer ours = Tokenizer::train_bpe(
      json.at("corpus").as_string(),
      {.vocab_size = 330, .min_frequency = 0, .special = {.bos = "<|endoftext|>", .eos = "<|begin|>"}});
  EXPECT_EQ(Json::parse(ours.to_json()).at("model").dump(), theirs.at("tokenizer").at("model").dump());
}

TEST(TokenizerTest, BytePairsGiveBackAnyBytes) {
  const Tokenizer tokenizer = Tokenizer::train_bpe(kMixedText, {.vocab_size = 300});
  std::mt19937 rng(7);
  for (size_t size : {0, 1, 2, 3, 31, 32, 33, 34, 1000, 20011}) {
    const std::string text = random_bytes(rng, size);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text) << size;
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, {.parse_special = true})), text) << size;
  }
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text(1, static_cast<char>(byte));
    EXPECT_EQ(tokenizer.encode(text).size(), 1u);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(TokenizerTest, SpecialTokensInTextAreTextUnlessAsked) {
  const Tokenizer tokenizer = Tokenizer::train_bpe(kMixedText, {.vocab_size = 280});
  const int32_t eos = tokenizer.eos_id().value();
  EXPECT_EQ(eos, 0);
  EXPECT_TRUE(tokenizer.is_special(eos));
  EXPECT_THAT(tokenizer.encode("<|endoftext|>"), ::testing::Not(::testing::Contains(eos)));
  EXPECT_THAT(tokenizer.encode("<|endoftext|>", {.parse_special = true}), ElementsAre(eos));
  const auto ids = tokenizer.encode("a<|endoftext|>b", {.parse_special = true});
  EXPECT_EQ(tokenizer.decode(ids), "a<|endoftext|>b");
  EXPECT_EQ(tokenizer.decode(ids, {.skip_special = true}), "ab");
}

TEST(TokenizerTest, RolesMayShareATokenAndComeFirst) {
  const Tokenizer tokenizer = Tokenizer::train_bpe(
      kMixedText,
      {.vocab_size = 262, .special = {.bos = "<s>", .eos = "</s>", .pad = "</s>", .others = {"<x>"}}});
  EXPECT_EQ(tokenizer.bos_id(), 0);
  EXPECT_EQ(tokenizer.eos_id(), 1);
  EXPECT_EQ(tokenizer.pad_id(), 1);
  EXPECT_EQ(tokenizer.id("<x>"), 2);
  EXPECT_EQ(tokenizer.unk_id(), std::nullopt);
  EXPECT_EQ(tokenizer.vocab_size(), 262);
  EXPECT_EQ(tokenizer.token(3), "!");
  EXPECT_EQ(tokenizer.id("\xC4\xA0"), 3 + 220);  // the space
  EXPECT_EQ(tokenizer.id("no such token"), std::nullopt);
}

TEST(TokenizerTest, CharactersAreSortedByCodePoint) {
  const Tokenizer tokenizer = Tokenizer::train_characters(
      "b\xC3\xA9\na\xF0\x9F\x98\x80"
      "ab");
  EXPECT_EQ(tokenizer.vocab_size(), 5);
  EXPECT_THAT(tokenizer.encode("\nab\xC3\xA9\xF0\x9F\x98\x80"), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("abba\n")), "abba\n");
  EXPECT_EQ(tokenizer.kind(), Tokenizer::Kind::characters);
}

TEST(TokenizerTest, UnknownCharactersAreAnErrorOrTheUnknownToken) {
  const Tokenizer strict = Tokenizer::train_characters("abc");
  EXPECT_THAT(message_of<ValueError>([&] { strict.encode("abc\xC3\xA9"); }),
              ::testing::AllOf(HasSubstr("\"\xC3\xA9\" (U+00E9) at offset 3"), HasSubstr("not among the 3")));
  EXPECT_THAT(message_of<ValueError>([&] { strict.encode("ab\xFF"); }),
              HasSubstr("UTF-8 only, got byte \"\\xff\""));
  const Tokenizer lenient = Tokenizer::train_characters("abc", {.special = {.unk = "<unk>"}});
  EXPECT_THAT(lenient.encode("a\xC3\xA9"
                             "c"),
              ElementsAre(1, 0, 3));
  EXPECT_EQ(lenient.unk_id(), 0);
}

TEST(TokenizerTest, SavedAndLoadedIsTheSame) {
  const Tokenizer bpe =
      Tokenizer::train_bpe(kMixedText, {.vocab_size = 290, .special = {.eos = "<e>", .pad = "<p>"}});
  const Tokenizer characters =
      Tokenizer::train_characters(kMixedText, {.special = {.eos = "<e>", .unk = "<u>"}});
  for (const Tokenizer& tokenizer : {bpe, characters}) {
    const auto folder = fresh_folder("save") / "deep";
    tokenizer.save(folder);
    const Tokenizer loaded = Tokenizer::load(folder);
    EXPECT_EQ(loaded.fingerprint(), tokenizer.fingerprint());
    EXPECT_EQ(loaded.encode(kMixedText), tokenizer.encode(kMixedText));
    EXPECT_EQ(loaded.kind(), tokenizer.kind());
    EXPECT_EQ(loaded.eos_id(), tokenizer.eos_id());
    EXPECT_EQ(loaded.pad_id(), tokenizer.pad_id());
    EXPECT_EQ(loaded.unk_id(), tokenizer.unk_id());
    EXPECT_EQ(loaded.to_json(), tokenizer.to_json());
    loaded.save(folder / "again.json");
    EXPECT_EQ(read(folder / "again.json"), read(folder / "tokenizer.json"));
    EXPECT_EQ(Tokenizer::load(folder / "tokenizer.json").encode(kMixedText), tokenizer.encode(kMixedText));
  }
  EXPECT_NE(bpe.fingerprint(), characters.fingerprint());
  EXPECT_NE(bpe.fingerprint(), Tokenizer::train_bpe(kMixedText, {.vocab_size = 289}).fingerprint());
}

TEST(TokenizerTest, SavingOverACopyOfItselfKeepsNoTemporaryFile) {
  const auto folder = fresh_folder("atomic");
  const Tokenizer tokenizer = Tokenizer::train_bpe(kMixedText, {.vocab_size = 270});
  tokenizer.save(folder);
  tokenizer.save(folder);
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"manifest.json", "tokenizer.json", "tokenizer_config.json"}));
}

TEST(TokenizerTest, FilesThatCannotBeReadOrWritten) {
  const auto folder = fresh_folder("errors");
  EXPECT_THAT(message_of<IoError>([&] { Tokenizer::load(folder / "missing.json"); }),
              HasSubstr("missing.json\": No such file"));
  std::filesystem::create_directories(folder / "empty");
  EXPECT_THAT(message_of<IoError>([&] { Tokenizer::load(folder / "empty"); }), HasSubstr("tokenizer.json"));
  std::ofstream(folder / "file") << "x";
  const Tokenizer tokenizer = Tokenizer::train_characters("ab");
  EXPECT_THAT(message_of<IoError>([&] { tokenizer.save(folder / "file"); }),
              HasSubstr("cannot create folder"));
  EXPECT_THAT(message_of<IoError>([&] { tokenizer.save(folder / "no" / "t.json"); }),
              HasSubstr("cannot create"));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(message_of<IoError>([&] { Tokenizer::load(folder / "pipe"); }), HasSubstr("regular file"));
}

TEST(TokenizerTest, BadArguments) {
  EXPECT_THAT(message_of<ValueError>([] { Tokenizer::train_bpe(""); }), HasSubstr("text must not be empty"));
  EXPECT_THAT(message_of<ValueError>([] { Tokenizer::train_bpe("a", {.vocab_size = 256}); }),
              HasSubstr("at least 257 (256 bytes and 1 special tokens)"));
  EXPECT_THAT(message_of<ValueError>([] { Tokenizer::train_bpe("a", {.special = {.eos = "a"}}); }),
              HasSubstr("longer than one character"));
  EXPECT_THAT(message_of<ValueError>([] { Tokenizer::train_characters("ab", {.special = {.eos = "a"}}); }),
              HasSubstr("is a character of the text"));
  EXPECT_THAT(message_of<ValueError>([] { Tokenizer::train_characters("a\xE2\x82"); }),
              HasSubstr("offset 1"));
  const Tokenizer tokenizer = Tokenizer::train_characters("ab");
  EXPECT_THAT(message_of<ValueError>([&] {
                tokenizer.decode(std::vector<int32_t>{0, -1});
              }),
              HasSubstr("id must be in [0, 2), got -1"));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{0, 2, 1, INT32_MAX}), "ab");  // a model's padding
  EXPECT_THROW(tokenizer.token(2), ValueError);
}

TEST(TokenizerTest, SafeCutsDoNotChangeTheIds) {
  std::mt19937 rng(3);
  const Tokenizer bpe = Tokenizer::train_bpe(kMixedText + std::string("x    y     z \n \n  "),
                                             {.vocab_size = 320, .min_frequency = 1});
  const Tokenizer characters = Tokenizer::train_characters(kMixedText);
  int cuts = 0;
  for (int round = 0; round < 200; ++round) {
    const std::string noise = random_bytes(rng, 60), plain = kMixedText;
    for (const Tokenizer* tokenizer : {&bpe, &characters}) {
      const std::string& text = tokenizer == &bpe ? noise : plain;
      const size_t at = tokenizer->safe_cut(text, 1 + rng() % text.size());
      cuts += at < text.size();
      auto ids = tokenizer->encode(std::string_view(text).substr(0, at));
      for (int32_t id : tokenizer->encode(std::string_view(text).substr(at))) ids.push_back(id);
      EXPECT_EQ(ids, tokenizer->encode(text));
    }
  }
  EXPECT_GT(cuts, 200);
}

TEST(TokenizerTest, TextsAreNotCutWherePiecesAreJoined) {
  const std::string expression =
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+)";
  for (const auto& [behavior, place] :
       {std::pair("Isolated", size_t{3}), {"Contiguous", size_t{7}}, {"MergedWithNext", size_t{7}}}) {
    const Tokenizer tokenizer = Tokenizer::from_json(
        R"({"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":")" +
        expression + R"("},"behavior":")" + behavior +
        R"(","invert":false},{"type":"ByteLevel","add_prefix_space":false,)" +
        R"("use_regex":false}]},"model":{"type":"BPE","vocab":{"a":0,"b":1,"Ġ":2},"merges":[]}})");
    EXPECT_EQ(tokenizer.safe_cut("bab aba", 1), place) << behavior;
  }
}

TEST(TokenizerTest, CompleteUtf8KeepsTheStartOfACharacterBack) {
  EXPECT_EQ(complete_utf8(""), 0u);
  EXPECT_EQ(complete_utf8("ab"), 2u);
  EXPECT_EQ(complete_utf8("a\xC3"), 1u);
  EXPECT_EQ(complete_utf8("a\xC3\xA9"), 3u);
  EXPECT_EQ(complete_utf8("a\xF0\x9F\x98"), 1u);
  EXPECT_EQ(complete_utf8("a\xF0\x9F\x98\x80"), 5u);
  EXPECT_EQ(complete_utf8("\x80\x80\x80\x80"), 4u);  // will never be a character: let it go
}

TEST(TokenizerTest, CopiesShareAndOutlive) {
  Tokenizer copy = Tokenizer::train_characters("x");
  {
    const Tokenizer original = Tokenizer::train_bpe(kMixedText, {.vocab_size = 280});
    copy = original;
  }
  EXPECT_EQ(copy.decode(copy.encode(kMixedText)), kMixedText);
}

}  // namespace
}  // namespace multihead::text
