#include "multihead/generate/token_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "multihead/core/error.h"
#include "multihead/generate/beam_rules-inl.h"
#include "multihead/generate/stop_strings.h"

namespace multihead {
namespace {

using Tokens = std::vector<int32_t>;

// The tokens that may come next, of eight.
Tokens allowed(const GenerateOptions& options, const Tokens& text, int64_t fresh) {
  std::vector<float> logits(8, 0.0F);
  apply_rules(options, text, fresh, logits);
  Tokens left;
  for (int32_t token = 0; token < 8; ++token) {
    if (!std::isinf(logits[static_cast<size_t>(token)])) left.push_back(token);
  }
  return left;
}

TEST(TokenRulesTest, NoNGramComesTwicePromptIncluded) {
  EXPECT_EQ(allowed({.no_repeat_ngram = 2}, {1, 2, 3, 1}, 1), (Tokens{0, 1, 3, 4, 5, 6, 7}));
  EXPECT_EQ(allowed({.no_repeat_ngram = 1}, {1, 2, 3, 1}, 1), (Tokens{0, 4, 5, 6, 7}));
  EXPECT_EQ(allowed({.no_repeat_ngram = 3}, {1, 2, 3, 1}, 1).size(), 8u);
  EXPECT_EQ(allowed({.no_repeat_ngram = 3}, {1}, 0).size(), 8u);
}

TEST(TokenRulesTest, StopTokensWaitAndSuppressedSequencesNeverCome) {
  const GenerateOptions late = {.stop_tokens = {0, 7}, .min_new_tokens = 2};
  EXPECT_EQ(allowed(late, {1, 2}, 1), (Tokens{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(allowed(late, {1, 2, 3}, 2).size(), 8u);
  const GenerateOptions without = {.suppress = {{5}, {2, 3}, {1, 2, 4}}};
  EXPECT_EQ(allowed(without, {1, 2}, 0), (Tokens{0, 1, 2, 6, 7}));
  EXPECT_EQ(allowed(without, {2, 1}, 0), (Tokens{0, 1, 2, 3, 4, 6, 7}));
}

TEST(TokenRulesTest, WhatIsForcedComesWhateverElseIsSaid) {
  const GenerateOptions options = {
      .max_new_tokens = 3, .suppress = {{5}, {6}}, .first_token = 5, .last_token = 6};
  EXPECT_EQ(allowed(options, {1}, 0), (Tokens{5}));
  EXPECT_EQ(allowed(options, {1, 5}, 1).size(), 6u);
  EXPECT_EQ(allowed(options, {1, 5, 2}, 2), (Tokens{6}));
}

TEST(TokenRulesTest, GenerateKeepsThemWithAndWithoutGuesses) {
  models::LanguageModelConfig c;
  c.vocab_size = 8, c.context = 64, c.num_layers = 1, c.num_heads = 2, c.embed_dim = 16, c.init_std = 0.4;
  Rng rng(3);
  const models::LanguageModel model(c, rng);
  GenerateOptions options = {.max_new_tokens = 20,
                             .sampling = {.temperature = 1.5},
                             .stop_tokens = {0},
                             .no_repeat_ngram = 3,
                             .min_new_tokens = 15,
                             .suppress = {{3}},
                             .first_token = 4,
                             .last_token = 2};
  const Tokens plain = generate(model, {{1, 2, 1}}, options)[0];
  EXPECT_GE(plain.size(), 15u);
  EXPECT_EQ(plain.front(), 4);
  EXPECT_TRUE(plain.size() < 20 || plain.back() == 2);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 3), 0);
  Tokens text = {1, 2, 1};
  text.insert(text.end(), plain.begin(), plain.end());
  if (plain.size() == 20) text.pop_back();  // forced, so it may repeat
  for (size_t i = 0; i + 3 <= text.size(); ++i) {
    for (size_t j = i + 1; j + 3 <= text.size(); ++j)
      EXPECT_FALSE(std::equal(&text[i], &text[i] + 3, &text[j])) << i << " " << j;
  }
  options.draft = [](std::span<const int32_t>, int64_t most) { return Tokens(static_cast<size_t>(most), 1); };
  EXPECT_EQ(generate(model, {{1, 2, 1}}, options)[0], plain);
}

TEST(TokenRulesTest, WrongRulesAreNamed) {
  EXPECT_THROW(check_rules({.no_repeat_ngram = -1}, 8), ValueError);
  EXPECT_THROW(check_rules({.max_new_tokens = 3, .min_new_tokens = 4}, 8), ValueError);
  EXPECT_THROW(check_rules({.suppress = {{}}}, 8), ValueError);
  EXPECT_THROW(check_rules({.suppress = {{1, 8}}}, 8), ValueError);
  EXPECT_THROW(check_rules({.first_token = 8}, 8), ValueError);
  EXPECT_THROW(check_rules({.stop_tokens = {7, -1}}, 8), ValueError);
  EXPECT_THROW(check_rules({.last_token = -1}, 8), ValueError);
  EXPECT_NO_THROW(check_rules({}, 8));
}

// As in transformers, whose rules read what the decoder has read: BART begins with its end token.
TEST(BeamRulesTest, TheDecodersStartCountsAsATokenThatWasThere) {
  const Tokens history = {2, 5};
  const auto scores_with = [&](const BeamOptions& options) {
    std::vector<float> scores(8, -1.0F);
    detail::apply_rules(options, {.history = history, .prefix = {}, .eos = 2, .last = false}, scores);
    return scores;
  };
  const std::vector<float> penalized = scores_with({.beam_size = 2, .repetition_penalty = 2});
  EXPECT_EQ(penalized, (std::vector<float>{-1, -1, -2, -1, -1, -2, -1, -1}));
  const std::vector<float> unrepeated = scores_with({.no_repeat_ngram = 1});
  EXPECT_EQ(unrepeated[2], detail::kNever);
  EXPECT_EQ(unrepeated[5], detail::kNever);
  EXPECT_EQ(unrepeated[1], -1);
  EXPECT_EQ(scores_with({.min_length = 1})[2], -1);  // but not as one of the tokens that are counted
  EXPECT_EQ(scores_with({.min_length = 2})[2], detail::kNever);
}

TEST(StopStringsTest, ARowEndsBeforeTheFirstOfSeveralTexts) {
  const auto tokenizer = text::Tokenizer::train_characters("abc d");
  const auto said = [&](const std::vector<std::string>& stops, const std::string& text) {
    StopStrings strings(tokenizer, stops);
    std::string shown;
    for (const int32_t token : tokenizer.encode(text)) {
      const bool more = strings.add(0, token);
      EXPECT_TRUE(strings.text(0).starts_with(shown));  // nothing that was certain is taken back
      EXPECT_LE(strings.certain(0), strings.text(0).size());
      shown = strings.text(0).substr(0, strings.certain(0));
      if (!more) return strings.text(0) + "|";
    }
    return strings.text(0);
  };
  EXPECT_EQ(said({"cd", "bb"}, "aabcabbcd"), "aabca|");
  EXPECT_EQ(said({"abc"}, "ababc"), "ab|");
  EXPECT_EQ(said({"abc"}, "abab"), "abab");
  EXPECT_EQ(said({""}, "ab"), "ab");
  EXPECT_EQ(said({}, "ab"), "ab");
  EXPECT_EQ(said({"b", "ab"}, "cab"), "c|");
  StopStrings rows(tokenizer, {"b"});
  EXPECT_FALSE(rows.add(3, tokenizer.encode("b")[0]));
  EXPECT_TRUE(rows.add(1, tokenizer.encode("a")[0]));
  EXPECT_FALSE(rows.add(3, tokenizer.encode("a")[0]));
  EXPECT_EQ(rows.text(3), "");
  EXPECT_EQ(rows.text(7), "");
}

TEST(StopStringsTest, SpecialTokensThatAreSkippedMayStop) {
  const auto tokenizer = text::Tokenizer::train_bpe({"ab"}, {.vocab_size = 258, .special = {.eos = "<end>"}});
  const int32_t end = *tokenizer.eos_id(), a = tokenizer.encode("a")[0];
  const auto said = [&](const std::vector<std::string>& stops, bool skips) {
    StopStrings strings(tokenizer, stops, {.skip_special = skips});
    for (const int32_t token : {a, end, a})
      if (!strings.add(0, token)) return strings.text(0) + "|";
    return strings.text(0);
  };
  EXPECT_EQ(said({}, true), "aa");
  StopStrings beyond(tokenizer, {"x"}, {.skip_special = true});
  EXPECT_TRUE(beyond.add(0, static_cast<int32_t>(tokenizer.vocab_size())));  // of a larger model
  EXPECT_EQ(said({"<end>"}, true), "a|");
  EXPECT_EQ(said({"<end"}, true), "aa");
  EXPECT_EQ(said({}, false), "a<end>a");
  EXPECT_EQ(said({"<end"}, false), "a|");
}

}  // namespace
}  // namespace multihead
