// SentencePiece's tokenizers, from tokenizer.json and from their own files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/text/json.h"
#include "multihead/testing/files.h"
#include "multihead/testing/matchers.h"
#include "multihead/text/testing-inl.h"
#include "multihead/text/tokenizer/files/tokenizer_json/sentencepiece_model-inl.h"
#include "multihead/text/tokenizer/pipeline/pipeline-inl.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::text {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Made by tools/goldens/sentencepiece_models.py.
TEST(SentencePieceGolden, EqualsHuggingFace) {
  const Json json = golden("sentencepiece.json");
  const auto& texts = json.at("texts").items();
  ASSERT_EQ(json.at("cases").size(), 7u);
  for (const Json& one : json.at("cases").items()) {
    const std::string& name = one.at("name").as_string();
    const Tokenizer tokenizer = Tokenizer::from_json(one.at("tokenizer").dump(), name);
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::vector<int32_t> ids = tokenizer.encode(texts[i].as_string(), {.parse_special = true});
      EXPECT_EQ(ids, ids_of(one.at("ids").at(i))) << name << ": " << texts[i].as_string();
      const std::string decoded = tokenizer.decode(ids, {.skip_special = true});
      if (find_invalid_utf8(decoded) != std::string::npos) continue;  // theirs has marks for such bytes
      EXPECT_EQ(decoded, one.at("decoded").at(i).as_string()) << name << ": " << texts[i].as_string();
    }
  }
}

TEST(SentencePieceGolden, ItsOwnFilesEqualSentencePiece) {
  const Json json = golden("sentencepiece.json");
  for (const Json& one : json.at("models").items()) {
    const std::string& name = one.at("name").as_string();
    const auto& texts = one.at("texts").items();
    ASSERT_GT(texts.size(), 20u);
    const Tokenizer tokenizer = Tokenizer::load(kTestdata + name + ".model");
    EXPECT_EQ(tokenizer.kind(), name == "bpe" ? Tokenizer::Kind::character_bpe : Tokenizer::Kind::unigram);
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::vector<int32_t> ids = tokenizer.encode(texts[i].as_string());
      EXPECT_EQ(ids, ids_of(one.at("ids").at(i))) << name << ": " << texts[i].as_string();
      if (name == "unigram") continue;  // shows unknown characters as a mark
      EXPECT_EQ(tokenizer.decode(ids), one.at("decoded").at(i).as_string());
    }
    const Tokenizer again = Tokenizer::from_json(tokenizer.to_json());
    EXPECT_EQ(again.fingerprint(), tokenizer.fingerprint());
  }
}

TEST(SentencePieceTest, FoldersSayWhatStandsAroundATextOrPair) {
  const std::string bpe = read_file(kTestdata + "bpe.model"),
                    unigram = read_file(kTestdata + "unigram.model");
  const auto load = [&](const char* file, const std::string& bytes, const std::string& config) {
    const TemporaryFolder folder;
    write_file_atomically(folder / file, bytes);
    write_file_atomically(folder / "tokenizer_config.json", config);
    return Tokenizer::load(folder.path());
  };
  const Tokenizer llama = load("tokenizer.model", bpe, R"({"bos_token":"<s>"})");
  EXPECT_EQ(llama.encode("").front(), 1);
  EXPECT_EQ(llama.bos_id(), 1);
  EXPECT_THAT(load("tokenizer.model", bpe, R"({"add_bos_token":false,"add_eos_token":true})").encode(""),
              ElementsAre(2));
  const Tokenizer t5 = load("spiece.model", unigram, R"({"extra_ids":2})");
  EXPECT_EQ(t5.encode("the cat").back(), 2);
  EXPECT_EQ(t5.id("<extra_id_0>"), t5.vocab_size() - 1);
  EXPECT_EQ(t5.id("<extra_id_1>"), t5.vocab_size() - 2);
  const Tokenizer xlm =
      load("sentencepiece.bpe.model", unigram, R"({"tokenizer_class":"XLMRobertaTokenizer"})");
  EXPECT_EQ(xlm.id("<mask>"), xlm.vocab_size() - 1);
  const Encoding pair = xlm.encode_pair("", "");
  EXPECT_THAT(pair.ids, ElementsAre(0, 2, 2, 2));
  EXPECT_THAT(pair.type_ids, ElementsAre(0, 0, 0, 0));
  const std::vector<int32_t> raw = Tokenizer::load(kTestdata + "unigram.model").encode("the cat");
  const std::vector<int32_t> moved = xlm.encode("the cat", {.add_template = false});
  ASSERT_EQ(raw.size(), moved.size());
  for (size_t i = 0; i < raw.size(); ++i) EXPECT_EQ(moved[i], raw[i] + 1);
  EXPECT_THAT([&] { load("spiece.model", unigram, R"({"tokenizer_class":"XLNetTokenizer"})"); },
              ::testing::ThrowsMessage<FormatError>(HasSubstr("XLNetTokenizer")));
  const auto of_kind = [&](const char* file, const std::string& kind, const std::string& config) {
    const TemporaryFolder folder;
    write_file_atomically(folder / file, unigram);
    write_file_atomically(folder / "config.json", concat(R"({"model_type": ")", kind, "\"}"));
    write_file_atomically(folder / "tokenizer_config.json", config);
    return Tokenizer::load(folder.path());
  };
  EXPECT_THAT(of_kind("sentencepiece.bpe.model", "xlm-roberta", "{}").encode(""), ElementsAre(0, 2));
  EXPECT_THAT(of_kind("spiece.model", "mt5", "{}").encode(""), ElementsAre(2));
  EXPECT_MESSAGE(of_kind("sentencepiece.bpe.model", "mbart", "{}"), FormatError,
                 "how mbart uses it is not supported");
  EXPECT_MESSAGE(of_kind("spiece.model", "pegasus", "{}"), FormatError,
                 "how pegasus uses it is not supported");
  const auto first = [&](const char* config) {
    const Tokenizer xlm = of_kind("sentencepiece.bpe.model", "xlm-roberta", config);
    return xlm.token(xlm.encode("the", {.add_template = false}).front());
  };
  EXPECT_THAT(first("{}"), ::testing::StartsWith("\u2581"));
  EXPECT_THAT(first(R"({"add_prefix_space": false})"), ::testing::Not(::testing::StartsWith("\u2581")));
}

