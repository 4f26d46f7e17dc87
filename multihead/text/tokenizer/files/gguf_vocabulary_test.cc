// Tokenizers in GGUF files: what is written means in llama.cpp what it means here, and what is read is what
// llama.cpp makes of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"
#include "multihead/io/gguf.h"
#include "multihead/testing/files.h"
#include "multihead/text/tokenizer/files/gguf.h"
#include "multihead/text/tokenizer/files/gguf_splits-inl.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::text {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

constexpr char kText[] =
    "It isn't far, said the cat in 2024; 12345 steps at most. It isn't far, said the cat.";

// A byte-level tokenizer with <s> and </s>, as JSON.
Json base() {
  const Tokenizer trained = Tokenizer::train_bpe(
      kText, {.vocab_size = 300, .min_frequency = 2, .special = {.bos = "<s>", .eos = "</s>"}});
  return Json::parse(trained.to_json());
}

Tokenizer with_roles(const Json& json) {
  return Tokenizer::from_contents(json.dump(), R"({"bos_token": "<s>", "eos_token": "</s>"})");
}

Json cut_by(std::string_view name) {
  for (const GgufSplit& split : kGgufSplits) {
    if (std::string_view(split.names).starts_with(name)) return Json::parse(json_of_split(split, false));
  }
  return {};
}

template <class T>
T value_of(const io::GgufMetadata& metadata, const std::string& key) {
  for (const auto& [name, value] : metadata) {
    if (name == "tokenizer.ggml." + key) return std::get<T>(value);
  }
  throw std::logic_error(key);
}

std::string written_name(const Json& json) {
  return value_of<std::string>(gguf_vocabulary(with_roles(json), 300), "pre");
}

