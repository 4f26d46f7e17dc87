#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "multihead/testing/processor_time.h"
#include "multihead/text/tokenizer/token_finder-inl.h"

namespace multihead::text {
namespace {

struct Token {
  std::string text;
  bool plain = true;
};

// By definition: at every place the longest token, then on after it.
std::vector<std::pair<size_t, int32_t>> expected(const std::vector<Token>& tokens, const std::string& text,
                                                 bool plain_only) {
  std::vector<std::pair<size_t, int32_t>> result;
  for (size_t at = 0; at < text.size();) {
    int32_t best = -1;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const bool here =
          (tokens[i].plain || !plain_only) && text.compare(at, tokens[i].text.size(), tokens[i].text) == 0;
      if (here && (best < 0 || tokens[i].text.size() > tokens[best].text.size()))
        best = static_cast<int32_t>(i);
    }
    if (best >= 0) result.emplace_back(at, best);
    at += best < 0 ? 1 : tokens[best].text.size();
  }
  return result;
}

std::vector<std::pair<size_t, int32_t>> found(const std::vector<Token>& tokens, const std::string& text,
                                              bool plain_only) {
  TokenFinder finder;
  for (size_t i = 0; i < tokens.size(); ++i)
    finder.add(tokens[i].text, static_cast<int32_t>(i), tokens[i].plain);
  finder.finish();
  TokenScan scan(finder, text, plain_only);
  std::vector<std::pair<size_t, int32_t>> result;
  for (auto at = scan.next(0); at.token >= 0; at = scan.next(at.begin + tokens[at.token].text.size())) {
    result.emplace_back(at.begin, at.token);
  }
  return result;
}

TEST(TokenFinderTest, FindsWhatTheDefinitionFinds) {
  std::mt19937 rng(3);
  for (int round = 0; round < 400; ++round) {
    const unsigned letters = 1 + rng() % 3;
    const auto random_text = [&](size_t size) {
      std::string text(size, 'a');
      for (char& c : text) c = static_cast<char>('a' + rng() % letters);
      return text;
    };
    std::vector<Token> tokens;
    std::set<std::string> seen;
    for (unsigned i = rng() % 7; i > 0; --i) {
      const std::string token = random_text(1 + rng() % 6);
      if (seen.insert(token).second) tokens.push_back({token, rng() % 2 == 0});
    }
    const std::string text = random_text(rng() % 60);
    for (const bool plain_only : {false, true}) {
      ASSERT_EQ(found(tokens, text, plain_only), expected(tokens, text, plain_only)) << text;
    }
  }
}

TEST(TokenFinderTest, StretchesOfALongTextJoin) {
  const std::vector<Token> tokens = {{"<a>"}, {"<a><b>"}, {std::string(70'000, 'x')}};
  std::string text(65'530, ' ');
  text += "<a><b>";  // across the end of the first stretch
  text.append(140'001, 'x').append("<a>").append(69'999, 'x').append("<a><b");
  EXPECT_EQ(found(tokens, text, false), expected(tokens, text, false));
  EXPECT_EQ(found(tokens, text, false).size(), 5u);
}

TEST(TokenFinderTest, TimeIsLinearWhateverTheTokens) {
  std::vector<Token> tokens;
  for (int i = 0; i < 1000; ++i) tokens.push_back({std::string(1000, 'a') + std::to_string(i)});
  for (int i = 0; i < 1000; ++i) tokens.push_back({std::to_string(i) + std::string(1000, 'a')});
  tokens.push_back({"a"});
  const double seconds = testing::processor_seconds(
      [&] { EXPECT_EQ(found(tokens, std::string(2'000'000, 'a'), false).size(), 2'000'000u); });
  EXPECT_LT(seconds, 10 * testing::kSlowdown);
}

}  // namespace
}  // namespace multihead::text
