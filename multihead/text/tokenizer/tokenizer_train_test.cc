// Training of WordPiece and unigram; of BPE in bpe_test.cc and tokenizer_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/text/json.h"
#include "multihead/testing/files.h"
#include "multihead/text/testing-inl.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::text {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

// Made by tools/goldens/text_tokenizers.py.
const std::string& corpus() {
  static const std::string text = golden("tokenizers.json").at("corpus").as_string();
  return text;
}

TEST(TrainWordPieceTest, WholeWordsOfTheTextAreTokens) {
  const Tokenizer t = Tokenizer::train_wordpiece("low lower lowest low lower lowest", {.vocab_size = 40});
  EXPECT_EQ(t.kind(), Tokenizer::Kind::wordpiece);
  EXPECT_EQ(t.encode("Low lowest", {.add_template = false}).size(), 2u);
  EXPECT_EQ(t.decode(t.encode("LOWER, low"), {.skip_special = true}), "lower low");
  EXPECT_EQ(t.id("[PAD]"), 0);
  EXPECT_EQ(t.pad_id(), 0);
  EXPECT_EQ(t.encode_pair("low", "lower").ids.size(), 5u);
  EXPECT_TRUE(t.id("##o").has_value());
}

TEST(TrainWordPieceTest, IsTheSameAgainAndReadsBack) {
  const Tokenizer t = Tokenizer::train_wordpiece(corpus(), {.vocab_size = 300, .lowercase = false});
  EXPECT_EQ(t.to_json(),
            Tokenizer::train_wordpiece(corpus(), {.vocab_size = 300, .lowercase = false}).to_json());
  EXPECT_EQ(Tokenizer::from_json(t.to_json()).encode(corpus()), t.encode(corpus()));
  EXPECT_NE(t.to_json(), Tokenizer::train_wordpiece(corpus(), {.vocab_size = 300}).to_json());
  EXPECT_LE(t.vocab_size(), 300);
  EXPECT_THAT([] { Tokenizer::train_wordpiece("abc", {.vocab_size = 10}); },
              ThrowsMessage<ValueError>(HasSubstr("at least 11")));
  EXPECT_THROW(Tokenizer::train_wordpiece(""), ValueError);
}

TEST(TrainUnigramTest, FindsTheWordsThatItIsGiven) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += i % 3 == 0 ? "banana " : i % 3 == 1 ? "bandana " : "cabana ";
  const Tokenizer t = Tokenizer::train_unigram(text, {.vocab_size = 20});
  EXPECT_EQ(t.kind(), Tokenizer::Kind::unigram);
  EXPECT_EQ(t.encode("banana cabana").size(), 2u);
  EXPECT_EQ(t.decode(t.encode("banana cabana")), "banana cabana");
  EXPECT_EQ(t.unk_id(), t.encode("x").back());
  EXPECT_THAT(t.encode("<s>"), Not(Contains(t.bos_id().value()))) << "plain text makes no special token";
  EXPECT_THAT(t.encode("<s>", {.parse_special = true}), Contains(t.bos_id().value()));
}

TEST(TrainUnigramTest, IsTheSameAgainAndItsScoresAreProbabilities) {
  const Tokenizer t = Tokenizer::train_unigram(corpus(), {.vocab_size = 200});
  EXPECT_EQ(t.to_json(), Tokenizer::train_unigram(corpus(), {.vocab_size = 200}).to_json());
  EXPECT_LE(t.vocab_size(), 200);
  double sum = 0;
  const Json json = Json::parse(t.to_json());
  const auto& vocab = json.at("model").at("vocab").items();
  for (size_t i = 4; i < vocab.size(); ++i) sum += std::exp(vocab[i].at(1).as_double());
  EXPECT_GT(sum, 0.5);
  EXPECT_LE(sum, 1.0);
  EXPECT_THAT([] { Tokenizer::train_unigram("abc", {.vocab_size = 5}); },
              ThrowsMessage<ValueError>(HasSubstr("at least 8 (4 special tokens and 4 characters)")));
  EXPECT_THROW(Tokenizer::train_unigram(" \n"), ValueError);
  EXPECT_THROW(Tokenizer::train_unigram("a", {.special = {}}), ValueError);
  EXPECT_NO_THROW(Tokenizer::train_unigram("\xFF\xFE a", {.vocab_size = 9}));
}

TEST(TrainUnigramTest, ASpecialTokensTextIsNoPiece) {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "</s> <s> ";
  const Tokenizer t = Tokenizer::train_unigram(text, {.vocab_size = 30});
  EXPECT_EQ(t.decode(t.encode("</s> <s>")), "</s> <s>");
  EXPECT_THAT(t.encode("</s>"), Not(Contains(t.eos_id().value())));
}

TEST(TrainUnigramTest, LongWordsTakeLinearTime) {
  const Tokenizer t = Tokenizer::train_unigram(std::string(100'000, 'x'), {.vocab_size = 20});
  EXPECT_EQ(t.decode(t.encode("xxx")), "xxx");
}

// Marian: ids of the pieces from vocab.json, whoever cuts the text.
TEST(MarianTest, TheFolderGivesPiecesTheirIds) {
  const std::string model = read_file(kTestdata + "unigram.model");
  const TemporaryFolder folder;
  write_file_atomically(folder / "source.spm", model);
  write_file_atomically(folder / "target.spm", model);
  write_file_atomically(folder / "plain.model", model);
  const Tokenizer plain = Tokenizer::load(folder / "plain.model");
  Json vocab = Json::object({{"</s>", 0}, {"<unk>", 1}});
  for (int32_t id = 4; id < plain.vocab_size(); ++id)
    vocab[plain.token(id)] = static_cast<int64_t>(vocab.size());
  for (const char* other : {"\xE4\xB8\x96", ">>fr<<", "<pad>"})
    vocab[other] = static_cast<int64_t>(vocab.size());
  write_file_atomically(folder / "vocab.json", vocab.dump());
  const Tokenizer source = Tokenizer::load(folder.path()), target = Tokenizer::load(folder / "target.spm");
  EXPECT_EQ(source.encode("the cat"), target.encode("the cat"));
  const std::vector<int32_t> ids = source.encode(">>fr<<the cat \xE4\xB8\x96");
  EXPECT_EQ(ids.front(), source.id(">>fr<<"));
  EXPECT_EQ(ids.back(), 0);
  EXPECT_EQ(ids[ids.size() - 2], source.id("\xE4\xB8\x96")) << "a piece of the other side";
  std::vector<std::string> expected, got;
  for (const int32_t id : plain.encode("the cat")) expected.push_back(plain.token(id));
  for (const int32_t id : source.encode("the cat")) got.push_back(source.token(id));
  got.pop_back();
  for (std::string& token : expected)
    if (!vocab.contains(token)) token = "<unk>";
  EXPECT_EQ(got, expected);
  EXPECT_EQ(Tokenizer::from_json(source.to_json()).encode("the cat"), source.encode("the cat"));
  vocab["gap"] = 9999;
  write_file_atomically(folder / "vocab.json", vocab.dump());
  EXPECT_THAT([&] { Tokenizer::load(folder.path()); },
              ThrowsMessage<FormatError>(HasSubstr("each once, got 9999")));
}

}  // namespace
}  // namespace multihead::text