// A .model file of these pieces, as protobuf writes it; `more`: fields of the file.
std::string unigram_file(const std::vector<SentencePiece>& pieces, const std::string& more = "") {
  const auto field = [](char tag, const std::string& bytes) {
    return concat(tag, static_cast<char>(bytes.size()), bytes);
  };
  std::string file;
  for (const SentencePiece& piece : pieces) {
    std::string score(4, '\0');
    const auto number = static_cast<float>(piece.score);
    std::memcpy(score.data(), &number, sizeof number);
    file += field('\x0A',
                  concat(field('\x0A', piece.text), '\x15', score, '\x18', static_cast<char>(piece.type)));
  }
  return file + field('\x12', "\x18\x01") + more;  // unigram
}

Tokenizer loaded(const std::string& file) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "t.model", file);
  return Tokenizer::load(folder / "t.model");
}

TEST(SentencePieceTest, PiecesOfBytesAndUnusedOnesAreNotMadeOfText) {
  using enum SentencePiece::Type;
  std::vector<SentencePiece> pieces = {{"<unk>", 0, unknown}, {"the", -1, unused}};
  for (int value = 0; value < 256; ++value) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", value);
    pieces.push_back({name, 0, byte});
  }
  const auto first = static_cast<int32_t>(pieces.size());
  for (const char* letter : {"\u2581", "t", "h", "e", "<", "0", "x", "4", "1", ">"})
    pieces.push_back({letter, -5, normal});
  const Tokenizer t = loaded(unigram_file(pieces, std::string("\x12\x03\x98\x02\x01", 5)));  // byte_fallback
  EXPECT_THAT(t.encode("the"), ElementsAre(first, first + 1, first + 2, first + 3));
  EXPECT_EQ(t.decode(t.encode("<0x41>")), "<0x41>");
  EXPECT_EQ(t.encode("<0x41>").size(), 7u);
  EXPECT_THAT(t.encode("A"), ElementsAre(first, 2 + 'A'));
}

TEST(SentencePieceTest, ASpaceInFrontThatIsRemovedIsNotDecoded) {
  using enum SentencePiece::Type;
  const std::vector<SentencePiece> pieces = {
      {"<unk>", 0, unknown}, {"\u2581", -1, normal}, {"\u2581a", -1, normal}};
  const std::string no_prefix("\x1A\x02\x18\x00", 4), denormalizer("\x2A\x03\x12\x01x", 5);
  const Tokenizer t = loaded(unigram_file(pieces, no_prefix));
  EXPECT_EQ(t.decode(std::vector<int32_t>{2, 2}), "a a");
  EXPECT_MESSAGE(loaded(unigram_file(pieces, denormalizer)), FormatError,
                 "denormalizer_spec is not supported");
}

