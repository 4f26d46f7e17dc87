// Hostile and foreign tokenizer.json files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::text {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refused(const std::string& json) {
  try {
    Tokenizer::from_json(json, "t.json");
  } catch (const FormatError& error) {
    return error.what();
  }
  return "accepted";
}

// A small valid file with one part replaced.
struct Parts {
  std::string vocab = R"({"a":0,"b":1,"ab":2})";
  std::string merges = R"([["a","b"]])";
  std::string added = "[]";
  std::string model = R"("type":"BPE")";
  std::string pre_tokenizer = R"({"type":"ByteLevel","add_prefix_space":false})";
  std::string decoder = R"({"type":"ByteLevel"})";
  std::string top = R"("version":"1.0")";
};

std::string file(const Parts& p) {
  return "{" + p.top + R"(,"added_tokens":)" + p.added + R"(,"pre_tokenizer":)" + p.pre_tokenizer +
         R"(,"decoder":)" + p.decoder + R"(,"model":{)" + p.model + R"(,"vocab":)" + p.vocab +
         R"(,"merges":)" + p.merges + "}}";
}

TEST(TokenizerReadTest, SmallestFileWorks) {
  const Tokenizer tokenizer = Tokenizer::from_json(file({}));
  EXPECT_THAT(tokenizer.encode("abba"), ::testing::ElementsAre(2, 1, 0));
  EXPECT_THROW(tokenizer.encode("c"), ValueError);  // no token for this byte
}

// é is the bytes C3 A9, symbols Ã ©; the acute accent alone is CC 81, Ì and U+0123.
std::string accents(const std::string& normalizer, const std::string& added = "[]") {
  return file({.vocab = "{\"Ã\":0,\"©\":1,\"e\":2,\"Ì\":3,\"ģ\":4}",
               .merges = "[]",
               .added = added,
               .top = "\"normalizer\":" + normalizer});
}

TEST(TokenizerReadTest, TextIsNormalisedFirst) {
  const std::string composed = "\xC3\xA9", apart = "e\xCC\x81";
  for (const char* form : {R"({"type":"NFC"})", R"({"type":"Sequence","normalizers":[{"type":"NFKC"}]})"}) {
    const Tokenizer tokenizer = Tokenizer::from_json(accents(form));
    EXPECT_THAT(tokenizer.encode(apart), ElementsAre(0, 1)) << form;
    EXPECT_THAT(tokenizer.encode(composed), ElementsAre(0, 1)) << form;
    // Each side of a byte that is no UTF-8 stands alone.
    EXPECT_THAT(tokenizer.encode("e\xC3\xCC\x81"), ElementsAre(2, 0, 3, 4)) << form;
  }
  const Tokenizer tokenizer = Tokenizer::from_json(accents(R"({"type":"NFD"})"));
  EXPECT_THAT(tokenizer.encode(composed + apart), ElementsAre(2, 3, 4, 2, 3, 4));
  EXPECT_NE(tokenizer.fingerprint(), Tokenizer::from_json(accents("null")).fingerprint());
}

TEST(TokenizerReadTest, AddedTokensAreFoundAsGivenOrNormalised) {
  const std::string composed = "\xC3\xA9", apart = "e\xCC\x81";
  const auto with = [&](const char* flag) {
    return Tokenizer::from_json(
        accents(R"({"type":"NFC"})",
                concat(R"([{"id":5,"special":false,"content":")", apart, R"(","normalized":)", flag, "}]")));
  };
  EXPECT_THAT(with("true").encode(composed + apart), ElementsAre(5, 5));
  EXPECT_THAT(with("false").encode(composed + apart), ElementsAre(0, 1, 5));
}

