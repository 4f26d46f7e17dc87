// Folders whose tokenizer_config.json says something else than their tokenizer.json, and odd vocab.txt: ids
// of transformers 5.24.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/text/json.h"
#include "multihead/testing/files.h"
#include "multihead/testing/matchers.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::text {
namespace {

using ::testing::ElementsAre;
using Files = std::map<std::string, std::string>;

Tokenizer loaded(const Files& files) {
  const TemporaryFolder folder;
  for (const auto& [name, text] : files) write_file_atomically(folder / name, text);
  return Tokenizer::load(folder.path());
}

constexpr char kCasedWords[] =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nThe\ncat\nCat\ncaf\xC3\xA9\ncafe\n\xE4\xB8\xAD\n\xE5\x9B\xBD\n"
    "\xE4\xB8\xAD\xE5\x9B\xBD\n";

// A tokenizer.json of these words that keeps or lowers capitals.
std::string bert_json(bool lowers) {
  return loaded({{"vocab.txt", kCasedWords},
                 {"tokenizer_config.json", lowers ? "{}" : R"({"do_lower_case": false})"}})
      .to_json();
}

std::vector<int32_t> bert_ids(bool lowers, const std::string& config, const std::string& model = "bert") {
  return loaded({{"tokenizer.json", bert_json(lowers)},
                 {"tokenizer_config.json", config},
                 {"config.json", R"({"model_type": ")" + model + "\"}"}})
      .encode("The Cat caf\xC3\xA9 \xE4\xB8\xAD\xE5\x9B\xBD");
}

TEST(OverridesTest, BertsCleaningIsThatOfTheConfig) {
  const auto lower = ElementsAre(2, 5, 7, 10, 11, 12, 3), as_given = ElementsAre(2, 6, 8, 9, 11, 12, 3);
  for (const char* name : {"Bert", "DistilBert", "Electra", "MPNet", "MobileBert", "Funnel"}) {
    const std::string of = std::string(R"({"tokenizer_class": ")") + name + "TokenizerFast\"";
    for (const bool in_file : {true, false}) {
      EXPECT_THAT(bert_ids(in_file, of + "}"), lower) << name;
      EXPECT_THAT(bert_ids(in_file, of + R"(, "do_lower_case": true})"), lower) << name;
      EXPECT_THAT(bert_ids(in_file, of + R"(, "do_lower_case": false})"), as_given) << name;
      EXPECT_THAT(bert_ids(in_file, of + R"(, "strip_accents": false, "tokenize_chinese_chars": false})"),
                  ElementsAre(2, 5, 7, 9, 13, 3))
          << name;
    }
  }
  // Without a class the kind of model says it; other classes read the file.
  EXPECT_THAT(bert_ids(true, R"({"do_lower_case": false})", "distilbert"), as_given);
  EXPECT_THAT(bert_ids(false, R"({"tokenizer_class": "PreTrainedTokenizerFast"})"), as_given);
  EXPECT_THAT(bert_ids(false, R"({"tokenizer_class": "BertTokenizer"})", "modernbert"), as_given);
  // A folder without the file is read as with an empty one, if the kind of model is known.
  const Files alone = {{"tokenizer.json", bert_json(false)}, {"config.json", R"({"model_type": "bert"})"}};
  EXPECT_THAT(loaded(alone).encode("The"), ElementsAre(2, 5, 3));
  EXPECT_THAT(loaded({{"tokenizer.json", bert_json(false)}}).encode("The"), ElementsAre(2, 6, 3));
}

TEST(OverridesTest, DebertasSpacesAreThoseOfItsClass) {
  const std::string file =
      R"({"model": {"type": "Unigram", "unk_id": 1, "vocab": [["[PAD]", 0], ["[UNK]", 0], ["▁a", -1],
      ["▁b", -1], ["▁", -2], ["a", -3], ["b", -3], ["é", -3]]}, "normalizer": {"type": "Lowercase"}})";
  const auto ids = [&](const std::string& config, const std::string& text) {
    return loaded({{"tokenizer.json", file}, {"tokenizer_config.json", config}}).encode(text);
  };
  const std::string of = R"({"tokenizer_class": "DebertaV2Tokenizer")";
  EXPECT_THAT(ids(of + "}", "a\t b\na  b \n"), ElementsAre(2, 3, 2, 3));
  EXPECT_THAT(ids(of + "}", "a\u00a0b e\u0301 B"), ElementsAre(2, 1, 6, 4, 7, 4, 1));
  EXPECT_THAT(ids(of + R"(, "do_lower_case": true})", "B"), ElementsAre(3));
  EXPECT_THAT(ids("{}", "B"), ElementsAre(6));
}

