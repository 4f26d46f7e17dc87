#include "multihead/generate/translate.h"

#include <gtest/gtest.h>

#include "multihead/core/error.h"

namespace multihead {
namespace {

text::Tokenizer letters() {
  return text::Tokenizer::train_characters("abcdefgh ", {.special = {.eos = "</s>", .pad = "<pad>"}});
}

models::Seq2Seq model_for(const text::Tokenizer& tokenizer) {
  models::Seq2SeqConfig c;
  c.source_vocab_size = tokenizer.vocab_size(), c.max_positions = 20, c.encoder_layers = c.decoder_layers = 1;
  c.num_heads = 2, c.embed_dim = 8, c.ffn_dim = 11, c.init_std = 0.5;
  c.pad_id = c.decoder_start_id = *tokenizer.pad_id(), c.eos_id = *tokenizer.eos_id();
  Rng rng(3);
  return {c, rng};
}

TEST(TranslateTest, TextsComeInOrderAndDoNotDependOnTheBatch) {
  const text::Tokenizer tokenizer = letters();
  const models::Seq2Seq model = model_for(tokenizer);
  const std::vector<std::string> texts = {"abc", "a", "hgfedcba abc", "dd", "e f g"};
  TranslateOptions options;
  options.beam = {.beam_size = 3, .num_hypotheses = 2, .min_length = 3, .max_length = 9};
  const auto together = translate(model, tokenizer, tokenizer, texts, options);
  options.batch_tokens = 1;
  const auto alone = translate(model, tokenizer, tokenizer, texts, options);
  ASSERT_EQ(together.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    ASSERT_EQ(together[i].size(), 2u);
    for (size_t k = 0; k < 2; ++k) {
      EXPECT_EQ(together[i][k].text, alone[i][k].text);
      EXPECT_EQ(together[i][k].hypothesis.score, alone[i][k].hypothesis.score);
      EXPECT_EQ(together[i][k].text, tokenizer.decode(together[i][k].hypothesis.tokens));
      EXPECT_EQ(together[i][k].text.find('<'), std::string::npos);
    }
  }
}

TEST(TranslateTest, PrefixesLead) {
  const text::Tokenizer tokenizer = letters();
  const models::Seq2Seq model = model_for(tokenizer);
  TranslateOptions options;
  options.beam.max_length = 8;
  options.prefixes = {"ha", "", "bcd"};
  const auto found = translate(model, tokenizer, tokenizer, {"aaa", "b", "cdcd"}, options);
  EXPECT_EQ(found[0][0].text.substr(0, 2), "ha");
  EXPECT_EQ(found[2][0].text.substr(0, 3), "bcd");
}

TEST(TranslateTest, BlankTextsStayBlank) {
  const text::Tokenizer tokenizer = letters();
  const models::Seq2Seq model = model_for(tokenizer);
  TranslateOptions options;
  options.beam.max_length = 8;
  options.prefixes = {"", "ha", "b", "cd"};
  const auto found = translate(model, tokenizer, tokenizer, {"", "aaa", " \t\r", "cdcd"}, options);
  for (const size_t blank : {0u, 2u}) {
    ASSERT_EQ(found[blank].size(), 1u);
    EXPECT_EQ(found[blank][0].text, "");
    EXPECT_TRUE(found[blank][0].hypothesis.tokens.empty());
  }
  EXPECT_EQ(found[1][0].text.substr(0, 2), "ha");
  EXPECT_EQ(found[3][0].text.substr(0, 2), "cd");
  options.prefixes.clear();
  EXPECT_EQ(translate(model, tokenizer, tokenizer, {" "}, options)[0][0].text, "");
}

TEST(TranslateTest, BadTextsAreNamed) {
  const text::Tokenizer tokenizer = letters();
  const models::Seq2Seq model = model_for(tokenizer);
  const auto refused = [&](const std::vector<std::string>& texts, const TranslateOptions& options,
                           const char* text) {
    try {
      translate(model, tokenizer, tokenizer, texts, options);
      ADD_FAILURE() << "no error that says " << text;
    } catch (const ValueError& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  refused({"abz"}, {}, "text 1: ");
  refused({"a", "abcabcabcabcabcabcabcabc"}, {}, "text 2 has 25 tokens, the model reads at most 20");
  refused({"a"}, {.prefixes = {"a", "b"}}, "2 prefixes for 1 texts");
  refused({"a"}, {.batch_tokens = 0}, "batch_tokens");
  refused({"a"}, {.beam = {.beam_size = 0}}, "beam_size");
  EXPECT_TRUE(translate(model, tokenizer, tokenizer, {}).empty());
}

}  // namespace
}  // namespace multihead