// One token that stands for K ids, R times in the template.
TEST(TokenizerReadTest, TemplatesStayAsSmallAsTheirFile) {
  const auto with_template = [](int repeats, int ids) {
    std::string single, list;
    for (int i = 0; i < repeats; ++i) single += R"({"SpecialToken":{"id":"s","type_id":0}},)";
    for (int i = 0; i < ids; ++i) list += i > 0 ? ",0" : "0";
    return file({.top = R"("version":"1.0","post_processor":{"type":"TemplateProcessing","single":[)" +
                        single +
                        R"({"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"s":{"id":"s",)" +
                        R"("ids":[)" + list + R"(],"tokens":["a"]}}})"});
  };
  EXPECT_EQ(Tokenizer::from_json(with_template(3, 2)).encode("b").size(), 7u);
  EXPECT_EQ(Tokenizer::from_json(with_template(40, 40)).encode("b").size(), 1601u);
  EXPECT_THAT(refused(with_template(1000, 1000)), HasSubstr("expand to more ids than the file has bytes"));
}

TEST(TokenizerReadTest, ATemplateOfPairsHoldsBoth) {
  const std::string a = R"({"Sequence":{"id":"A","type_id":0}})",
                    b = R"({"Sequence":{"id":"B","type_id":1}})";
  const auto with_pair = [&](const std::string& pair) {
    return file({.top = R"("version":"1.0","post_processor":{"type":"TemplateProcessing","single":[)" + a +
                        R"(],"pair":[)" + pair + R"(],"special_tokens":{}})"});
  };
  EXPECT_THAT(Tokenizer::from_json(with_pair(b + "," + a)).encode_pair("a", "b").ids, ElementsAre(1, 0));
  for (const std::string& one : {a, b, a + "," + a})
    EXPECT_THAT(refused(with_pair(one)), HasSubstr(".pair has no place for one of the texts"));
}

TEST(TokenizerReadTest, Vocabulary) {
  EXPECT_THAT(refused(file({.vocab = R"({"a":0,"b":1,"ab":1})"})),
              AllOf(HasSubstr("t.json: id 1 is given to both"), HasSubstr("\"b\""), HasSubstr("\"ab\"")));
  EXPECT_THAT(refused(file({.vocab = R"({"a":0,"b":1,"ab":3})"})),
              HasSubstr("gap: no token has id 2, the next is \"ab\" with 3"));
  EXPECT_THAT(refused(file({.vocab = R"({"a":1,"b":2,"ab":3})"})), HasSubstr("no token has id 0"));
  EXPECT_THAT(refused(file({.vocab = R"({"a":0,"b":1,"ab":2147483648})"})),
              HasSubstr("model.vocab[\"ab\"]: id must be in [0, 2147483647), got 2147483648"));
  EXPECT_THAT(refused(file({.vocab = R"({"a":0,"b":1,"ab":18446744073709551617})"})),
              HasSubstr("integer id"));
  EXPECT_THAT(refused(file({.vocab = R"({"a":0,"b":1,"ab":-1})"})), HasSubstr("got -1"));
  EXPECT_THAT(refused(file({.vocab = R"({"a":0,"b":1,"ab":2.5})"})),
              HasSubstr("must be an integer id, got a number"));
  EXPECT_THAT(refused(file({.vocab = R"({"a":0,"b":1,"ab":"2"})"})), HasSubstr("got a string"));
  EXPECT_THAT(refused(file({.vocab = R"({"a":0,"b":1,"":2})"})), HasSubstr("must not be empty"));
  EXPECT_THAT(refused(file({.vocab = R"({"a":0,"b":1,"a":2})"})), HasSubstr("\"a\""));
  EXPECT_THAT(refused(file({.vocab = "[]"})), HasSubstr("model.vocab must be an object, got an array"));
  EXPECT_THAT(refused(file({.vocab = "{}", .merges = "[]"})), HasSubstr("model.vocab is empty"));
}