TEST(OverridesTest, PrefixSpacesAreThoseOfTheConfig) {
  const Tokenizer trained = Tokenizer::train_bpe("it is it is it is", {.vocab_size = 262});
  Json json = Json::parse(trained.to_json());
  const auto begins_with_space = [&](const std::string& config, const std::string& model) {
    const Tokenizer t = loaded({{"tokenizer.json", json.dump()},
                                {"tokenizer_config.json", config},
                                {"config.json", R"({"model_type": ")" + model + "\"}"}});
    return t.decode(t.encode("it")) == " it";
  };
  for (const bool in_file : {false, true}) {
    json["pre_tokenizer"]["add_prefix_space"] = in_file;
    for (const char* name : {"GPT2", "Roberta", "Bart", "Longformer", "GPTNeoX", "CodeGen"}) {
      const std::string of = std::string(R"({"tokenizer_class": ")") + name + "Tokenizer\"";
      EXPECT_FALSE(begins_with_space(of + "}", "")) << name;
      EXPECT_TRUE(begins_with_space(of + R"(, "add_prefix_space": true})", "")) << name;
      EXPECT_FALSE(begins_with_space(of + R"(, "add_prefix_space": false})", "")) << name;
    }
    EXPECT_FALSE(begins_with_space("{}", "gpt2"));
    EXPECT_EQ(
        begins_with_space(R"({"tokenizer_class": "TokenizersBackend", "add_prefix_space": true})", "gpt2"),
        in_file);
  }
}

TEST(OverridesTest, TokensThatOnlyTheConfigNamesFollowTheVocabulary) {
  const std::string json = Tokenizer::train_bpe("it is it is", {.vocab_size = 262}).to_json();
  const auto with = [&](const std::string& config) {
    return loaded({{"tokenizer.json", json}, {"tokenizer_config.json", config}});
  };
  const int64_t size = Tokenizer::from_json(json).vocab_size();
  const Tokenizer t = with(R"({"pad_token": "[PAD]", "unk_token": {"content": "<unk>", "lstrip": false},
                              "eos_token": "<|endoftext|>", "bos_token": null})");
  EXPECT_EQ(t.vocab_size(), size + 2);
  EXPECT_EQ(t.plain_vocab_size(), size);
  EXPECT_EQ(t.unk_id(), size);
  EXPECT_EQ(t.pad_id(), size + 1);
  EXPECT_EQ(t.bos_id(), std::nullopt);
  EXPECT_TRUE(t.is_special(static_cast<int32_t>(size)));
  EXPECT_THAT(t.encode("[PAD]", {.parse_special = true}), ElementsAre(size + 1));
  // The saved files say the same to others.
  EXPECT_EQ(Tokenizer::from_contents(t.to_json(), t.config_json()).pad_id(), t.pad_id());
  const Tokenizer by_id = with(R"({"added_tokens_decoder": {"300": {"content": "<b>", "special": true},
                                   "299": {"content": "<a>", "special": false}}})");
  EXPECT_EQ(by_id.id("<a>"), size);
  EXPECT_EQ(by_id.id("<b>"), size + 1);
}

