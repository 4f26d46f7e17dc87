#include "multihead/text/bleu.h"

#include <gtest/gtest.h>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"
#include "multihead/text/testing-inl.h"

namespace multihead::text {
namespace {

std::vector<std::string> strings(const Json& list) {
  std::vector<std::string> result;
  for (const Json& item : list.items()) result.push_back(item.as_string());
  return result;
}

std::string joined(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + word;
  return line;
}

// Made by tools/goldens/bleu.py.
TEST(BleuTest, FiguresAreSacrebleus) {
  const Json cases = golden("bleu.json");
  ASSERT_GT(cases.items().size(), 10u);
  for (const Json& one : cases.items()) {
    const auto hypotheses = strings(one.at("hypotheses")), references = strings(one.at("references"));
    const auto tokenized = strings(one.at("tokenized"));
    for (size_t i = 0; i < hypotheses.size(); ++i)
      EXPECT_EQ(joined(tokenize_13a(hypotheses[i])), tokenized[i]);
    const BleuScore score = bleu(hypotheses, references);
    EXPECT_NEAR(score.score, one.at("bleu").as_double(), 1e-10) << one.at("hypotheses").dump();
    EXPECT_NEAR(score.brevity_penalty, one.at("bp").as_double(), 1e-12);
    for (size_t n = 0; n < 4; ++n) {
      EXPECT_EQ(score.correct[n], one.at("counts").items()[n].as_int());
      EXPECT_EQ(score.total[n], one.at("totals").items()[n].as_int());
    }
    EXPECT_NEAR(chrf(hypotheses, references), one.at("chrf").as_double(), 1e-10)
        << one.at("hypotheses").dump();
  }
}

TEST(BleuTest, EqualTextsScoreAHundredAndOrderDoesNotMatter) {
  const std::vector<std::string> a = {"one two three four five", "\xFF\xFE bytes that are no text"},
                                 b = {a[1], a[0]};
  EXPECT_NEAR(bleu(a, a).score, 100, 1e-9);
  EXPECT_NEAR(chrf(a, a), 100, 1e-9);
  const std::vector<std::string> x = {"one two four five six", "bytes that are text"}, y = {x[1], x[0]};
  EXPECT_EQ(bleu(x, a).score, bleu(y, b).score);
  EXPECT_EQ(chrf(x, a), chrf(y, b));
}

TEST(BleuTest, SizesMustAgreeAndTheSignatureSaysWhatItIs) {
  const std::vector<std::string> one = {"a"}, two = {"a", "b"}, none;
  EXPECT_THROW(bleu(one, two), ValueError);
  EXPECT_THROW(chrf(two, one), ValueError);
  EXPECT_THROW(bleu(none, none), ValueError);
  EXPECT_EQ(bleu_signature().rfind("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:multihead-", 0), 0u);
  EXPECT_EQ(chrf_signature().rfind("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|", 0), 0u);
}

}  // namespace
}  // namespace multihead::text
