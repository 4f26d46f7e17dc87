#include "multihead/generate/constraint/constraint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/generate/draft.h"
#include "multihead/generate/generate.h"
#include "multihead/generate/generator.h"
#include "multihead/generate/token_rules.h"

namespace multihead {
namespace {

text::Tokenizer constraint_tokenizer() {
  return text::Tokenizer::train_bpe(
      R"({"name": "the cat", "age": 12, "tags": ["a", "b"]} {"name": "the mat", "age": 3, "tags": []} true null)",
      {.vocab_size = 300, .min_frequency = 1, .special = {.eos = "<end>"}});
}

models::LanguageModel constraint_model(int64_t vocab_size) {
  models::LanguageModelConfig c;
  c.vocab_size = vocab_size, c.context = 256, c.num_layers = 1, c.num_heads = 2, c.embed_dim = 16,
  c.init_std = 0.5;
  Rng rng(5);
  return {c, rng};
}

const char* const kPerson =
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":9},"age":{"type":"integer","minimum":10,"maximum":99},
        "tags":{"type":"array","items":{"enum":["a","b"]},"maxItems":2}},"required":["name","age","tags"],"additionalProperties":false})";

// The trie's answer is that of each token alone.
TEST(ConstraintTest, MasksExactlyTheTokensThatFit) {
  const text::Tokenizer tokenizer = constraint_tokenizer();
  const auto vocabulary = static_cast<size_t>(tokenizer.vocab_size());
  const int32_t eos = *tokenizer.eos_id();
  for (const char* schema :
       {kPerson, "{}", R"({"type":"string"})", R"({"type":"string","pattern":"^[a-c ]+$"})"}) {
    const Constraint constraint = Constraint::json_schema(tokenizer, Json::parse(schema));
    const auto language = text::grammar::json_schema_language(Json::parse(schema));
    for (const std::string before :
         {"", "{", "{\"", "\"", "\"a", "{\"name\":", "{\"age\": 1", "{\"name\": \"the"}) {
      text::grammar::Walker walker(language);
      int32_t state = walker.run(before, walker.start());
      if (state == text::grammar::Walker::kDead) continue;
      ConstraintState own(constraint);
      for (const int32_t token : tokenizer.encode(before)) own.advance(token);
      std::vector<float> logits(vocabulary + 3, 1.0f);
      own.apply(std::vector<int32_t>{eos}, logits);
      for (size_t i = 0; i < logits.size(); ++i) {
        const auto token = static_cast<int32_t>(i);
        bool fits = false;
        if (token == eos) {
          fits = walker.accepts(state);
        } else if (i < vocabulary && !tokenizer.is_special(token)) {
          fits = walker.run(tokenizer.decode(std::vector<int32_t>{token}, {.continued = true}), state) >= 0;
        }
        EXPECT_EQ(logits[i] == 1.0f, fits) << schema << " " << before << " " << token;
      }
    }
  }
}

