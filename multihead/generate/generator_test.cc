#include "multihead/generate/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>

#include "multihead/core/error.h"
#include "multihead/testing/matchers.h"

namespace multihead {
namespace {

models::LanguageModel model(models::Positions positions, int64_t window = 0, int64_t context = 24) {
  models::LanguageModelConfig c;
  c.vocab_size = 19, c.context = context, c.num_layers = 2, c.num_heads = 2, c.embed_dim = 16,
  c.window = window;
  c.positions = positions;
  c.init_std = 0.3;
  Rng rng(3);
  return models::LanguageModel(c, rng);
}

struct Request {
  std::vector<int32_t> prompt;
  GenerateOptions options;
};

std::vector<Request> requests(int count, bool same_beginning) {
  std::mt19937 random(5);
  const auto number = [&](int end) { return static_cast<int32_t>(random() % static_cast<unsigned>(end)); };
  std::vector<Request> list;
  for (int i = 0; i < count; ++i) {
    Request r;
    if (same_beginning) r.prompt = {3, 1, 4, 1, 5, 9};
    for (int32_t n = 1 + number(7); n > 0; --n) r.prompt.push_back(number(19));
    r.options.max_new_tokens = number(30);
    r.options.seed = static_cast<uint64_t>(i);
    r.options.sampling.temperature = number(2);
    r.options.sampling.top_k = number(4);
    r.options.stop_tokens = {number(19)};
    list.push_back(std::move(r));
  }
  return list;
}

// Sequences are submitted while others run.
void expect_as_alone(const models::LanguageModel& m, const GeneratorOptions& options,
                     const std::vector<Request>& all) {
  Generator generator(m, options);
  size_t submitted = 0;
  for (bool more = true; more || submitted < all.size();) {
    for (size_t i = 0; i < 3 && submitted < all.size(); ++i, ++submitted) {
      EXPECT_EQ(generator.submit(all[submitted].prompt, all[submitted].options),
                static_cast<int64_t>(submitted));
    }
    more = generator.step();
    EXPECT_LE(generator.running(), options.max_batch);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(generator.take(static_cast<int64_t>(i)), generate(m, {all[i].prompt}, all[i].options)[0])
        << "sequence " << i;
  }
}

TEST(GeneratorTest, SequencesThatJoinAndLeaveAreAsAlone) {
  const std::vector<Request> all = requests(24, false);
  for (const auto positions : {models::Positions::learned, models::Positions::rotary}) {
    for (const int64_t rows : {1, 2, 5}) expect_as_alone(model(positions), {.max_batch = rows}, all);
  }
}

TEST(GeneratorTest, ARingIsAsAlone) {
  expect_as_alone(model(models::Positions::rotary, 6), {.max_batch = 4}, requests(12, false));
}

TEST(GeneratorTest, RememberedPromptsChangeNothing) {
  const auto m = model(models::Positions::rotary);
  for (const bool same : {true, false}) {
    expect_as_alone(m, {.max_batch = 3, .cached_prompts = 2}, requests(16, same));
  }
  Generator generator(m, {.cached_prompts = 2});
  for (const int32_t last : {7, 8, 9}) {
    generator.submit({1, 2, 3, 4, last}, {.max_new_tokens = 1});
    generator.submit({1, 2, 3}, {.max_new_tokens = 1});
    while (generator.step()) {
    }
  }
  EXPECT_LE(generator.bytes(), nn::decode_state_bytes(m.state_options({.batch = 2, .capacity = 5})) +
                                   nn::decode_state_bytes(m.state_options({.batch = 2, .capacity = 24})));
}

TEST(GeneratorTest, ChunksOfPromptsChangeNothing) {
  const std::vector<Request> all = requests(16, true);
  for (const int64_t chunk : {1, 2, 5, 0}) {
    for (const int64_t cached : {0, 2}) {
      expect_as_alone(model(models::Positions::rotary),
                      {.max_batch = 4, .cached_prompts = cached, .prompt_chunk = chunk}, all);
    }
    expect_as_alone(model(models::Positions::rotary, 6), {.max_batch = 4, .prompt_chunk = chunk}, all);
  }
}

TEST(GeneratorTest, ALongPromptDelaysOthersByAChunk) {
  const auto m = model(models::Positions::rotary, 0, 200);
  Generator generator(m, {.max_batch = 4, .prompt_chunk = 10});
  const int64_t early = generator.submit({1}, {.max_new_tokens = 40});
  generator.step();
  const int64_t big = generator.submit(std::vector<int32_t>(95, 3), {.max_new_tokens = 4});
  const int64_t gone = generator.submit(std::vector<int32_t>(95, 4), {.max_new_tokens = 4});
  const int64_t small = generator.submit({2}, {.max_new_tokens = 4});
  for (int64_t step = 2; step < 8; ++step) {
    generator.step();
    EXPECT_EQ(std::ssize(generator.tokens(early)), step);
    EXPECT_TRUE(generator.tokens(big).empty());
    if (step == 3) generator.cancel(gone);
  }
  EXPECT_FALSE(generator.tokens(small).empty());
  while (generator.step()) {
  }
  EXPECT_EQ(generator.take(big), generate(m, {std::vector<int32_t>(95, 3)}, {.max_new_tokens = 4})[0]);
  EXPECT_TRUE(generator.take(gone).empty());
  EXPECT_THROW(Generator(m, {.prompt_chunk = -1}), ValueError);
}

TEST(GeneratorTest, LogprobsOfPromptsAreTheModels) {
  const auto m = model(models::Positions::rotary, 0, 80);
  std::vector<std::vector<int32_t>> texts = {{5}, {1, 2, 3}, {}, {7, 7}};
  for (int32_t i = 0; i < 50; ++i) texts[2].push_back(i * 5 % 19);
  const auto all = prompt_logprobs(m, texts, 3);
  Generator generator(m, {.max_batch = 3, .cached_prompts = 2, .prompt_chunk = 7});
  std::vector<std::vector<TokenLogprobs>> heard(texts.size());
  for (size_t t = 0; t < texts.size(); ++t) {
    Tensor tokens = Tensor::zeros({1, std::ssize(texts[t])}, Dtype::i32);
    std::copy(texts[t].begin(), texts[t].end(), tokens.data<int32_t>());
    const Tensor logits = m(tokens);
    ASSERT_EQ(all[t].size(), texts[t].size() - 1);
    for (size_t i = 0; i + 1 < texts[t].size(); ++i) {
      const std::span<const float> row(logits.data<float>() + static_cast<int64_t>(i) * 19, 19);
      const TokenLogprobs expected = token_logprobs(row, texts[t][i + 1], 3);
      EXPECT_EQ(all[t][i].chosen.logprob, expected.chosen.logprob);
      EXPECT_EQ(all[t][i].top[2].token, expected.top[2].token);
    }
    GenerateOptions options = {.max_new_tokens = 3};
    options.top_logprobs = 3;
    options.on_prompt_logprobs = [&, t](int64_t, const TokenLogprobs& one) { heard[t].push_back(one); };
    generator.submit(texts[t], options);
  }
  while (generator.step()) {
  }
  for (size_t t = 0; t < texts.size(); ++t) {
    ASSERT_EQ(heard[t].size(), all[t].size());
    for (size_t i = 0; i < all[t].size(); ++i)
      EXPECT_EQ(heard[t][i].chosen.logprob, all[t][i].chosen.logprob);
  }
  EXPECT_THROW(prompt_logprobs(m, {std::vector<int32_t>(81, 1)}), ValueError);
}

TEST(GeneratorTest, BiasesAreAddedToLogits) {
  const auto m = model(models::Positions::rotary);
  GenerateOptions options = {.max_new_tokens = 5};
  options.logit_bias = {{7, 100.0f}};
  EXPECT_EQ(generate(m, {{1}}, options)[0], std::vector<int32_t>(5, 7));
  options.logit_bias = {{19, 1.0f}};
  EXPECT_THROW(generate(m, {{1}}, options), ValueError);
}

TEST(GeneratorTest, MemoryFollowsTheTexts) {
  const auto m = model(models::Positions::rotary, 0, 2048);
  const auto bytes = [&](int64_t batch, int64_t capacity) {
    return nn::decode_state_bytes(m.state_options({.batch = batch, .capacity = capacity}));
  };
  const GenerateOptions brief = {.max_new_tokens = 9, .seed = 1}, ample = {.max_new_tokens = 1200, .seed = 1};
  const auto alone = generate(m, {{5}}, ample)[0];
  Generator generator(m, {.max_batch = 4});
  const int64_t one = generator.submit({5}, brief);
  generator.step();
  EXPECT_EQ(generator.bytes(), bytes(1, 128));
  const int64_t other = generator.submit({5}, ample);
  generator.step(), generator.step();
  EXPECT_EQ(generator.bytes(), bytes(2, 1024)) << "not all of what may come";
  while (generator.step()) {
  }
  EXPECT_EQ(generator.bytes(), 0);
  EXPECT_EQ(generator.take(other), alone);
  EXPECT_EQ(generator.take(one), std::vector<int32_t>(alone.begin(), alone.begin() + 9));
}

TEST(GeneratorTest, RepeatedTokensArePenalised) {
  const auto m = model(models::Positions::rotary);
  GenerateOptions options = {.max_new_tokens = 6, .sampling = {.temperature = 0}};
  // Tokens 7 and 9 lie so far above the others, and 7 above 9, that only the penalties decide between them.
  options.logit_bias = {{7, 200.0f}, {9, 150.0f}};
  EXPECT_EQ(generate(m, {{7, 7}}, options)[0], (std::vector<int32_t>{7, 7, 7, 7, 7, 7}));
  options.presence_penalty = 100;  // once for however many
  EXPECT_EQ(generate(m, {{7, 7}}, options)[0], (std::vector<int32_t>{7, 9, 7, 7, 7, 7}));
  options.presence_penalty = 0, options.frequency_penalty = 30;  // 200, 170 | 150, 140, 120 | 110
  EXPECT_EQ(generate(m, {{7, 7}}, options)[0], (std::vector<int32_t>{7, 7, 9, 7, 9, 7}));
  // After the penalty of repetition: 200 / 2 - 60 is below 55, which (200 - 60) / 2 would not be.
  options.frequency_penalty = 0, options.presence_penalty = 60, options.sampling.repetition_penalty = 2;
  options.logit_bias = {{7, 200.0f}, {9, 55.0f}};
  EXPECT_EQ(generate(m, {{7, 7}}, options)[0], (std::vector<int32_t>{7, 9, 7, 7, 7, 7}));
  options.frequency_penalty = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(generate(m, {{7}}, options), ValueError);
}

std::vector<int32_t> long_prompt(int32_t last) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 14; ++i) tokens.push_back(i % 7);
  tokens.push_back(last);
  return tokens;
}

