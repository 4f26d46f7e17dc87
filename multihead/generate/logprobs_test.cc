#include "multihead/generate/logprobs.h"

#include <gtest/gtest.h>

#include <cmath>

#include "multihead/core/error.h"

namespace multihead {
namespace {

TEST(LogprobsTest, AreTheLogarithmsOfTheSoftmax) {
  const std::vector<float> logits = {0, std::log(2.0F), std::log(5.0F), std::log(2.0F)};
  const TokenLogprobs found = token_logprobs(logits, 1, 3);
  EXPECT_EQ(found.chosen.token, 1);
  EXPECT_NEAR(found.chosen.logprob, std::log(0.2), 1e-6);
  ASSERT_EQ(found.top.size(), 3);
  EXPECT_EQ(found.top[0].token, 2);
  EXPECT_NEAR(found.top[0].logprob, std::log(0.5), 1e-6);
  EXPECT_EQ(found.top[1].token, 1) << "of equal ones the smaller token first";
  EXPECT_EQ(found.top[2].token, 3);
  EXPECT_EQ(found.top[1].logprob, found.chosen.logprob);
}

TEST(LogprobsTest, TopIsAtMostTheVocabulary) {
  EXPECT_EQ(token_logprobs(std::vector<float>{1, 2}, 0, 20).top.size(), 2);
}

TEST(LogprobsTest, RefusesBadArguments) {
  const std::vector<float> logits = {1, 2};
  EXPECT_THROW(token_logprobs(logits, 2), ValueError);
  EXPECT_THROW(token_logprobs(logits, -1), ValueError);
  EXPECT_THROW(token_logprobs(logits, 0, -1), ValueError);
  EXPECT_THROW(token_logprobs(std::vector<float>{-INFINITY, -INFINITY}, 0), ValueError);
}

}  // namespace
}  // namespace multihead
