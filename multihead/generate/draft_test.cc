#include "multihead/generate/draft.h"

#include <gtest/gtest.h>

#include "multihead/core/error.h"
#include "multihead/generate/generator.h"

namespace multihead {
namespace {

models::LanguageModel rotary_model(uint64_t seed, int64_t window = 0) {
  models::LanguageModelConfig c;
  c.vocab_size = 11, c.context = 40, c.num_layers = 2, c.num_heads = 2, c.embed_dim = 16, c.window = window;
  c.positions = models::Positions::rotary;
  c.init_std = 0.3;
  Rng rng(seed);
  return models::LanguageModel(c, rng);
}

TEST(DraftTest, LooksUpWhatFollowedTheLastTokens) {
  const Draft draft = prompt_lookup(2);
  EXPECT_EQ(draft(std::vector<int32_t>{1, 2, 3, 9, 2, 3, 4, 5, 2, 3}, 2), (std::vector<int32_t>{4, 5}));
  EXPECT_EQ(draft(std::vector<int32_t>{7, 3, 1, 2, 3}, 8), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_TRUE(draft(std::vector<int32_t>{1, 2, 3}, 4).empty());
  EXPECT_TRUE(draft(std::vector<int32_t>{1}, 4).empty());
  EXPECT_THROW(prompt_lookup(0), ValueError);
}

TEST(DraftTest, AModelGuessesItsOwnGreedyContinuation) {
  const auto m = rotary_model(1);
  const Draft draft = draft_model(m);
  const std::vector<int32_t> text = {1, 2, 3};
  const auto expected = generate(m, {text}, {.max_new_tokens = 6, .sampling = {.temperature = 0}})[0];
  EXPECT_EQ(draft(text, 6), expected);
  EXPECT_EQ(draft(std::vector<int32_t>{1, 2, 3, expected[0]}, 5),
            (std::vector<int32_t>(expected.begin() + 1, expected.end())));
  EXPECT_EQ(draft(std::vector<int32_t>(39, 1), 5).size(), 1u);  // the context ends
  EXPECT_TRUE(draft(std::vector<int32_t>(40, 1), 5).empty());
}

// Guesses of any quality, also tokens that do not exist.
TEST(DraftTest, GuessesDoNotChangeTheResult) {
  const auto m = rotary_model(1), other = rotary_model(2);
  const Draft nonsense = [](std::span<const int32_t> text, int64_t most) {
    return std::vector<int32_t>(static_cast<size_t>(most + 2), text.size() % 3 == 0 ? 12 : 4);
  };
  const std::vector<std::vector<int32_t>> prompts = {{1, 2, 3}, {4}, {5, 6, 5, 6, 5}};
  for (const Draft& draft : {prompt_lookup(), draft_model(m), draft_model(other), nonsense}) {
    for (const double temperature : {0.0, 1.0, 0.3}) {
      GenerateOptions options = {.max_new_tokens = 60, .sampling = {.temperature = temperature}, .seed = 3};
      if (temperature > 0) options.stop_tokens = {10};
      std::vector<std::vector<int32_t>> heard(prompts.size()), expected_heard(prompts.size());
      options.on_token = [&](int64_t row, int32_t token) {
        expected_heard[static_cast<size_t>(row)].push_back(token);
        return token != 7 || temperature != 1.0;
      };
      const auto expected = generate(m, prompts, options);
      options.on_token = [&](int64_t row, int32_t token) {
        heard[static_cast<size_t>(row)].push_back(token);
        return token != 7 || temperature != 1.0;
      };
      options.draft = draft;
      EXPECT_EQ(generate(m, prompts, options), expected);
      EXPECT_EQ(heard, expected_heard);
    }
  }
}

TEST(DraftTest, RightGuessesSaveSteps) {
  const auto m = rotary_model(1);
  Generator generator(m);
  GenerateOptions options = {.max_new_tokens = 21, .sampling = {.temperature = 0}, .draft_tokens = 4};
  options.draft = draft_model(m);
  generator.submit({1}, options);
  int steps = 0;
  while (generator.step()) ++steps;
  EXPECT_EQ(steps, 5);  // 1 + 4 · (1 + 4)
  EXPECT_EQ(generator.take(0).size(), 21u);
}

TEST(DraftTest, RingsReadOneTokenAtATime) {
  const auto m = rotary_model(1, 5);
  GenerateOptions options = {.max_new_tokens = 300};
  const auto expected = generate(m, {{1}}, options);
  options.draft = prompt_lookup();
  EXPECT_EQ(generate(m, {{1}}, options), expected);
}

}  // namespace
}  // namespace multihead