TEST(GeneratorTest, PromptsThatBeginAlikeAreReadOnce) {
  const auto m = model(models::Positions::rotary, 0, 80);
  std::vector<std::vector<int32_t>> prompts;
  for (const int32_t last : {1, 2, 3, 4}) {
    prompts.emplace_back(40, 3);
    prompts.back().push_back(last);
  }
  const GenerateOptions options = {.max_new_tokens = 5, .seed = 2};
  std::vector<std::vector<int32_t>> alone;
  Generator generator(m, {.max_batch = 4, .cached_prompts = 1});
  for (size_t r = 0; r < prompts.size(); ++r) {
    Generator one(m, {.max_batch = 1});
    one.submit(prompts[r], options, r), generator.submit(prompts[r], options, r);
    while (one.step()) {
    }
    alone.push_back(one.take(0));
  }
  EXPECT_TRUE(generator.step());
  EXPECT_EQ(generator.running(), 1);
  EXPECT_EQ(generator.waiting(), 3);
  EXPECT_TRUE(generator.step());
  EXPECT_EQ(generator.running(), 4);
  while (generator.step()) {
  }
  for (int64_t r = 0; r < 4; ++r) EXPECT_EQ(generator.take(r), alone[static_cast<size_t>(r)]);
  EXPECT_EQ(generate(m, prompts, options), alone);
}

