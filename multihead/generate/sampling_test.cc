#include "multihead/generate/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "multihead/core/error.h"

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

TEST(SamplingTest, EachFilterKeepsWhatItPromises) {
  EXPECT_EQ(tokens(candidates(kLogits, {}, {.top_k = 2})), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(tokens(candidates(kLogits, {}, {.top_p = 0.6})), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(tokens(candidates(kLogits, {}, {.top_p = 0.01})), (std::vector<int32_t>{1}));
  EXPECT_EQ(tokens(candidates(kLogits, {}, {.min_p = 0.4})), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(tokens(candidates(kLogits, {}, {.temperature = 0})), (std::vector<int32_t>{1}));
  const auto cold = candidates(kLogits, {}, {.temperature = 0.5});
  EXPECT_NEAR(cold[0].probability / cold[1].probability, 4, 1e-5);
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
