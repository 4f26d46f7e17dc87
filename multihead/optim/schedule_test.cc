#include "multihead/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "multihead/core/error.h"

namespace multihead::optim {
namespace {

TEST(ScheduleTest, WarmupIsLinearAndReachesTheRate) {
  const Schedule s{.lr = 0.5, .warmup_steps = 7};
  EXPECT_DOUBLE_EQ(s.at(0), 0.5 / 7);
  EXPECT_DOUBLE_EQ(s.at(6), 0.5);
  EXPECT_DOUBLE_EQ(s.at(7), 0.5);
  EXPECT_DOUBLE_EQ(s.at(1000000), 0.5);
}

TEST(ScheduleTest, LinearEndsAtItsRatioAndStays) {
  const Schedule s{
      .kind = ScheduleKind::linear, .lr = 2, .warmup_steps = 3, .total_steps = 13, .final_ratio = 0.25};
  EXPECT_DOUBLE_EQ(s.at(3), 2);
  EXPECT_DOUBLE_EQ(s.at(8), 2 * (0.25 + 0.75 * 0.5));
  EXPECT_DOUBLE_EQ(s.at(13), 0.5);
  EXPECT_DOUBLE_EQ(s.at(99), 0.5);
}

TEST(ScheduleTest, CosineIsHalfwayInTheMiddleAndNeverRises) {
  const Schedule s{.kind = ScheduleKind::cosine, .lr = 1, .warmup_steps = 5, .total_steps = 25};
  EXPECT_DOUBLE_EQ(s.at(5), 1);
  EXPECT_NEAR(s.at(15), 0.5, 1e-15);
  EXPECT_NEAR(s.at(25), 0, 1e-15);
  for (int64_t step = 5; step < 30; ++step) EXPECT_LE(s.at(step + 1), s.at(step)) << step;
}

TEST(ScheduleTest, WsdIsConstantUntilTheLastSteps) {
  const Schedule s{
      .kind = ScheduleKind::wsd, .lr = 2, .warmup_steps = 4, .total_steps = 100, .final_ratio = 0.1};
  EXPECT_DOUBLE_EQ(s.at(1), 1);
  for (const int64_t step : {4, 50, 80}) EXPECT_DOUBLE_EQ(s.at(step), 2);
  EXPECT_NEAR(s.at(85), 2 * (0.1 + 0.9 * (1 - std::sqrt(0.25))), 1e-14);
  for (const int64_t step : {100, 1000}) EXPECT_DOUBLE_EQ(s.at(step), 0.2);
  for (int64_t step = 80; step < 100; ++step) EXPECT_LT(s.at(step + 1), s.at(step)) << step;
  // The steps before the decay are the same in a longer run.
  const Schedule longer{
      .kind = ScheduleKind::wsd, .lr = 2, .warmup_steps = 4, .total_steps = 400, .final_ratio = 0.1};
  for (int64_t step = 0; step <= 80; ++step) EXPECT_EQ(longer.at(step), s.at(step));
}

TEST(ScheduleTest, NoamPeaksAtTheEndOfWarmup) {
  const Schedule s{.kind = ScheduleKind::noam, .lr = 1, .warmup_steps = 2000, .embed_dim = 256};
  EXPECT_DOUBLE_EQ(s.at(0), std::pow(2000, -1.5) / 16);
  EXPECT_NEAR(s.at(1999), 1 / (16 * std::sqrt(2000.0)), 1e-15);
  EXPECT_NEAR(s.at(7999), s.at(1999) / 2, 1e-15);
  EXPECT_GT(s.at(1999), s.at(1998));
  EXPECT_GT(s.at(1999), s.at(2000));
}

TEST(ScheduleTest, RefusesWhatMakesNoSense) {
  for (const double lr : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THROW(check(Schedule{.lr = lr}), ValueError) << lr;
  }
  EXPECT_THROW(check(Schedule{.warmup_steps = -1}), ValueError);
  EXPECT_THROW(check(Schedule{.kind = ScheduleKind::cosine}), ValueError);
  EXPECT_THROW(Schedule{.kind = ScheduleKind::cosine}.at(3), ValueError);
  EXPECT_THROW(check(Schedule{.kind = ScheduleKind::linear, .total_steps = 5, .final_ratio = 1.5}),
               ValueError);
  EXPECT_THROW(check(Schedule{.kind = ScheduleKind::noam, .warmup_steps = 5}), ValueError);
  EXPECT_THROW(check(Schedule{.kind = ScheduleKind::noam, .embed_dim = 8}), ValueError);
  EXPECT_THROW(check(Schedule{.kind = ScheduleKind::wsd}), ValueError);
  EXPECT_THROW(check(Schedule{.kind = ScheduleKind::wsd, .warmup_steps = 9, .total_steps = 10}), ValueError);
  EXPECT_NO_THROW(check(Schedule{.kind = ScheduleKind::wsd, .warmup_steps = 8, .total_steps = 10}));
  for (const double share : {0.0, 1.5, std::nan("")}) {
    EXPECT_THROW(check(Schedule{.kind = ScheduleKind::wsd, .total_steps = 9, .decay_share = share}),
                 ValueError);
  }
  EXPECT_THROW(Schedule{}.at(-1), ValueError);
  EXPECT_NO_THROW(check(Schedule{}));
}

TEST(ScheduleTest, NamesGoBothWays) {
  for (const auto kind : {ScheduleKind::constant, ScheduleKind::linear, ScheduleKind::cosine,
                          ScheduleKind::noam, ScheduleKind::wsd}) {
    EXPECT_EQ(parse_schedule(name(kind)), kind);
  }
  EXPECT_THROW(parse_schedule("cosin"), ValueError);
}

}  // namespace
}  // namespace multihead::optim