TEST(GeneratorTest, RememberedPromptsAreBoundedInBytes) {
  const auto m = model(models::Positions::rotary);
  const size_t one = nn::decode_state_bytes(m.state_options({.capacity = 15}));
  Generator generator(m, {.max_batch = 1, .cached_prompts = 9, .prompt_cache_bytes = 2 * one});
  for (const int32_t last : {7, 8, 9}) {
    generator.submit(long_prompt(last), {.max_new_tokens = 1});
    while (generator.step()) {
    }
  }
  EXPECT_LE(generator.bytes(), 2 * one + nn::decode_state_bytes(m.state_options({.capacity = 24})));
  EXPECT_THROW(Generator(m, {.max_batch = 1, .prompt_cache_bytes = 1}), ValueError);
}

TEST(GeneratorTest, CancelledSequencesKeepTheirTokensAndLeaveTheOthersAlone) {
  const auto m = model(models::Positions::rotary);
  const GenerateOptions options = {.max_new_tokens = 12, .seed = 4};
  Generator generator(m, {.max_batch = 2});
  for (const int32_t first : {1, 2, 3}) generator.submit({first}, options);
  generator.step(), generator.step();
  EXPECT_MESSAGE(generator.take(0), ValueError,
                 "Generator: sequence 0 has not finished; cancel it to take its tokens so far");
  generator.cancel(0), generator.cancel(2);
  while (generator.step()) {
  }
  EXPECT_EQ(generator.take(0).size(), 2u);
  EXPECT_EQ(generator.take(1), generate(m, {{2}}, options)[0]);
  EXPECT_TRUE(generator.take(2).empty());
  EXPECT_MESSAGE(generator.tokens(2), ValueError, "Generator: no such sequence: 2");
}

TEST(GeneratorTest, WhatACallbackThrowsLosesNoToken) {
  const auto m = model(models::Positions::rotary);
  GenerateOptions options = {.max_new_tokens = 6};
  const auto expected = generate(m, {{1}}, options)[0];
  int calls = 0;
  options.on_token = [&](int64_t, int32_t) -> bool {
    if (++calls == 3) throw std::runtime_error("enough");
    return true;
  };
  Generator generator(m);
  generator.submit({1}, options);
  EXPECT_THROW(while (generator.step()){}, std::runtime_error);
  while (generator.step()) {
  }
  EXPECT_EQ(generator.take(0), expected);
}

