#include "multihead/train/metrics.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "multihead/core/files.h"
#include "multihead/testing/files.h"
#include "multihead/train/run_folder.h"

namespace multihead::train {
namespace {

// Its checkpoint was written before the evaluation of its step.
TEST(MetricsWriterTest, AnEvaluationThatIsRepeatedStandsOnce) {
  const TemporaryFolder folder;
  const auto lines = [&](const char* name) {
    const std::string text = read_file(folder / name, 1 << 20, Links::refuse);
    return std::count(text.begin(), text.end(), '\n');
  };
  {
    MetricsWriter first(folder.path());
    first.on_start(0, 9);
    first.on_evaluation({.step = 0, .loss = 2});
    first.on_evaluation({.step = 5, .loss = 1});
  }
  MetricsWriter second(folder.path());
  second.on_start(5, 9);
  second.on_evaluation({.step = 5, .loss = 1});
  EXPECT_EQ(lines(kMetricsFile), 2);
  second.on_evaluation({.step = 9, .loss = 0.5});
  EXPECT_EQ(lines(kMetricsFile), 3);
  EXPECT_EQ(lines(kMetricsTable), 4);
}

TEST(MetricsWriterTest, TheTableHasTheFiguresOfTheEvaluations) {
  const TemporaryFolder folder;
  const auto table = [&] { return read_file(folder / kMetricsTable, 1 << 20, Links::refuse); };
  const std::string columns =
      "step,tokens,seconds,train/loss,train/learning_rate,train/grad_norm,train/tokens_per_second,"
      "eval/loss,eval/perplexity";
  const EvalReport labels = {.step = 5, .loss = 0, .metrics = {{"accuracy", 0.5}, {"macro_f1", 0.25}}};
  const std::string first = columns + ",eval/accuracy,eval/macro_f1\n5,,,,,,,0.0,1.0,0.5,0.25\n";
  {
    MetricsWriter writer(folder.path());
    writer.on_start(0, 9);
    writer.on_evaluation(labels);
    EXPECT_EQ(table(), first);
  }
  {
    MetricsWriter resumed(folder.path());
    resumed.on_start(5, 9);
    EXPECT_EQ(table(), first);
    resumed.on_step({.step = 6, .loss = 1});
    EXPECT_EQ(table(), first + "6,0,0.0,1.0,0.0,0.0,0.0,,,,\n");
  }
  MetricsWriter numbers(folder.path());
  numbers.on_start(0, 9);
  numbers.on_evaluation(
      {.step = 0, .loss = 2, .metrics = {{"pearson", std::numeric_limits<double>::quiet_NaN()}}});
  EXPECT_EQ(table(), columns + ",eval/pearson\n0,,,,,,,2.0,,\n");
}

}  // namespace
}  // namespace multihead::train