TEST(OverridesTest, TemplatesHaveTheTokensOfTheConfig) {
  const std::string of = R"({"tokenizer_class": "BertTokenizer", "do_lower_case": true)";
  EXPECT_THAT(bert_ids(true, of + R"(, "cls_token": "the"})"), ElementsAre(5, 5, 7, 10, 11, 12, 3));
  EXPECT_THAT(bert_ids(true, of + R"(, "sep_token": {"content": "[new]"}})"),
              ElementsAre(2, 5, 7, 10, 11, 12, 14));
  EXPECT_THAT(bert_ids(true, of + R"(, "cls_token": ""})"), ElementsAre(2, 5, 7, 10, 11, 12, 3));
  EXPECT_THAT(bert_ids(true, R"({"tokenizer_class": "PreTrainedTokenizerFast", "cls_token": "the"})"),
              ElementsAre(2, 5, 7, 10, 11, 12, 3));
  Json json = Json::parse(Tokenizer::train_bpe("it is it is", {.vocab_size = 262}).to_json());
  json["post_processor"] = Json::parse(R"({"type": "RobertaProcessing", "cls": ["!", 1], "sep": ["\"", 2]})");
  const Tokenizer roberta =
      loaded({{"tokenizer.json", json.dump()},
              {"tokenizer_config.json", R"({"tokenizer_class": "RobertaTokenizer", "cls_token": "#"})"}});
  EXPECT_THAT(roberta.encode(""), ElementsAre(roberta.id("#"), 2));
}

// Unigram pieces that `model_type` reads with `config`; the file's template is [CLS] ... [SEP], it cleans nothing.
std::vector<int32_t> unigram_ids(const std::string& model_type, const std::string& config,
                                 const std::string& text) {
  constexpr const char* kJson =
      R"({"model": {"type": "Unigram", "unk_id": 1, "vocab": [["<pad>", 0], ["<unk>", 0],
      ["[CLS]", 0], ["[SEP]", 0], ["<s>", 0], ["</s>", 0], ["\u2581a", -1], ["\u2581A", -1], ["\u2581\u00e9", -1],
      ["\u2581e", -1], ["a", -2], ["A", -2], ["\u00e9", -2], ["e", -2], ["\"", -2], ["\u2581", -3]]},
      "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": true},
      "post_processor": {"type": "BertProcessing", "cls": ["[CLS]", 2], "sep": ["[SEP]", 3]}})";
  return loaded({{"tokenizer.json", kJson},
                 {"tokenizer_config.json", config},
                 {"config.json", R"({"model_type": ")" + model_type + "\"}"}})
      .encode(text);
}

TEST(OverridesTest, ClassesOfSentencePieceMakeTheirSteps) {
  EXPECT_THAT(unigram_ids("albert", "{}", "A\n\u00e9 a''"), ElementsAre(2, 6, 9, 6, 14, 3));
  EXPECT_THAT(unigram_ids("albert", R"({"do_lower_case": false})", "A \u00e9"), ElementsAre(2, 7, 9, 3));
  EXPECT_THAT(unigram_ids("albert", R"({"keep_accents": true})", "A \u00e9"), ElementsAre(2, 6, 8, 3));
  EXPECT_THAT(unigram_ids("albert", R"({"add_prefix_space": false})", "A \u00e9"), ElementsAre(2, 10, 13, 3));
  for (const char* type : {"xlm-roberta", "camembert"}) {
    EXPECT_THAT(unigram_ids(type, "{}", "A\n\u00e9"), ElementsAre(4, 7, 8, 5)) << type;
    EXPECT_THAT(unigram_ids(type, R"({"add_prefix_space": false})", "A \u00e9"), ElementsAre(4, 11, 12, 5));
    EXPECT_THAT(unigram_ids(type, R"({"bos_token": "a", "cls_token": "e"})", "A"), ElementsAre(10, 7, 5));
  }
  EXPECT_THAT(unigram_ids("deberta-v2", R"({"cls_token": "a", "sep_token": "</s>"})", "A"),
              ElementsAre(10, 7, 5));
}