std::string refusal(const Json& json) {
  try {
    gguf_vocabulary(with_roles(json), 300);
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

TEST(GgufVocabularyTest, TheNameIsThatOfTheCut) {
  EXPECT_EQ(written_name(base()), "gpt-2");
  for (const char* name :
       {"smollm", "qwen2", "qwen35", "deepseek-v3", "falcon", "default", "deepseek-coder"}) {
    Json json = base();
    json["pre_tokenizer"] = cut_by(name);
    EXPECT_EQ(written_name(json), name);
  }
  Json json = base();
  json["pre_tokenizer"] = cut_by("llama-bpe");
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(written_name(json), "llama-bpe");
}

TEST(GgufVocabularyTest, MergesAreIgnoredOnlyWhereThatIsTheSame) {
  // Every token is made by its merges, so it makes no difference under a name that has no such flag.
  Json json = base();
  json["pre_tokenizer"] = cut_by("qwen2");
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(written_name(json), "qwen2");
  // Now it does.
  Json merges = Json::array();
  const Json all = json.at("model").at("merges");
  for (size_t i = 0; i + 1 < all.size(); ++i) merges.push_back(all.at(i));
  json["model"]["merges"] = merges;
  EXPECT_THAT(refusal(json), HasSubstr("ignore_merges"));
  json["pre_tokenizer"] = cut_by("llama-bpe");
  EXPECT_EQ(written_name(json), "llama-bpe");
  json["model"]["ignore_merges"] = false;
  EXPECT_EQ(written_name(json), "smaug-bpe");
}

TEST(GgufVocabularyTest, WhatTheFormatCannotExpressIsRefused) {
  const auto changed = [](const auto& change) {
    Json json = base();
    change(json);
    return refusal(json);
  };
  EXPECT_THAT(changed([](Json& j) {
                j["normalizer"] = Json::object({{"type", "Lowercase"}});
              }),
              HasSubstr("no normalizer"));
  EXPECT_EQ(changed([](Json& j) { j["normalizer"] = Json::object({{"type", "NFC"}}); }), "no error");
  EXPECT_THAT(changed([](Json& j) { j["pre_tokenizer"]["add_prefix_space"] = true; }),
              HasSubstr("no name in the format"));
  EXPECT_THAT(changed([](Json& j) { j["pre_tokenizer"]["use_regex"] = false; }),
              HasSubstr("no name in the format"));
  for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
    EXPECT_THAT(changed([&](Json& j) {
                  Json added = j.at("added_tokens").at(size_t{0});
                  added[flag] = true;
                  j["added_tokens"] = Json(std::vector<Json>{added, j.at("added_tokens").at(1)});
                }),
                HasSubstr(flag));
  }
  EXPECT_THAT(changed([](Json& j) {
                j["post_processor"] = Json::object({{"type", "BertProcessing"},
                                                    {"sep", Json(std::vector<Json>{"<s>", 0})},
                                                    {"cls", Json(std::vector<Json>{"</s>", 1})}});
              }),
              HasSubstr("template"));
  // A byte without a token is left out, unless the tokenizer has an unknown one for it.
  const auto without_byte_4 = [](Json& j) {
    j["model"]["vocab"]["\xC4\x84\xC4\x84"] = j.at("model").at("vocab").at("\xC4\x84");
    j["model"]["vocab"].erase("\xC4\x84");
  };
  EXPECT_EQ(changed(without_byte_4), "no error");
  EXPECT_THAT(changed([&](Json& j) {
                without_byte_4(j);
                j["model"]["unk_token"] = "<s>";
              }),
              HasSubstr("none for byte 4, but an unknown token"));
  EXPECT_THROW(gguf_vocabulary(Tokenizer::train_unigram(kText, {.vocab_size = 40}), 60), ValueError);
}

// The vocabulary that is read from a file with these metadata.
class GgufTokenizerTest : public ::testing::Test {
 protected:
  Tokenizer read(const io::GgufMetadata& metadata) const {
    const std::string path = folder_ / "t.gguf";
    io::write_gguf(path, {metadata, {}});
    return Tokenizer::load(path);
  }
  // The written vocabulary, with other values; none: the key is left out.
  Tokenizer changed(std::string_view pre, std::map<std::string, std::optional<io::GgufValue>> changes) const {
    io::GgufMetadata metadata;
    changes["tokenizer.ggml.pre"] = std::string(pre);
    for (auto& [key, value] : gguf_vocabulary(with_roles(base()), 300)) {
      if (!changes.contains(key)) metadata.emplace_back(key, value);
    }
    for (const auto& [key, value] : changes) {
      if (value) metadata.emplace_back(key, *value);
    }
    return read(metadata);
  }
  std::string error_of(std::map<std::string, std::optional<io::GgufValue>> changes) const {
    try {
      changed("gpt-2", std::move(changes));
    } catch (const FormatError& error) {
      return error.what();
    }
    return "no error";
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(GgufTokenizerTest, RoundTripsKeepIds) {
  for (const char* name :
       {"gpt-2", "smollm", "smaug-bpe", "qwen2", "qwen35", "deepseek-v3", "falcon", "default"}) {
    Json json = base();
    json["pre_tokenizer"] = cut_by(name);
    const Tokenizer tokenizer = with_roles(json);
    const Tokenizer again = read(gguf_vocabulary(tokenizer, 300));
    for (const char* text : {kText, "a  b\n\nc `x` 123456 don't", "\u4E2D\u56FD 12\u00BD, na\u00EFve!", ""})
      EXPECT_EQ(again.encode(text), tokenizer.encode(text)) << name;
  }
}

TEST_F(GgufTokenizerTest, TemplatesAreThoseOfTheFlags) {
  const std::string bos = "tokenizer.ggml.add_bos_token", eos = "tokenizer.ggml.add_eos_token";
  const auto frame = [&](const char* pre, std::optional<io::GgufValue> begins,
                         std::optional<io::GgufValue> ends) {
    return changed(pre, {{bos, begins}, {eos, ends}}).encode("");
  };
  EXPECT_EQ(frame("gpt-2", {}, {}), Ids{});
  EXPECT_EQ(frame("gpt-2", true, true), (Ids{0, 1}));
  EXPECT_EQ(frame("gpt-2", false, true), Ids{1});
  EXPECT_EQ(frame("llama-bpe", {}, {}), Ids{0});
  EXPECT_EQ(frame("llama3", false, {}), Ids{});
  EXPECT_EQ(frame("qwen2", {}, {}), Ids{});
}

TEST_F(GgufTokenizerTest, OddHeadersAreReadAsLlamaCppReadsThem) {
  const Ids plain = changed("gpt-2", {}).encode(kText);
  const std::map<std::string, io::GgufValue> harmless = {
      {"tokenizer.ggml.padding_token_id", int64_t{4294967295}},
      {"tokenizer.ggml.unknown_token_id", 99999},
      {"tokenizer.ggml.seperator_token_id", 3},
      {"tokenizer.ggml.fim_pre_token_id", 3},
      {"tokenizer.ggml.normalizer.lowercase", false},
      {"tokenizer.ggml.remove_extra_whitespaces", false},
      {"tokenizer.chat_template.tool_use", "x"},
      {"tokenizer.ggml.precompiled_charsmap", std::vector<int64_t>{1, 2}}};
  for (const auto& change : harmless)
    EXPECT_EQ(changed("gpt-2", {change}).encode(kText), plain) << change.first;
  EXPECT_THAT(error_of({{"tokenizer.ggml.some_future_key", 1}}), HasSubstr("some_future_key"));
  EXPECT_THAT(error_of({{"tokenizer.ggml.normalizer.lowercase", true}}), HasSubstr("lowercase"));
  EXPECT_THAT(error_of({{"tokenizer.ggml.suppress_tokens", std::vector<int64_t>{5}}}),
              HasSubstr("suppress_tokens"));
  EXPECT_THAT(error_of({{"tokenizer.ggml.add_bos_token", true}, {"tokenizer.ggml.bos_token_id", 99999}}),
              HasSubstr("bos_token_id"));
  std::vector<std::string> tokens =
      value_of<std::vector<std::string>>(gguf_vocabulary(with_roles(base()), 301), "tokens");
  tokens.back() = "";
  EXPECT_EQ(
      changed("gpt-2", {{"tokenizer.ggml.tokens", tokens}, {"tokenizer.ggml.token_type", {}}}).encode(kText),
      plain);
}

TEST(FingerprintTest, DiffersWhereTextIsCutOrMergedInAnotherWay) {
  std::map<uint64_t, std::string> seen;
  for (const GgufSplit& split : kGgufSplits) {
    Json json = base();
    json["pre_tokenizer"] = Json::parse(json_of_split(split, false));
    const auto [at, is_new] = seen.emplace(with_roles(json).fingerprint(), split.names);
    // These two differ in ignore_merges alone.
    EXPECT_TRUE(is_new || std::string_view(split.names).starts_with("smaug-bpe"))
        << split.names << at->second;
  }
  Json json = base();
  std::vector<Json> merges(json.at("model").at("merges").items().begin(),
                           json.at("model").at("merges").items().end());
  std::swap(merges[0], merges[1]);
  json["model"]["merges"] = Json(merges);
  EXPECT_NE(with_roles(json).fingerprint(), with_roles(base()).fingerprint());
}

}  // namespace
}  // namespace multihead::text
