#include "multihead/core/memory/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "multihead/core/error.h"
#include "multihead/core/memory/storage.h"
#include "multihead/testing/files.h"

namespace multihead {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

// /proc and /sys of a machine that is not there.
class Machine {
 public:
  Machine& file(const std::string& path, const std::string& content) {
    const std::filesystem::path whole = folder_ / path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << content;
    return *this;
  }
  int64_t left() const { return available_memory(folder_.path()); }

 private:
  TemporaryFolder folder_;
};

const char* const kMemory =
    "MemTotal:       24684096 kB\nMemFree:        12277748 kB\nMemAvailable:   2000 kB\nSwapTotal: 900 kB\n"
    "SwapFree:            500 kB\n";

TEST(AvailableMemoryTest, WhatTheMachineHasLeftAndItsSwap) {
  EXPECT_EQ(Machine().file("proc/meminfo", kMemory).left(), 2500 * 1024);
  EXPECT_EQ(Machine().file("proc/meminfo", "MemAvailable:   7 kB").left(), 7 * 1024);
  EXPECT_EQ(Machine().left(), kUnknown);
  for (const char* nonsense :
       {"", "\n\n", "MemAvailable:", "MemAvailable: lots kB\n", "xMemAvailable: 3 kB\n"}) {
    EXPECT_EQ(Machine().file("proc/meminfo", nonsense).left(), kUnknown) << nonsense;
  }
}

TEST(AvailableMemoryTest, TheTightestControlGroupCounts) {
  Machine machine;
  machine.file("proc/meminfo", kMemory).file("proc/self/cgroup", "0::/outer/inner\n");
  machine.file("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  machine.file("sys/fs/cgroup/outer/inner/memory.current", "4096\n");
  EXPECT_EQ(machine.left(), 2500 * 1024);
  machine.file("sys/fs/cgroup/outer/memory.max", "1000000\n");
  machine.file("sys/fs/cgroup/outer/memory.current", "300000\n");
  EXPECT_EQ(machine.left(), 700000);
  machine.file("sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 100000\nactive_file 7\n");
  EXPECT_EQ(machine.left(), 800000);
  machine.file("sys/fs/cgroup/memory.max", "10\n").file("sys/fs/cgroup/memory.current", "20\n");
  EXPECT_EQ(machine.left(), 0);
}

TEST(AvailableMemoryTest, ControlGroupsOfTheFirstVersion) {
  Machine machine;
  machine.file("proc/meminfo", kMemory)
      .file("proc/self/cgroup", "9:cpu:/\n4:hugetlb,memory:/not/mounted\n0::/\n");
  const std::string group = "sys/fs/cgroup/memory/";  // as inside a container: its own group is the root
  machine.file(group + "memory.limit_in_bytes", "9223372036854771712\n");
  machine.file(group + "memory.usage_in_bytes", "5000\n");
  EXPECT_EQ(machine.left(), 2500 * 1024);
  machine.file(group + "memory.limit_in_bytes", "50000\n")
      .file(group + "memory.stat", "total_inactive_file 1000\n");
  EXPECT_EQ(machine.left(), 46000);
}

TEST(AvailableMemoryTest, RefusalsNameBothNumbers) {
  EXPECT_GT(available_memory(), 0);
  EXPECT_NO_THROW(check_memory(4096, "test: a page"));
  EXPECT_THAT([] { check_memory(1.25e18, "test: the moon", "try a smaller one"); },
              ThrowsMessage<MemoryError>(AllOf(HasSubstr("test: the moon needs 1.3 EB, but only "),
                                               HasSubstr("B of memory are available; try a smaller one"))));
}

TEST(AvailableMemoryTest, ATensorBeyondIt) {
  if (available_memory() == kUnknown) GTEST_SKIP() << "this system does not say";
  const MemoryStats before = memory_stats();
  EXPECT_THAT([] { Storage(size_t{1} << 47); },
              ThrowsMessage<MemoryError>(HasSubstr("tensor: a block needs 140.7 TB")));
  EXPECT_EQ(memory_stats().live_bytes, before.live_bytes);
  EXPECT_EQ(memory_stats().peak_bytes, before.peak_bytes);
}

}  // namespace
}  // namespace multihead
