#include "multihead/distributed/watch-inl.h"

#include <gtest/gtest.h>

namespace multihead::distributed {
namespace {

// Messages leave and none come.
MpiFunctions silent_functions() {
  static int request;
  return {.layout = MpiFunctions::kLayout,
          .rank = 1,
          .size = 2,
          .any_thread = 1,
          .library = "none",
          .isend = [](const void*, int, int, int, int) -> void* { return &request; },
          .irecv = [](void*, int, int, int, int) -> void* { return &request; },
          .test = [](void*) { return 0; },
          .cancel = [](void*) {},
          .abort = [](int code) { _exit(code + 40); },
          .finalize = [] {}};
}

std::vector<Place> places() {
  Place other = this_place();
  other.host[0] = '\0';  // elsewhere
  return {other, this_place()};
}

TEST(WatchTest, SlowNamesARankThatStallsWhileItLives) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        const MpiFunctions functions = silent_functions();
        Watch watch(functions, places(), 60, 0.1);
        std::this_thread::sleep_for(std::chrono::seconds(5));
      },
      testing::ExitedWithCode(41), "rank 1: rank 1 .* has neither sent nor received for 0.1 seconds");
}

TEST(WatchTest, WhoWaitsForOthersDoesNotStall) {
  const MpiFunctions functions = silent_functions();
  Watch watch(functions, places(), 60, 0.1);
  for (int i = 0; i < 50; ++i) {
    watch.touch();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(watch.lost(), -1);
}

}  // namespace
}  // namespace multihead::distributed