TEST(ConstraintTest, GeneratedTextsFitAloneAndTogether) {
  const text::Tokenizer tokenizer = constraint_tokenizer();
  const models::LanguageModel model = constraint_model(tokenizer.vocab_size());
  GenerateOptions options = {.max_new_tokens = 120};
  options.sampling.temperature = 1, options.stop_tokens = {*tokenizer.eos_id()};
  const std::vector<std::vector<int32_t>> prompts = {{1, 2}, {3}, {9, 8, 7}, {4}, {5}, {6}};
  const std::pair<Constraint, text::grammar::LanguagePtr> all[] = {
      {Constraint::json_schema(tokenizer, Json::parse(kPerson)),
       text::grammar::json_schema_language(Json::parse(kPerson))},
      {Constraint::regex(tokenizer, "(cat|mat){2,4}[0-9]{3}"),
       text::grammar::regex_language("(cat|mat){2,4}[0-9]{3}")},
      {Constraint::grammar(tokenizer, "root ::= \"(\" root \")\" | [xy]"),
       text::grammar::grammar_language("root ::= \"(\" root \")\" | [xy]")}};
  for (const auto& [constraint, language] : all) {
    options.constraint = constraint;
    const auto together = generate(model, prompts, options);
    int whole = 0;
    for (size_t r = 0; r < prompts.size(); ++r) {
      Generator alone(model);
      const int64_t sequence = alone.submit(prompts[r], options, r);
      while (alone.step()) {
      }
      EXPECT_EQ(alone.take(sequence), together[r]);
      text::grammar::Walker walker(language);
      const int32_t end = walker.run(tokenizer.decode(together[r]), walker.start());
      ASSERT_NE(end, text::grammar::Walker::kDead);
      whole += walker.accepts(end);
      EXPECT_TRUE(walker.accepts(end) || std::ssize(together[r]) == options.max_new_tokens);
    }
    EXPECT_GE(whole, 5);
    GenerateOptions drafted = options;
    drafted.draft = prompt_lookup();
    EXPECT_EQ(generate(model, prompts, drafted), together);
  }
}

TEST(ConstraintTest, WhatCannotGoOnEndsItsOwnRow) {
  const text::Tokenizer tokenizer = constraint_tokenizer();
  const models::LanguageModel model = constraint_model(tokenizer.vocab_size());
  Generator generator(model);
  GenerateOptions options = {.max_new_tokens = 5};
  const int64_t free = generator.submit({1}, options);
  options.constraint = Constraint::regex(tokenizer, "xx");
  options.suppress = {tokenizer.encode("x")};
  const int64_t stuck = generator.submit({1}, options);
  while (generator.step()) {
  }
  EXPECT_EQ(generator.tokens(free).size(), 5);
  EXPECT_TRUE(generator.finished(stuck));
  EXPECT_FALSE(generator.problem(stuck).empty());
  EXPECT_TRUE(generator.problem(free).empty());
  EXPECT_THROW(generate(model, {{1}}, options), ValueError);
  options.first_token = 1;
  EXPECT_THROW(generator.submit({1}, options), ValueError);
  const auto wordpiece = text::Tokenizer::train_wordpiece("the cat", {.vocab_size = 60});
  EXPECT_THROW(Constraint::regex(wordpiece, "a"), ValueError);
}

TEST(ConstraintTest, WhatIsWrittenSaysSoHoweverManyTokensWereLeft) {
  const text::Tokenizer tokenizer = constraint_tokenizer();
  const models::LanguageModel model = constraint_model(tokenizer.vocab_size());
  const auto run = [&](const char* pattern, int64_t most) {
    Generator generator(model);
    GenerateOptions options = {.max_new_tokens = most};
    options.constraint = Constraint::regex(tokenizer, pattern);
    const int64_t sequence = generator.submit({1}, options);
    while (generator.step()) {
    }
    const bool is_complete = generator.is_complete(sequence);
    return std::pair(is_complete, std::ssize(generator.take(sequence)));
  };
  const auto [is_complete, size] = run("xyz", 9);
  EXPECT_TRUE(is_complete);
  EXPECT_EQ(run("xyz", size), std::pair(true, size));
  EXPECT_EQ(run("xyz", size - 1), std::pair(false, size - 1));
  EXPECT_FALSE(run("(xyz)*", 6).first) << "more could come";
}

TEST(ConstraintTest, ExcludesForcedTokens) {
  const text::Tokenizer tokenizer = constraint_tokenizer();
  const Constraint constraint = Constraint::regex(tokenizer, "ab");
  EXPECT_NO_THROW(check_rules({.constraint = constraint}, 300));
  EXPECT_THROW(check_rules({.min_new_tokens = 4, .constraint = constraint}, 300), ValueError);
  EXPECT_THROW(check_rules({.last_token = 1, .constraint = constraint}, 300), ValueError);
}

}  // namespace
}  // namespace multihead
