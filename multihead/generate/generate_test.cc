#include "multihead/generate/generate.h"

#include <gtest/gtest.h>

#include <limits>

#include "multihead/core/error.h"

namespace multihead {
namespace {

models::LanguageModel short_model(models::Positions positions) {
  models::LanguageModelConfig c;
  c.vocab_size = 19, c.context = 16, c.num_layers = 2, c.num_heads = 2, c.embed_dim = 16,
  c.positions = positions;
  c.init_std = 0.3;
  Rng rng(3);
  return models::LanguageModel(c, rng);
}

// The same by reading the whole text at every step.
std::vector<int32_t> slowly(const models::LanguageModel& m, std::vector<int32_t> text, int64_t count) {
  std::vector<int32_t> fresh;
  for (int64_t i = 0; i < count; ++i) {
    const auto length = static_cast<int64_t>(text.size());
    const Tensor logits = m(Tensor::of<int32_t>({1, length}, text));
    const std::vector<float> all = logits.to_vector<float>();
    fresh.push_back(sample(std::span<const float>(all).last(19), text, {.temperature = 0}, 0));
    text.push_back(fresh.back());
  }
  return fresh;
}

TEST(GenerateTest, CachedDecodingEqualsReadingTheWholeText) {
  for (const auto positions :
       {models::Positions::learned, models::Positions::rotary, models::Positions::alibi}) {
    const auto m = short_model(positions);
    const std::vector<std::vector<int32_t>> prompts = {{1, 2, 3}, {4}, {5, 6, 7, 8, 9}};
    const auto results = generate(m, prompts, {.max_new_tokens = 8, .sampling = {.temperature = 0}});
    for (size_t r = 0; r < prompts.size(); ++r) EXPECT_EQ(results[r], slowly(m, prompts[r], 8));
  }
}

TEST(GenerateTest, ARowDoesNotDependOnTheBatchAndSeedsDiffer) {
  const auto m = short_model(models::Positions::rotary);
  const GenerateOptions options = {.max_new_tokens = 10, .seed = 7};
  const auto alone = generate(m, {{1, 2}}, options);
  const auto together = generate(m, {{1, 2}, {3}, {1, 2}}, options);
  EXPECT_EQ(alone[0], together[0]);
  EXPECT_NE(together[0], together[2]);
  EXPECT_NE(generate(m, {{1, 2}}, {.max_new_tokens = 10, .seed = 8})[0], alone[0]);
}

TEST(GenerateTest, PastTheContextTheWindowSlidesOrIsAnError) {
  const auto m = short_model(models::Positions::learned);
  const auto result = generate(m, {{1, 2, 3}}, {.max_new_tokens = 40, .sampling = {.temperature = 0}});
  ASSERT_EQ(result[0].size(), 40u);
  // The token after the first slide is that of the last half context read afresh.
  std::vector<int32_t> text = {1, 2, 3};
  text.insert(text.end(), result[0].begin(), result[0].begin() + 14);  // 17 tokens: one more than fits
  const std::vector<int32_t> half(text.end() - 8, text.end());
  EXPECT_EQ(result[0][14], slowly(m, half, 1)[0]);
  EXPECT_THROW(generate(m, {{1, 2, 3}}, {.max_new_tokens = 40, .overflow = Overflow::error}), ValueError);
  constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();
  const auto stop = [](int64_t, int32_t) { return false; };
  EXPECT_EQ(generate(m, {{1, 2}}, {.max_new_tokens = kEndless, .on_token = stop})[0].size(), 1u);
  EXPECT_THROW(generate(m, {{1, 2}}, {.max_new_tokens = kEndless, .overflow = Overflow::error}), ValueError);
  EXPECT_EQ(generate(m, {std::vector<int32_t>(50, 3)}, {.max_new_tokens = 2})[0].size(), 2u);
}

TEST(GenerateTest, AWindowHasNoEndAndItsMemoryIsThatOfTheRing) {
  for (const auto positions : {models::Positions::rotary, models::Positions::alibi}) {
    models::LanguageModelConfig c = short_model(positions).config();
    c.window = 7;
    Rng rng(3);
    const models::LanguageModel m(c, rng);
    const std::vector<std::vector<int32_t>> prompts = {std::vector<int32_t>(600, 4), {1, 2, 3}};
    const GenerateOptions options = {
        .max_new_tokens = 120, .sampling = {.temperature = 0}, .overflow = Overflow::error};
    const auto results = generate(m, prompts, options);
    for (size_t r = 0; r < 2; ++r) EXPECT_EQ(results[r], slowly(m, prompts[r], 120));
    const nn::DecodeStateOptions plan = plan_generate(m, 2, 600, options);
    EXPECT_EQ(plan.window, 7);
    EXPECT_EQ(nn::decode_state_bytes(plan), nn::decode_state_bytes(plan_generate(m, 2, 60000, options)));
    EXPECT_EQ(plan_generate(m, 2, 3, options).window, 0);  // little text: a full state is smaller
  }
}

TEST(GenerateTest, ACacheInBf16SaysTheSameAlone) {
  const auto m = short_model(models::Positions::rotary);
  GenerateOptions options = {.max_new_tokens = 10, .seed = 7, .cache_dtype = Dtype::bf16};
  EXPECT_EQ(2 * nn::decode_state_bytes(plan_generate(m, 3, 2, options)),
            nn::decode_state_bytes(plan_generate(m, 3, 2, {.max_new_tokens = 10})));
  EXPECT_EQ(generate(m, {{1, 2}}, options)[0], generate(m, {{1, 2}, {3}, {1, 2}}, options)[0]);
  options.cache_dtype = Dtype::f64;
  EXPECT_THROW(generate(m, {{1}}, options), DtypeError);
}

TEST(GenerateTest, StopTokensAndCallbacksEndARow) {
  const auto m = short_model(models::Positions::rotary);
  const auto free = generate(m, {{1}}, {.max_new_tokens = 12, .sampling = {.temperature = 0}})[0];
  const auto stopped =
      generate(m, {{1}}, {.max_new_tokens = 12, .sampling = {.temperature = 0}, .stop_tokens = {free[3]}})[0];
  EXPECT_LE(stopped.size(), 3u);
  int64_t calls = 0;
  const auto three = generate(m, {{1}, {2}}, {.max_new_tokens = 12, .on_token = [&](int64_t row, int32_t) {
                                                ++calls;
                                                return row == 1 || calls < 5;
                                              }});
  EXPECT_EQ(three[0].size(), 3u);
  EXPECT_EQ(three[1].size(), 12u);
}

TEST(GenerateTest, BadArgumentsAreNamed) {
  const auto m = short_model(models::Positions::rotary);
  EXPECT_THROW(generate(m, {{}}), ValueError);
  EXPECT_THROW(generate(m, {{19}}), ValueError);
  EXPECT_THROW(generate(m, {{-1}}), ValueError);
  EXPECT_THROW(generate(m, {{1}}, {.max_new_tokens = -1}), ValueError);
  EXPECT_TRUE(generate(m, {}).empty());
}

}  // namespace
}  // namespace multihead
