#include "multihead/train/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "multihead/core/error.h"

namespace multihead::train {
namespace {

models::LanguageModel make_model(int64_t vocab_size) {
  Rng rng(5);
  return {{.vocab_size = vocab_size,
           .context = 11,
           .num_layers = 1,
           .num_heads = 2,
           .embed_dim = 12,
           .init_std = 0.5},
          rng};
}

std::vector<int32_t> random_tokens(int64_t count, int64_t vocab_size) {
  const RandomStream stream{3, 0};
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(
        static_cast<int32_t>(stream.bits(static_cast<uint64_t>(i)) % static_cast<uint64_t>(vocab_size)));
  }
  return tokens;
}

text::TokenView view(const std::vector<int32_t>& tokens) { return std::span<const int32_t>(tokens); }

// The same sum, a window at a time, from the logits.
double by_hand(const models::LanguageModel& model, const std::vector<int32_t>& tokens, int64_t context,
               int64_t stride = 0) {
  double nats = 0;
  size_t predicted = 0;
  const auto step = static_cast<size_t>(stride > 0 ? stride : context);
  for (size_t begin = 0; predicted + 1 < tokens.size(); begin += step) {
    const size_t count = std::min(static_cast<size_t>(context), tokens.size() - 1 - begin);
    const Tensor input =
        Tensor::of({1, static_cast<int64_t>(count)}, std::span<const int32_t>(tokens).subspan(begin, count));
    const Tensor logits = model(input);
    for (size_t i = predicted - begin; i < count; ++i) {
      double sum = 0;
      for (int64_t v = 0; v < logits.size(2); ++v)
        sum += std::exp(logits.at({0, static_cast<int64_t>(i), v}));
      nats += std::log(sum) - logits.at({0, static_cast<int64_t>(i), tokens[begin + i + 1]});
    }
    predicted = begin + count;
  }
  return nats;
}

TEST(EvaluateTest, EveryTokenButTheFirstIsPredictedOnce) {
  const models::LanguageModel model = make_model(13);
  for (const int64_t count : {2, 11, 12, 13, 23, 67}) {
    const auto tokens = random_tokens(count, 13);
    for (const int64_t batch : {1, 4}) {
      const TextLoss result = evaluate(model, view(tokens), {.batch = batch});
      EXPECT_EQ(result.tokens, count - 1);
      EXPECT_NEAR(result.nats, by_hand(model, tokens, 11), 1e-4 * static_cast<double>(count)) << count;
    }
  }
  const auto tokens = random_tokens(40, 13);
  EXPECT_NEAR(evaluate(model, view(tokens), {.context = 7}).nats, by_hand(model, tokens, 7), 1e-3);
}

TEST(EvaluateTest, WindowsOverlapByAStrideAndPredictEachTokenOnce) {
  const models::LanguageModel model = make_model(13);
  for (const int64_t count : {2, 11, 12, 13, 20, 67}) {
    const auto tokens = random_tokens(count, 13);
    for (const int64_t stride : {1, 4, 10, 11}) {
      const TextLoss result = evaluate(model, view(tokens), {.batch = 3, .stride = stride});
      EXPECT_EQ(result.tokens, count - 1) << count << " " << stride;
      EXPECT_NEAR(result.nats, by_hand(model, tokens, 11, stride), 1e-4 * static_cast<double>(count))
          << count << " " << stride;
    }
    EXPECT_EQ(evaluate(model, view(tokens), {.stride = 11}).nats, evaluate(model, view(tokens)).nats);
  }
  EXPECT_THROW(evaluate(model, view(random_tokens(40, 13)), {.stride = 12}), ValueError);
}

TEST(EvaluateTest, SomeWindowsAreEvenlySpread) {
  const auto tokens = random_tokens(200, 13);
  EXPECT_EQ(evaluate(make_model(13), view(tokens), {.windows = 5}).tokens, 55);
  EXPECT_EQ(evaluate(make_model(13), view(tokens), {.windows = 1000}).tokens, 198);
}

TEST(EvaluateTest, CountsBytesAndCharacters) {
  const auto tokenizer = text::Tokenizer::train_characters("aé€ b");
  const std::string text = "aé€ baé€ baé€";
  const auto tokens = tokenizer.encode(text);
  const TextLoss result = evaluate(make_model(5), view(tokens), {}, &tokenizer);
  EXPECT_EQ(result.tokens, 12);
  EXPECT_EQ(result.characters, 12);
  EXPECT_EQ(result.bytes, static_cast<int64_t>(text.size()) - 1);
  EXPECT_NEAR(result.bits_per_byte(), result.nats / std::log(2.0) / 21, 1e-12);
  EXPECT_NEAR(result.perplexity(), std::exp(result.nats / 12), 1e-9);
}

TEST(EvaluateTest, RefusesWhatCannotBeMeasured) {
  const models::LanguageModel model = make_model(13);
  EXPECT_THROW(evaluate(model, view({4})), FormatError);
  EXPECT_THROW(evaluate(model, view({4, 13})), ValueError);
  EXPECT_THROW(evaluate(model, view({4, -1})), ValueError);
  EXPECT_THROW(evaluate(model, view({4, 5}), {.batch = 0}), ValueError);
}

}  // namespace
}  // namespace multihead::train
