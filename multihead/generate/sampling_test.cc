#include "multihead/generate/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "multihead/core/error.h"
#include "multihead/core/tensor/rng.h"

namespace multihead {
namespace {

// Probabilities 0.5, 0.25, 0.125, 0.125.
const std::vector<float> kLogits = {std::log(0.125f), std::log(0.5f), std::log(0.125f), std::log(0.25f)};

std::vector<int32_t> tokens(const std::vector<Candidate>& list) {
  std::vector<int32_t> result;
  for (const Candidate& c : list) result.push_back(c.token);
  return result;
}

TEST(SamplingTest, CandidatesAreRankedAndSumToOne) {
  const auto list = candidates(kLogits, {}, {});
  EXPECT_EQ(tokens(list), (std::vector<int32_t>{1, 3, 0, 2}));
  EXPECT_NEAR(list[0].probability, 0.5, 1e-6);
  EXPECT_NEAR(list[3].probability, 0.125, 1e-6);
}

// Ties, both zeros, infinities, NaN and every exponent, beside a sort by comparison.
TEST(SamplingTest, TheOrderIsThatOfTheLogitsThenOfTheTokens) {
  std::vector<float> logits;
  const RandomStream random{5, 0};
  for (uint64_t i = 0; i < 5000; ++i) {
    const auto bits = static_cast<uint32_t>(random.bits(i));
    logits.push_back(i % 3 == 0 ? static_cast<float>(bits % 7) - 3 : std::bit_cast<float>(bits));
    if (i % 11 == 0) logits.back() = i % 2 == 0 ? 0.0f : -0.0f;
  }
  std::erase_if(logits, [](float x) { return x == std::numeric_limits<float>::infinity(); });
  std::vector<int32_t> expected;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > -std::numeric_limits<float>::infinity()) expected.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(expected.begin(), expected.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  EXPECT_EQ(tokens(candidates(logits, {}, {.temperature = 1e38})), expected);
  const auto first = candidates(logits, {}, {.temperature = 1e38, .top_k = 99});
  EXPECT_EQ(tokens(first), std::vector<int32_t>(expected.begin(), expected.begin() + 99));
}

TEST(SamplingTest, EachFilterKeepsWhatItPromises) {
  EXPECT_EQ(tokens(candidates(kLogits, {}, {.top_k = 2})), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(tokens(candidates(kLogits, {}, {.top_p = 0.6})), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(tokens(candidates(kLogits, {}, {.top_p = 0.01})), (std::vector<int32_t>{1}));
  EXPECT_EQ(tokens(candidates(kLogits, {}, {.min_p = 0.4})), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(tokens(candidates(kLogits, {}, {.temperature = 0})), (std::vector<int32_t>{1}));
  const auto cold = candidates(kLogits, {}, {.temperature = 0.5});
  EXPECT_NEAR(cold[0].probability / cold[1].probability, 4, 1e-5);
}

// Tokens that top_p would drop are not even ranked: the same candidates with the same bits.
TEST(SamplingTest, TopPIsThatOfAllCandidates) {
  std::vector<float> logits;
  const RandomStream random{6, 0};
  for (uint64_t i = 0; i < 4000; ++i) logits.push_back(static_cast<float>(random.bits(i) % 1000) / 40);
  for (const double temperature : {0.05, 0.2, 1.0, 30.0}) {
    std::vector<Candidate> all = candidates(logits, {}, {.temperature = temperature});
    double sum = 0;
    size_t kept = 0;
    while (sum < 0.9) sum += all[kept++].probability;
    all.resize(kept);
    double total = 0;
    for (const Candidate& c : all) total += c.probability;
    const auto list = candidates(logits, {}, {.temperature = temperature, .top_p = 0.9});
    ASSERT_EQ(tokens(list), tokens(all));
    for (size_t i = 0; i < list.size(); ++i) {
      EXPECT_NEAR(list[i].probability, all[i].probability / total, 1e-15);
    }
  }
}

TEST(SamplingTest, SeenTokensGetLessLikely) {
  const std::vector<float> logits = {2.0f, -1.0f, 1.5f};
  const std::vector<int32_t> seen = {0, 1, 0};
  const auto list = candidates(logits, seen, {.repetition_penalty = 2});
  EXPECT_EQ(tokens(list), (std::vector<int32_t>{2, 0, 1}));  // 1.5, 1.0, -2.0
}

TEST(SamplingTest, AUniformNumberPicksByCumulatedProbability) {
  EXPECT_EQ(sample(kLogits, {}, {}, 0.0), 1);
  EXPECT_EQ(sample(kLogits, {}, {}, 0.49), 1);
  EXPECT_EQ(sample(kLogits, {}, {}, 0.51), 3);
  EXPECT_EQ(sample(kLogits, {}, {}, 0.80), 0);
  EXPECT_EQ(sample(kLogits, {}, {}, 0.999999), 2);
}

TEST(SamplingTest, BadNumbersAreErrors) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_THROW(candidates(std::vector<float>{nan, nan}, {}, {}), ValueError);
  EXPECT_EQ(tokens(candidates(std::vector<float>{nan, 1.0f, -inf}, {}, {})), (std::vector<int32_t>{1}));
  EXPECT_EQ(candidates(std::vector<float>{0.0f, inf}, {}, {})[0].probability, 1.0);
  EXPECT_THROW(check({.temperature = -1}), ValueError);
  EXPECT_THROW(check({.temperature = nan}), ValueError);
  EXPECT_THROW(check({.top_k = -1}), ValueError);
  EXPECT_THROW(check({.top_p = 0}), ValueError);
  EXPECT_THROW(check({.min_p = 2}), ValueError);
  EXPECT_THROW(check({.repetition_penalty = 0}), ValueError);
}

}  // namespace
}  // namespace multihead