TEST(GeneratorTest, ACallbackSubmitsCancelsAndTakes) {
  const auto m = model(models::Positions::rotary);
  Generator generator(m, {.max_batch = 2});
  std::vector<int32_t> taken;
  GenerateOptions options = {.max_new_tokens = 8};
  options.on_token = [&](int64_t sequence, int32_t) {
    if (generator.tokens(sequence).size() < 3) return true;
    generator.submit({2}, {.max_new_tokens = 4});
    generator.cancel(sequence);
    taken = generator.take(sequence);
    EXPECT_MESSAGE(generator.step(), ValueError, "Generator: on_token must not call step()");
    return false;
  };
  generator.submit({1}, options);
  while (generator.step()) {
  }
  EXPECT_EQ(taken, generate(m, {{1}}, {.max_new_tokens = 3})[0]);
  EXPECT_EQ(generator.take(1), generate(m, {{2}}, {.max_new_tokens = 4})[0]);
}

// They are the model's own, whatever the options make of its logits, and come before their token.
TEST(GeneratorTest, LogprobsAreTheModelsOwnAndAsAlone) {
  const auto m = model(models::Positions::rotary);
  using Heard = std::vector<std::pair<int32_t, float>>;
  const auto run = [&](const GeneratorOptions& options, int others) {
    Heard heard;
    std::vector<int32_t> tokens;
    GenerateOptions own;
    own.max_new_tokens = 8, own.seed = 2, own.sampling.top_k = 5, own.sampling.temperature = 2;
    own.top_logprobs = 19;
    own.on_logprobs = [&](int64_t, const TokenLogprobs& all) {
      double sum = 0;
      for (const TokenLogprob& one : all.top) sum += std::exp(one.logprob);
      EXPECT_NEAR(sum, 1, 1e-5) << "of the whole vocabulary";
      heard.emplace_back(all.chosen.token, all.chosen.logprob);
    };
    own.on_token = [&](int64_t, int32_t token) {
      tokens.push_back(token);
      EXPECT_EQ(heard.size(), tokens.size());
      EXPECT_EQ(heard.back().first, token);
      return true;
    };
    Generator generator(m, options);
    for (int i = 0; i < others; ++i) generator.submit({1, 2, i});
    generator.submit({3, 1, 4}, own);
    while (generator.step()) {
    }
    EXPECT_EQ(heard.size(), 8);
    return heard;
  };
  EXPECT_EQ(run({.max_batch = 1}, 0), run({.max_batch = 4, .cached_prompts = 2}, 5));
}

// A token whose embedding is not finite spoils only the texts that have it.
TEST(GeneratorTest, WhatIsNotFiniteEndsItsOwnSequence) {
  auto m = model(models::Positions::rotary);
  std::fill_n(m.token_embedding.weight.data<float>() + 18 * 16, 16, std::numeric_limits<float>::quiet_NaN());
  const GenerateOptions options = {.max_new_tokens = 5};
  const auto expected = generate(m, {{1}}, options)[0];
  for (const bool wants_logprobs : {false, true}) {
    GenerateOptions wrong = options;
    if (wants_logprobs) wrong.on_prompt_logprobs = [](int64_t, const TokenLogprobs&) {};
    Generator generator(m);
    const int64_t good = generator.submit({1}, options), bad = generator.submit({2, 18, 3}, wrong);
    generator.step();
    const int64_t late = generator.submit({18}, wrong);
    while (generator.step()) {
    }
    EXPECT_TRUE(generator.problem(good).empty());
    EXPECT_EQ(generator.take(good), expected);
    for (const int64_t sequence : {bad, late}) {
      EXPECT_FALSE(generator.problem(sequence).empty());
      EXPECT_TRUE(generator.take(sequence).empty());
    }
  }
  EXPECT_THROW(generate(m, {{18}}, options), ValueError);
}

TEST(GeneratorTest, Errors) {
  const auto m = model(models::Positions::rotary);
  EXPECT_MESSAGE(Generator(m, {.max_batch = 0}), ValueError,
                 "Generator: max_batch must be at least 1, got 0");
  Generator generator(m);
  EXPECT_MESSAGE(generator.submit({}), ValueError, "generate: prompt 0 is empty; give at least one token");
  EXPECT_MESSAGE(generator.submit({1}, {.cache_dtype = Dtype::bf16}), ValueError,
                 "Generator: cache_dtype is an option of the generator, not of a sequence");
  EXPECT_FALSE(generator.step());
}

}  // namespace
}  // namespace multihead