TEST(TokenizerReadTest, Merges) {
  EXPECT_THAT(refused(file({.merges = R"([["a","x"]])"})),
              HasSubstr("model.merges[0]: \"x\" is not in the vocabulary"));
  EXPECT_THAT(refused(file({.merges = R"([["a","b"],["b","a"]])"})),
              HasSubstr("model.merges[1]: \"ba\" is not"));
  for (const char* bad : {R"(["ab"])", R"(["a b c"])", R"([" b"])", R"(["a "])", R"([["a"]])",
                          R"([["a","b","a"]])", R"([[0,1]])", "[7]", "[null]"})
    EXPECT_THAT(refused(file({.merges = bad})), HasSubstr("model.merges[0] must be two pieces")) << bad;
  EXPECT_THAT(refused(file({.merges = "{}"})), HasSubstr("model.merges must be an array, got an object"));
  EXPECT_EQ(refused(file({.merges = R"(["a b"])"})), "accepted");
}

TEST(TokenizerReadTest, AddedTokens) {
  const auto added = [](const char* tokens) { return refused(file({.added = tokens})); };
  EXPECT_EQ(added(R"([{"id":3,"content":"<e>","special":true}])"), "accepted");
  EXPECT_THAT(added(R"([{"id":1,"content":"<e>"}])"), HasSubstr("id 1 is given to both"));
  EXPECT_THAT(added(R"([{"id":5,"content":"<e>"}])"), HasSubstr("gap"));
  EXPECT_THAT(added(R"([{"id":3,"content":"<e>"},{"id":4,"content":"<e>"}])"), HasSubstr("listed twice"));
  EXPECT_THAT(added(R"([{"id":3,"content":"ab"}])"), HasSubstr("has id 3 here and 2 in model.vocab"));
  EXPECT_THAT(added(R"([{"id":3,"content":""}])"), HasSubstr("must not be empty"));
  EXPECT_THAT(added(R"([{"id":3}])"), HasSubstr("added_tokens[0].content is missing"));
  EXPECT_THAT(added(R"([{"content":"<e>"}])"), HasSubstr("integer id, got null"));
  EXPECT_THAT(added(R"([{"id":3,"content":"<e>","special":"yes"}])"), HasSubstr("true or false"));
  EXPECT_EQ(added(R"([{"id":3,"content":"<e>","single_word":true}])"), "accepted");
  EXPECT_THAT(added(R"([3])"), HasSubstr("added_tokens[0] must be an object"));
}