TEST(SentencePieceTest, DebertasPiecesAreTheSpecialTokens) {
  using enum SentencePiece::Type;
  const TemporaryFolder folder;
  const std::vector<SentencePiece> pieces = {
      {"[PAD]", 0, control},     {"[CLS]", 0, control},     {"[SEP]", 0, control},  {"[UNK]", 0, unknown},
      {"\u2581the", -1, normal}, {"\u2581cat", -2, normal}, {"\u2581", -3, normal}, {"s", -4, normal}};
  write_file_atomically(folder / "spm.model", unigram_file(pieces));
  write_file_atomically(folder / "config.json", R"({"model_type": "deberta-v2"})");
  write_file_atomically(folder / "tokenizer_config.json", R"({"do_lower_case": true, "vocab_type": "spm"})");
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  EXPECT_THAT(tokenizer.encode("The  CATS"), ElementsAre(1, 4, 5, 7, 2));
  EXPECT_THAT(tokenizer.encode("the cat [MASK]\n", {.parse_special = true}), ElementsAre(1, 4, 5, 8, 2));
  const Encoding pair = tokenizer.encode_pair("the", "cat");
  EXPECT_THAT(pair.ids, ElementsAre(1, 4, 2, 5, 2));
  EXPECT_THAT(pair.type_ids, ElementsAre(0, 0, 0, 1, 1));
  write_file_atomically(folder / "config.json", R"({"model_type": "bert"})");
  EXPECT_MESSAGE(Tokenizer::load(folder.path()), FormatError, "how bert uses it is not supported");
}

TEST(CharsMapTest, TheLongestEntryOrThatOfAGrapheme) {
  const std::string table = read_sentencepiece(kTestdata + "unigram.model").charsmap;
  const auto replaced = [&](const char* text, bool longest) {
    Rewritten out(false);
    CharsMap(table, longest).apply(text, out);
    return out.text;
  };
  EXPECT_EQ(replaced("\uFB01\u0301", true), "fi\u0301");
  EXPECT_EQ(replaced("\uFB01\u0301", false), "fi");  // a grapheme of less than six bytes, for its first entry
  for (const bool longest : {false, true})
    EXPECT_EQ(replaced("a\u00BD e\u0301\u00E9", longest), "a1/2 \u00E9\u00E9");
}

TEST(SentencePieceTest, AnInvalidByteIsAnUnknownCharacter) {
  const Tokenizer bpe = Tokenizer::load(kTestdata + "bpe.model");
  const std::string bytes = "the \xFF\xC3 cat";
  EXPECT_EQ(bpe.decode(bpe.encode(bytes)), bytes);  // which has tokens for bytes
  const Tokenizer unigram = Tokenizer::load(kTestdata + "unigram.model");
  EXPECT_THAT(unigram.encode("\xFF", {.add_template = false}), ::testing::Contains(0));
}

TEST(SentencePieceTest, TokenByTokenIsTheWholeText) {
  for (const char* name : {"bpe.model", "unigram.model"}) {
    const Tokenizer tokenizer = Tokenizer::load(kTestdata + name);
    const std::vector<int32_t> ids = tokenizer.encode("the cat sat on the dog");
    std::string text;
    for (const int32_t& id : ids) text += tokenizer.decode({&id, 1}, {.continued = !text.empty()});
    EXPECT_EQ(text, "the cat sat on the dog");
    EXPECT_EQ(tokenizer.decode(ids, {.continued = true}), " the cat sat on the dog");
  }
}

TEST(SentencePieceTest, LongTextsTakeLinearTime) {
  const Tokenizer unigram = Tokenizer::load(kTestdata + "unigram.model");
  const Tokenizer bpe = Tokenizer::load(kTestdata + "bpe.model");
  for (const char* part : {"x", " ", "the ", "\xCC\x81"}) {
    std::string text;
    while (text.size() < 1'000'000) text += part;
    EXPECT_LE(unigram.encode(text).size(), text.size() + 1);
    EXPECT_LE(bpe.encode(text).size(), text.size() + 1);
  }
}

// Whatever the bytes, the file is read or an error says why.
TEST(SentencePieceTest, CutAndMutatedFiles) {
  const TemporaryFolder folder;
  std::mt19937 random(1);
  int read = 0;
  const std::string files[] = {read_file(kTestdata + "unigram.model"), read_file(kTestdata + "bpe.model")};
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = files[i % 2];
    if (i % 5 == 0) bytes.resize(random() % bytes.size());
    for (int change = 0; change < 3 && !bytes.empty(); ++change) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    write_file_atomically(folder / "t.model", bytes);
    try {
      const Tokenizer tokenizer = Tokenizer::load(folder / "t.model");
      ++read;
      tokenizer.decode(tokenizer.encode("The cat \xEF\xAC\x81 sat."));
    } catch (const FormatError&) {
    } catch (const ValueError&) {
    }
  }
  EXPECT_GT(read, 100);
  EXPECT_THAT([&] { Tokenizer::load(kTestdata + "bleu.json").encode(""); }, ::testing::Throws<FormatError>());
  write_file_atomically(folder / "t.model", "no model");
  EXPECT_THAT([&] { Tokenizer::load(folder / "t.model"); },
              ::testing::ThrowsMessage<FormatError>(HasSubstr("no SentencePiece model")));
}

}  // namespace
}  // namespace multihead::text
