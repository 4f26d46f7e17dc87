#include "multihead/train/scores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "multihead/core/error.h"

namespace multihead::train {
namespace {

using ::testing::ElementsAre;

// sklearn.metrics.precision_recall_fscore_support of these gives the same numbers.
TEST(ScoresTest, LabelsAreReportedAsByScikitLearn) {
  const std::vector<int64_t> guesses = {0, 0, 1, 1, 2, 0, 2}, labels = {0, 1, 1, 1, 2, 2, 0};
  const LabelReport report = report_labels(guesses, labels, 4);  // the last label does not occur
  EXPECT_THAT(report.confusion, ElementsAre(ElementsAre(1, 0, 1, 0), ElementsAre(1, 2, 0, 0),
                                            ElementsAre(1, 0, 1, 0), ElementsAre(0, 0, 0, 0)));
  EXPECT_DOUBLE_EQ(report.labels[0].precision, 1.0 / 3);
  EXPECT_DOUBLE_EQ(report.labels[0].recall, 0.5);
  EXPECT_DOUBLE_EQ(report.labels[0].f1, 0.4);
  EXPECT_DOUBLE_EQ(report.labels[1].f1, 0.8);
  EXPECT_EQ(report.labels[1].support, 3);
  EXPECT_EQ(report.labels[3].f1, 0);
  EXPECT_DOUBLE_EQ(report.accuracy, 4.0 / 7);
  EXPECT_NEAR(report.macro.f1, 0.566666666666666667, 1e-15);
  EXPECT_NEAR(report.weighted.f1, 0.6, 1e-15);
  EXPECT_EQ(report.weighted.support, 7);
  EXPECT_EQ(to_json(report, {"a", "b", "c", "d"}).at("labels").items()[1].at("recall").as_double(), 2.0 / 3);
}

// ndcg_score(k=10) and label_ranking_average_precision_score of scikit-learn.
TEST(ScoresTest, RankingsAreScoredAsByScikitLearn) {
  RankingScore score;
  const std::vector<float> scores = {0.1F, 0.9F, 0.5F, 0.9F};
  EXPECT_EQ(score.add(scores, std::vector<double>{0, 0, 1, 0}), 3);
  EXPECT_NEAR(score.mrr(), 1.0 / 3, 1e-15);
  EXPECT_NEAR(score.ndcg_at_10(), 0.5, 1e-15);
  EXPECT_EQ(score.recall(1), 0);
  EXPECT_EQ(score.recall(3), 1);
  EXPECT_EQ(score.add(scores, std::vector<double>{3, 1, 0, 0}), 1);  // of equal scores the mean of all orders
  EXPECT_NEAR(score.ndcg_at_10(), (0.5 + 0.5804283459168915) / 2, 1e-12);
  EXPECT_NEAR(score.mrr(), (1.0 / 3 + 0.75) / 2, 1e-12);
  EXPECT_EQ(score.recall(1), 0.125);
  EXPECT_EQ(score.recall(3), 0.75);
  EXPECT_EQ(score.recall(10), 1);
  EXPECT_EQ(score.add(scores, std::vector<double>{0, 0, 0, 0}), 0);
  EXPECT_EQ(score.queries(), 2);
}

// A model that knows nothing gets no more for the right document standing first in the file.
TEST(ScoresTest, EqualScoresDoNotKnowTheOrderOfTheFile) {
  const std::vector<float> scores = {1, 1, 1, 0.5F, 1};
  for (const std::vector<double>& gains : {std::vector<double>{1, 0, 0, 2, 0}, {0, 0, 0, 2, 1}}) {
    RankingScore score;
    EXPECT_EQ(score.add(scores, gains), 1);
    EXPECT_NEAR(score.ndcg_at_10(), 0.537493329291921, 1e-12);
    EXPECT_NEAR(score.mrr(), (1 + 1 / 2.0 + 1 / 3.0 + 1 / 4.0) / 4, 1e-12);
    EXPECT_NEAR(score.recall(1), 1 / 8.0, 1e-12);
    EXPECT_NEAR(score.recall(3), 3 / 8.0, 1e-12);
    EXPECT_NEAR(score.recall(10), 1, 1e-12);
  }
  RankingScore two;  // of three: (1 + 1 + 1/2) / 3
  two.add(std::vector<float>{0, 0, 0}, std::vector<double>{0, 1, 1});
  EXPECT_NEAR(two.mrr(), 2.5 / 3, 1e-12);
}

// f1_score(average="micro"), (average="macro") and accuracy_score of scikit-learn.
TEST(ScoresTest, SetsOfLabelsAreScoredAsByScikitLearn) {
  const std::vector<uint8_t> truth = {1, 0, 1, 0, 1, 0, 1, 1, 0}, guesses = {1, 0, 0, 0, 1, 1, 1, 1, 0};
  const LabelSetReport report = report_label_sets(guesses, truth, 3);
  EXPECT_DOUBLE_EQ(report.micro.f1, 0.8);
  EXPECT_DOUBLE_EQ(report.macro.f1, 2.0 / 3);
  EXPECT_DOUBLE_EQ(report.accuracy, 1.0 / 3);
  EXPECT_EQ(report.labels[2].f1, 0);
  EXPECT_EQ(report.labels[0].support, 2);
  EXPECT_DOUBLE_EQ(mean_squared_error(std::vector<double>{1, 4}, std::vector<double>{2, 2}), 2.5);
}

TEST(ScoresTest, CorrelationsAreThoseOfScipy) {
  const std::vector<double> a = {1, 2, 3, 4, 5}, b = {5, 6, 7, 8, 7};
  EXPECT_NEAR(spearman(a, b), 0.8207826816681233, 1e-15);
  EXPECT_NEAR(pearson(a, b), 0.8320502943378437, 1e-15);
  const double none = spearman(a, std::vector<double>(5, 1));
  EXPECT_TRUE(std::isnan(none) && !std::signbit(none));
  EXPECT_THROW(pearson(a, {}), ValueError);
}

}  // namespace
}  // namespace multihead::train
