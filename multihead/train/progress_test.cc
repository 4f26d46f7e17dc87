#include "multihead/train/progress.h"

#include <gtest/gtest.h>

#include <sstream>

namespace multihead::train {
namespace {

const StepReport kStep{.step = 20,
                       .steps = 100,
                       .loss = 1.5,
                       .learning_rate = 1e-3,
                       .tokens_per_second = 23456,
                       .seconds = 30,
                       .seconds_left = 125};

TEST(ProgressTest, LinesElsewhereThanOnATerminal) {
  std::ostringstream out;
  ProgressPrinter printer(out);
  printer.on_start(10, 100);
  printer.on_step(kStep);
  StepReport soon = kStep;
  soon.step = 21, soon.seconds = 31;
  printer.on_step(soon);  // less than seconds_per_line later
  printer.on_evaluation({20, 2.0, true});
  EXPECT_EQ(out.str(),
            "resumed at step 10 of 100\n"
            "step 20/100  loss 1.5000  lr 1.00e-03  23.5k tokens/s  2m05s left\n"
            "step 20/100  validation loss 2.0000  perplexity 7.39  (best)\n");
}

TEST(ProgressTest, AJobSaysWhatARankHolds) {
  std::ostringstream out;
  ProgressPrinter(out).on_job({.ranks = 4, .threads = 1, .shards = 8, .bytes = 2.5e9});
  EXPECT_EQ(out.str(),
            "4 ranks of 1 thread, 8 shards a step; weights, gradients and optimizer take 2.5GB a rank\n");
}

TEST(ProgressTest, ATerminalLineRenewsItself) {
  std::ostringstream out;
  ProgressPrinter printer(out, {.terminal = true});
  printer.on_step(kStep);
  EXPECT_EQ(out.str().front(), '\r');
  EXPECT_EQ(out.str().find('\n'), std::string::npos);
  printer.on_warning("disk full");
  EXPECT_TRUE(out.str().ends_with("\r\x1b[Kwarning: disk full\n"));
}

TEST(ProgressTest, QuietStillWarns) {
  std::ostringstream out;
  ProgressPrinter printer(out, {.quiet = true});
  printer.on_start(10, 100);
  printer.on_step(kStep);
  printer.on_evaluation({20, 2.0, true});
  printer.on_warning("disk full");
  EXPECT_EQ(out.str(), "warning: disk full\n");
}

TEST(ProgressTest, TimesAndCounts) {
  EXPECT_EQ(duration_text(8.4), "8s");
  EXPECT_EQ(duration_text(125), "2m05s");
  EXPECT_EQ(duration_text(3 * 3600 + 7 * 60), "3h07m");
  EXPECT_EQ(duration_text(-1), "0s");
  EXPECT_EQ(count_text(950), "950");
  EXPECT_EQ(count_text(23456), "23.5k");
  EXPECT_EQ(count_text(1.2e6), "1.2M");
}

}  // namespace
}  // namespace multihead::train
