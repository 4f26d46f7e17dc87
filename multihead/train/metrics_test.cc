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

}  // namespace
}  // namespace multihead::train