// Files that say what their class makes, in older words too, stay byte for byte.
TEST(OverridesTest, FilesThatSayTheSameStayAsTheyAre) {
  const std::string xlm = R"({"model": {"type": "Unigram", "unk_id": 3, "vocab": [["<s>", 0], ["<pad>", 0],
      ["</s>", 0], ["<unk>", 0], ["\u2581", -1], ["a", -2]]}, "added_tokens": [], "normalizer": null,
      "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"},
          {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": true}]},
      "decoder": {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": true},
      "post_processor": {"type": "TemplateProcessing",
          "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                     {"SpecialToken": {"id": "</s>", "type_id": 0}}],
          "pair": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                   {"SpecialToken": {"id": "</s>", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}},
                   {"Sequence": {"id": "B", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
          "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]},
                             "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}}})";
  for (const auto& [type, json] : {std::pair("xlm-roberta", xlm), {"bert", bert_json(true)}}) {
    const Files files = {{"tokenizer.json", json},
                         {"config.json", R"({"model_type": ")" + std::string(type) + "\"}"}};
    EXPECT_EQ(loaded(files).to_json(), json) << type;
  }
}

TEST(OverridesTest, ClassesSayWhetherIdsHaveTypes) {
  const std::string json = bert_json(true);
  const auto last_type = [&](const std::string& config, const std::string& model = "bert") {
    const Files files = {{"tokenizer.json", json},
                         {"tokenizer_config.json", config},
                         {"config.json", R"({"model_type": ")" + model + "\"}"}};
    return loaded(files).encode_pair("the", "cat").type_ids.back();
  };
  EXPECT_EQ(last_type("{}"), 1);
  EXPECT_EQ(last_type("{}", "unknown"), 0);
  EXPECT_EQ(loaded({{"tokenizer.json", json}}).encode_pair("the", "cat").type_ids.back(), 1);
  for (const auto& [name, type] :
       {std::pair("BertTokenizer", 1), {"TokenizersBackend", 0}, {"DistilBertTokenizer", 0}})
    EXPECT_EQ(last_type(R"({"tokenizer_class": ")" + std::string(name) + "\"}"), type) << name;
  const std::string fast = R"({"tokenizer_class": "PreTrainedTokenizerFast")";
  EXPECT_EQ(last_type(fast + R"(, "model_max_length": 512})"), 0);
  EXPECT_EQ(last_type(fast + "}"), 1);  // written by multihead 0.1
  EXPECT_EQ(last_type(R"({"tokenizer_class": "TokenizersBackend", "model_input_names": ["token_type_ids"]})"),
            1);
}

TEST(OverridesTest, TokensNamedInAnObjectAreSpecialToo) {
  const std::string json = Tokenizer::train_bpe("it is it is", {.vocab_size = 262}).to_json();
  const Tokenizer t =
      loaded({{"tokenizer.json", json},
              {"tokenizer_config.json", R"({"extra_special_tokens": {"image_token": "<image>"}})"}});
  ASSERT_TRUE(t.id("<image>"));
  EXPECT_TRUE(t.is_special(*t.id("<image>")));
}

TEST(OverridesTest, SpecialTokensAreSplitAndSpacesCleanedUpOnRequest) {
  const auto with = [&](const char* config) {
    return loaded({{"tokenizer.json", bert_json(true)}, {"tokenizer_config.json", config}});
  };
  const Tokenizer plain = with("{}"), split = with(R"({"split_special_tokens": true})");
  EXPECT_THAT(plain.encode("[SEP]", {.parse_special = true}), ElementsAre(2, 3, 3));
  EXPECT_THAT(split.encode("[SEP]", {.parse_special = true}), ElementsAre(2, 1, 1, 1, 3));
  EXPECT_NE(plain.fingerprint(), split.fingerprint());
  const Tokenizer again = Tokenizer::from_contents(split.to_json(), split.config_json());
  EXPECT_EQ(again.encode("[SEP]", {.parse_special = true}).size(), 5u);

  const std::string words = std::string(kCasedWords) + "'\ns\n.\ndo\nnot\n";
  const auto decoded = [&](const char* config) {
    const Tokenizer t = loaded({{"vocab.txt", words}, {"tokenizer_config.json", config}});
    return t.decode(t.encode("the cat's do not."), {.skip_special = true});
  };
  EXPECT_EQ(decoded("{}"), "the cat ' s do not.");
  EXPECT_EQ(decoded(R"({"clean_up_tokenization_spaces": true})"), "the cat's do not.");
}

TEST(OverridesTest, BpeIsCleanedUpOnlyWhereTheConfigInsists) {
  const std::string json = Tokenizer::train_bpe("it is it is", {.vocab_size = 262}).to_json();
  const auto decoded = [&](const std::string& more) {
    const std::string config = R"({"clean_up_tokenization_spaces": true)" + more + "}";
    const Tokenizer t = loaded({{"tokenizer.json", json}, {"tokenizer_config.json", config}});
    return t.decode(t.encode("a ."));
  };
  EXPECT_EQ(decoded(""), "a .");
  EXPECT_EQ(decoded(R"(, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": true)"),
            "a.");
}

TEST(OverridesTest, LlamasPrefixIsThatOfTheConfig) {
  const std::string json = R"({"model": {"type": "BPE", "byte_fallback": true, "vocab": {"<unk>": 0, "▁": 1,
      "a": 2}, "merges": [], "unk_token": "<unk>"}, "normalizer": {"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
      "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
      {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}})";
  const auto with = [&](const char* config, const char* type = "llama") {
    return loaded({{"tokenizer.json", json},
                   {"tokenizer_config.json", config},
                   {"config.json", R"({"model_type": ")" + std::string(type) + "\"}"}});
  };
  constexpr const char* kNone = R"({"tokenizer_class": "LlamaTokenizer", "add_prefix_space": false})";
  EXPECT_THAT(with(R"({"tokenizer_class": "LlamaTokenizer"})").encode("a a"), ElementsAre(1, 2, 1, 2));
  EXPECT_THAT(with(kNone).encode("a a"), ElementsAre(2, 1, 2));
  EXPECT_EQ(with(kNone).decode(std::vector<int32_t>{1, 2}), " a");
  EXPECT_THAT(with(kNone, "phi3").encode("a a"), ElementsAre(1, 2, 1, 2));
}

