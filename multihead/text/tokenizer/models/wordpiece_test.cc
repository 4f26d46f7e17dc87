// WordPiece; ids of trained tokenizers are compared with Hugging Face's in tokenizer_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::text {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kWords[] =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##aff\n##able\naff\n,\n\xE7\x8C\xAB\nnaive\n.\n";

class VocabularyFolder {
 public:
  explicit VocabularyFolder(const std::string& words, const std::string& config = "{}")
      : path(fs::temp_directory_path() / concat("multihead_vocab_", ::getpid(), "_", counter++)) {
    fs::create_directories(path);
    write_file_atomically((path / "vocab.txt").string(), words);
    write_file_atomically((path / "tokenizer_config.json").string(), config);
  }
  ~VocabularyFolder() { fs::remove_all(path); }
  const fs::path path;

 private:
  static inline int counter = 0;
};

Tokenizer small_tokenizer(const std::string& config = "{}") {
  return Tokenizer::load(VocabularyFolder(kWords, config).path);
}

TEST(WordPieceTest, TakesTheLongestTokenAgainAndAgain) {
  const Tokenizer t = small_tokenizer();
  EXPECT_EQ(t.kind(), Tokenizer::Kind::wordpiece);
  EXPECT_THAT(t.encode("unaffable, AFF"), ElementsAre(2, 5, 6, 7, 9, 8, 3));
  EXPECT_THAT(t.encode("un\xE7\x8C\xABun", {.add_template = false}), ElementsAre(5, 10, 5));
  EXPECT_THAT(t.encode("na\xC3\xAFve unknown", {.add_template = false}), ElementsAre(11, 1));
  EXPECT_THAT(t.encode("un\xFF\x01"
                       "aff",
                       {.add_template = false}),
              ElementsAre(5, 6));
  EXPECT_THAT(t.encode("[MASK] [SEP]", {.parse_special = true, .add_template = false}), ElementsAre(4, 3));
  EXPECT_EQ(t.decode(t.encode("unaffable , aff ."), {.skip_special = true}), "unaffable, aff.");
  EXPECT_THAT(t.encode("AFF na\xC3\xAFve", {.add_template = false}), ElementsAre(8, 11));
}

// ESM's: every token is found as it is, and what is between them is unknown. Ids of transformers' EsmTokenizer.
TEST(WordPieceTest, EveryTokenOfEsmIsFoundInTheText) {
  const VocabularyFolder folder("<cls>\n<pad>\n<eos>\n<unk>\nL\nA\nG\n<mask>",
                                R"({"tokenizer_class": "EsmTokenizer"})");
  const Tokenizer t = Tokenizer::load(folder.path);
  EXPECT_THAT(t.encode("LAG<mask>A", {.parse_special = true}), ElementsAre(0, 4, 5, 6, 7, 5, 2));
  EXPECT_THAT(t.encode("L xyz  Ag A\n"), ElementsAre(0, 4, 3, 5, 3, 5, 2));
  EXPECT_EQ(t.decode(t.encode("LAG")), "<cls> L A G <eos>");
  const VocabularyFolder other("<cls>\n<pad>\n<eos>\n<unk>", R"({"tokenizer_class": "EsmTokenizer"})");
  EXPECT_THAT([&] { Tokenizer::load(other.path); },
              ::testing::ThrowsMessage<FormatError>(HasSubstr("<mask>")));
}

TEST(WordPieceTest, MpnetsFrameIsRefused) {
  const VocabularyFolder folder("<s>\n</s>\n[UNK]\na", R"({"tokenizer_class": "MPNetTokenizer"})");
  EXPECT_THAT([&] { Tokenizer::load(folder.path); },
              ::testing::ThrowsMessage<FormatError>(
                  HasSubstr("how MPNetTokenizer cuts and frames texts is not supported")));
}

TEST(WordPieceTest, TheConfigSaysHowTextIsCleaned) {
  const Tokenizer t = small_tokenizer(R"({"do_lower_case": false, "tokenize_chinese_chars": false})");
  EXPECT_THAT(t.encode("AFF aff", {.add_template = false}), ElementsAre(1, 8));
  EXPECT_THAT(t.encode("un\xE7\x8C\xAB", {.add_template = false}), ElementsAre(1));
  EXPECT_NE(t.fingerprint(), small_tokenizer().fingerprint());
}

TEST(WordPieceTest, PairsAreJoinedAndTheLongerTextIsCutFirst) {
  const Tokenizer t = small_tokenizer();
  const Encoding pair = t.encode_pair("un aff", "aff");
  EXPECT_THAT(pair.ids, ElementsAre(2, 5, 8, 3, 8, 3));
  EXPECT_THAT(pair.type_ids, ElementsAre(0, 0, 0, 0, 1, 1));
  EXPECT_THAT(t.encode_pair("un aff un", "aff", {.max_length = 6}).ids, ElementsAre(2, 5, 8, 3, 8, 3));
  EXPECT_THAT(t.encode("un aff un", {.max_length = 4}), ElementsAre(2, 5, 8, 3));
  EXPECT_THROW(t.encode("un", {.max_length = 1}), ValueError);
  EXPECT_THROW(t.encode_pair("un", "un", {.max_length = 2}), ValueError);
  EXPECT_THROW(Tokenizer::train_bpe("a text").encode_pair("a", "b"), ValueError);
}

TEST(WordPieceTest, IsSavedAsTokenizerJson) {
  const fs::path out = fs::temp_directory_path() / concat("multihead_wordpiece_", ::getpid());
  const Tokenizer t = small_tokenizer();
  t.save(out);
  const Tokenizer again = Tokenizer::load(out);
  EXPECT_EQ(again.fingerprint(), t.fingerprint());
  EXPECT_EQ(again.encode("unaffable, x"), t.encode("unaffable, x"));
  fs::remove_all(out);
}

TEST(WordPieceTest, LongWordsAndTextsTakeLinearTime) {
  const Tokenizer t = small_tokenizer();
  EXPECT_THAT(t.encode(std::string(100, 'a'), {.add_template = false}), ElementsAre(1));
  EXPECT_THAT(t.encode(std::string(3000000, 'a'), {.add_template = false}), ElementsAre(1));
  std::string marks;
  for (int i = 0; i < 500000; ++i) marks += "\xCC\x81";
  EXPECT_TRUE(t.encode(marks, {.add_template = false}).empty());
}

TEST(WordPieceTest, BadVocabulariesAreRefused) {
  const auto error_of = [](const std::string& words) -> std::string {
    try {
      Tokenizer::load(VocabularyFolder(words).path);
    } catch (const FormatError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(error_of(""), HasSubstr("has no token [UNK]"));
  EXPECT_THAT(error_of(std::string(kWords) + "\xFF\n"), HasSubstr("line 14 is not UTF-8"));
  std::mt19937 rng(3);
  const std::string json = small_tokenizer().to_json();
  int refused = 0;
  for (int round = 0; round < 900; ++round) {
    std::string damaged = json;
    const size_t at = rng() % damaged.size();
    damaged[at] = round % 2 == 0 ? static_cast<char>(rng()) : "\"{}[]:,0-e\\"[rng() % 11];
    if (round % 3 == 0) damaged.resize(at);
    try {
      Tokenizer::from_json(damaged).encode("unaffable, AFF");
    } catch (const FormatError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 300);
}

}  // namespace
}  // namespace multihead::text