TEST(TokenizerReadTest, OverlappingAddedTokensMatchTheLongest) {
  const Tokenizer tokenizer = Tokenizer::from_json(
      file({.added = R"([{"id":3,"content":"<a","special":true},{"id":4,"content":"<a>","special":true},
                         {"id":5,"content":"word","special":false}])"}));
  EXPECT_THAT(tokenizer.encode("<a><ab", {.parse_special = true}), ::testing::ElementsAre(4, 3, 1));
  EXPECT_THAT(tokenizer.encode("wordb"),
              ::testing::ElementsAre(5, 1));  // added, but not special: always read
}

TEST(TokenizerReadTest, AddedTokensMaySwallowSpace) {
  const Tokenizer tokenizer = Tokenizer::from_json(
      file({.added = R"([{"id":3,"content":"<m>","special":true,"lstrip":true,"rstrip":true}])"}));
  EXPECT_THAT(tokenizer.encode("a \t<m>\xE3\x80\x80 b", {.parse_special = true}),
              ::testing::ElementsAre(0, 3, 1));
}

TEST(TokenizerReadTest, WhatIsNotUnderstoodIsRefusedByName) {
  EXPECT_THAT(refused(file({.model = R"("type":"Magic")"})),
              AllOf(HasSubstr("model.type"), HasSubstr("Magic"), HasSubstr("not supported")));
  EXPECT_THAT(refused(file({.model = R"("type":"Unigram")"})),
              AllOf(HasSubstr("pre_tokenizer"), HasSubstr("\"ByteLevel\"")));
  EXPECT_THAT(refused(file({.pre_tokenizer = R"({"type":"Metaspace"})"})),
              HasSubstr("pre_tokenizer.replacement is missing"));
  EXPECT_THAT(refused(file({.pre_tokenizer = R"({"type":"UnicodeScripts"})"})),
              HasSubstr("pre_tokenizer: \"UnicodeScripts\""));
  EXPECT_THAT(refused(file({.pre_tokenizer = R"({"type":"Punctuation","behavior":"Kept"})"})),
              HasSubstr("pre_tokenizer.behavior: \"Kept\""));
  EXPECT_THAT(refused(file(
                  {.pre_tokenizer =
                       R"({"type":"Split","pattern":{"Regex":"x+"},"behavior":"Isolated","invert":false})"})),
              HasSubstr("\"x+\""));
  EXPECT_THAT(refused(file({.decoder = R"({"type":"WordPiece"})"})), HasSubstr("decoder"));
  EXPECT_THAT(refused(file({.decoder = R"({"type":"CTC"})"})), HasSubstr("decoder: \"CTC\""));
  EXPECT_THAT(refused(file({.model = R"("type":"BPE","byte_fallback":true)"})), HasSubstr("byte_fallback"));
  EXPECT_THAT(refused(file({.model = R"("type":"BPE","dropout":0.1)"})), HasSubstr("dropout"));
  EXPECT_THAT(refused(file({.model = R"("type":"BPE","continuing_subword_prefix":"##")"})),
              HasSubstr("continuing_subword_prefix"));
  EXPECT_THAT(refused(file({.model = R"("type":"BPE","unk_token":"<unk>")"})),
              HasSubstr("not in the vocabulary"));
  EXPECT_THAT(refused(file({.top = R"("normalizer":{"type":"Nmt"})"})), HasSubstr("normalizer: \"Nmt\""));
  EXPECT_THAT(refused(file({.top = R"("normalizer":{"type":"Sequence","normalizers":[{},{}]})"})),
              HasSubstr("normalizer.type is missing"));
  EXPECT_THAT(refused(file({.model = R"("type":"WordPiece")"})), HasSubstr("\"ByteLevel\""));
  EXPECT_THAT(refused(file({.top = R"("version":"2.0")"})), HasSubstr("version"));
  EXPECT_THAT(refused(file({.top = R"("post_processor":{"type":"BertProcessing"})"})),
              HasSubstr("post_processor.cls is missing"));
}

TEST(TokenizerReadTest, HostileJson) {
  EXPECT_THAT(refused(""), HasSubstr("t.json"));
  EXPECT_THAT(refused("[]"), HasSubstr("must be an object"));
  EXPECT_THAT(refused("{}"), HasSubstr("model is missing"));
  EXPECT_THAT(refused(file({.vocab = "{\"\xFF\":0}"})), HasSubstr("t.json"));
  EXPECT_THAT(refused(file({.vocab = R"({"\ud800":0})"})), HasSubstr("t.json"));
  EXPECT_THAT(refused(file({.vocab = std::string(100000, '[')})), HasSubstr("t.json"));
  EXPECT_THAT(refused("\xEF\xBB\xBF" + file({})), HasSubstr("t.json"));
  EXPECT_THAT(refused(file({}) + "x"), HasSubstr("t.json"));
  EXPECT_THAT(refused(file({.vocab = "{\"" + std::string(1000000, 'x') + "\":0,\"b\":7}"})),
              AllOf(HasSubstr("gap"), ::testing::Not(HasSubstr(std::string(100, 'x')))));
}

// Any cut or changed byte is loaded or refused, never a crash; run under the sanitizers too.
TEST(TokenizerReadTest, DamagedFilesAreLoadedOrRefused) {
  const std::string whole =
      Tokenizer::train_bpe("the cat sat on the mat the cat", {.vocab_size = 265}).to_json();
  std::mt19937 rng(11);
  int refused = 0;
  for (int round = 0; round < 600; ++round) {
    std::string damaged = whole;
    const size_t at = rng() % damaged.size();
    if (round % 3 == 0) {
      damaged.resize(at);
    } else {
      damaged[at] = round % 3 == 1 ? static_cast<char>(rng()) : "\"{}[]:,0-e\\"[rng() % 11];
    }
    try {
      const Tokenizer tokenizer = Tokenizer::from_json(damaged);
      EXPECT_NO_THROW(tokenizer.to_json());
    } catch (const FormatError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 300);
}

}  // namespace
}  // namespace multihead::text