TEST(ByT5Test, BytesAreTokens) {
  const auto of = [](const std::string& config, const std::string& file = "tokenizer_config.json") {
    return loaded({{file, config}});
  };
  const std::string name = R"({"tokenizer_class": "ByT5Tokenizer")";
  const Tokenizer t = of(name + "}");
  EXPECT_EQ(t.vocab_size(), 384);
  EXPECT_THAT(t.encode("a\xC3\xA9\n"), ElementsAre(100, 198, 172, 13, 1));
  EXPECT_THAT(t.encode("x </s> y<extra_id_3>", {.parse_special = true}), ElementsAre(123, 1, 124, 262, 1));
  EXPECT_THAT(t.encode_pair("a", "b").ids, ElementsAre(100, 1, 101, 1));
  EXPECT_THAT(t.encode_pair("a", "b", {.add_template = false}).ids, ElementsAre(100, 101));
  EXPECT_THAT(t.encode_pair("a", "b", {.add_template = false, .end = 7}).ids, ElementsAre(100, 101, 7));
  EXPECT_THAT(t.encode_pair("abc", "b", {.add_template = false, .max_length = 2}).ids, ElementsAre(100, 101));
  EXPECT_THAT(t.encode_pair("a", "b").type_ids, ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(t.decode(t.encode("a\xC3\xA9\n"), {.skip_special = true}), "a\xC3\xA9\n");
  EXPECT_EQ(Tokenizer::from_contents(t.to_json(), t.config_json()).encode("a"), t.encode("a"));
  EXPECT_EQ(of(name + "}", "config.json").vocab_size(), 384);
  EXPECT_EQ(of(name + R"(, "extra_ids": 0})").vocab_size(), 259);
  EXPECT_MESSAGE(of(name + R"(, "extra_ids": -1})"), FormatError, "extra_ids must be in [0, 100000], got -1");
}

std::vector<int32_t> word_ids(const std::string& words, const std::string& config = "{}") {
  return loaded({{"vocab.txt", words}, {"tokenizer_config.json", config}}).encode("the cat x");
}

TEST(VocabTxtTest, ClassesThatCutOtherwiseAreRefused) {
  const std::string words = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\nx\n";
  EXPECT_THAT(word_ids(words, R"({"tokenizer_class": "DistilBertTokenizerFast"})"),
              ElementsAre(2, 5, 6, 7, 3));
  for (const char* name : {"BertJapaneseTokenizer", "PhobertTokenizer", "FooTokenizer"}) {
    EXPECT_MESSAGE(word_ids(words, concat(R"({"tokenizer_class": ")", name, "\"}")), FormatError,
                   concat("how ", name, " cuts and frames texts is not supported"));
  }
}

TEST(VocabTxtTest, LinesAreIdsWhateverTheyHold) {
  const std::string head = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  EXPECT_THAT(word_ids(head + "the\ncat\nx\n"), ElementsAre(2, 5, 6, 7, 3));
  EXPECT_THAT(word_ids(head + "the\ncat\nx"), ElementsAre(2, 5, 6, 7, 3));
  EXPECT_THAT(word_ids(head + "the\r\ncat\r\nx\r\n"), ElementsAre(2, 5, 6, 7, 3));
  EXPECT_THAT(word_ids(head + "the\n\ncat\n\n\nx\n\n"), ElementsAre(2, 5, 7, 10, 3));
  EXPECT_THAT(word_ids(head + "the\ncat\nthe\nx\n"), ElementsAre(2, 7, 6, 8, 3));  // the last counts
  EXPECT_THAT(word_ids(head + "the\ncat\n \nx\n"), ElementsAre(2, 5, 6, 8, 3));
  EXPECT_THAT(word_ids("\xEF\xBB\xBF" + head + "the\ncat\nx\n"), ElementsAre(2, 5, 6, 7, 3));
  EXPECT_THAT(word_ids("[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\ncat\nx\n"), ElementsAre(2, 4, 5, 6, 3));
  EXPECT_THAT(word_ids("<unk>\n<s>\n</s>\nthe\ncat\nx\n",
                       R"({"unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"})"),
              ElementsAre(1, 3, 4, 5, 2));
}

}  // namespace
}  // namespace multihead::text
