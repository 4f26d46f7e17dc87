#include "multihead/core/threads/parallel.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sys/resource.h>

#include <grp.h>
#include <signal.h>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/core/threads/interrupt.h"
#include "multihead/core/threads/parallel-inl.h"
#include "multihead/core/threads/threads.h"
#include "multihead/testing/thread_limit.h"

namespace multihead {
namespace {

struct ThreadCount {
  explicit ThreadCount(int n) : before(num_threads()) { set_num_threads(n); }
  ~ThreadCount() { set_num_threads(before); }
  int before;
};

TEST(ParallelTest, EveryIndexRunsOnceAtAnyThreadCount) {
  for (const int threads : {1, 2, 3, 8}) {
    const ThreadCount scope(threads);
    for (const int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
      parallel_for(count, [&](int64_t i, int worker) {
        ASSERT_GE(worker, 0);
        ASSERT_LT(worker, threads);
        ++seen[static_cast<size_t>(i)];
      });
      for (const auto& n : seen) EXPECT_EQ(n, 1);
    }
  }
}

TEST(ParallelTest, RangesCoverWithoutOverlap) {
  const ThreadCount scope(3);
  for (const int64_t count : {0, 1, 10, 97, 1000}) {
    std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
    parallel_ranges(count, 13, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
    });
    for (const auto& n : seen) EXPECT_EQ(n, 1);
  }
}

TEST(ParallelTest, AnExceptionReachesTheCallerAndThePoolLives) {
  const ThreadCount scope(3);
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(parallel_for(50,
                              [](int64_t i, int) {
                                if (i == 17) throw std::runtime_error("seventeen");
                              }),
                 std::runtime_error);
    std::atomic<int64_t> sum = 0;
    parallel_for(50, [&](int64_t i, int) { sum += i; });
    EXPECT_EQ(sum, 49 * 25);
  }
}

TEST(ParallelTest, AWorkerStaysAwakeForProgramsThatComeBack) {
  using std::chrono::milliseconds;
  Patience patience;
  Patience::Clock::time_point now{};
  const auto awake_after = [&](milliseconds slept, bool crowded = false) {
    now += slept;
    patience.work_came(now, slept, crowded);
    return patience.awake();
  };
  now += Patience::kCrowdedFor;
  EXPECT_EQ(patience.awake(), Patience::kShort);
  EXPECT_EQ(awake_after(milliseconds(10)), Patience::kShort) << "an idle program";
  EXPECT_EQ(awake_after(milliseconds(1)), Patience::kLong);
  EXPECT_EQ(awake_after(milliseconds(0)), Patience::kLong) << "work came before the sleep";
  EXPECT_EQ(awake_after(milliseconds(0), true), Patience::kShort) << "another program wants the processor";
  EXPECT_EQ(awake_after(milliseconds(1)), Patience::kShort);
  now += Patience::kCrowdedFor;
  EXPECT_EQ(awake_after(milliseconds(1)), Patience::kLong);
  EXPECT_EQ(awake_after(milliseconds(3)), Patience::kShort);
}

// More threads than cores: workers arrive late, in the middle of a later region, or not at all.
TEST(ParallelTest, AnInterruptEndsACallAndNoOther) {
  for (const int threads : {1, 3}) {
    const ThreadCount scope_of_threads(threads);
    std::atomic<int64_t> ran = 0;
    int64_t asked = 0;
    const auto body = [&](int64_t, int) {
      ++ran;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    };
    {
      const InterruptScope scope([&] {
        if (++asked == 5) throw std::runtime_error("enough");
      });
      EXPECT_THROW(parallel_for(100'000, body), std::runtime_error) << threads;
    }
    EXPECT_EQ(asked, 5);
    EXPECT_LT(ran, 90'000);
    parallel_for(7, body);
    EXPECT_EQ(asked, 5);
  }
}

TEST(ParallelTest, EveryThreadRoundsAsTheCaller) {
  const ThreadCount scope(3);
  volatile float one = 1, three = 3;
  std::vector<float> thirds(300);
  const auto compute = [&] {
    parallel_for(std::ssize(thirds), [&](int64_t i, int) { thirds[static_cast<size_t>(i)] = one / three; });
  };
  compute();
  for (const int rounding : {FE_UPWARD, FE_TOWARDZERO, FE_TONEAREST}) {
    std::fesetround(rounding);
    const float expected = one / three;
    for (int round = 0; round < 20; ++round) {
      compute();
      for (const float third : thirds) ASSERT_EQ(third, expected) << rounding;
    }
  }
}

TEST(ParallelTest, WorkersTakeNoSignals) {
  const pid_t child = fork();
  if (child == 0) {
    set_num_threads(3);
    parallel_for(100, [](int64_t, int) {});
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &term, nullptr);
    kill(getpid(), SIGTERM);
    int came = 0;
    sigwait(&term, &came);
    _exit(came == SIGTERM ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(ParallelTest, RegionsBackToBackNeverMixTheirIndices) {
  const ThreadCount scope(8);
  for (int64_t region = 0; region < 5000; ++region) {
    const int64_t count = 1 + region % 13;
    const int64_t bad = region % 7 == 0 ? region % count : -1;
    std::atomic<int64_t> sum{0};
    const auto body = [&](int64_t i, int) {
      if (i == bad) throw std::runtime_error("bad");
      sum.fetch_add(region * 100 + i, std::memory_order_relaxed);
    };
    if (bad >= 0) {
      EXPECT_THROW(parallel_for(count, body), std::runtime_error);
    } else {
      parallel_for(count, body);
      ASSERT_EQ(sum.load(), count * region * 100 + count * (count - 1) / 2) << "region " << region;
    }
  }
}

TEST(ParallelTest, NestedCallsRunOnTheirThread) {
  const ThreadCount scope(2);
  std::atomic<int> total = 0;
  parallel_for(4, [&](int64_t, int outer) {
    parallel_for(5, [&](int64_t, int inner) {
      EXPECT_EQ(inner, outer);
      ++total;
    });
  });
  EXPECT_EQ(total, 20);
}

// Another thread has the pool when the outer loop begins, and has left it when the inner one does.
TEST(ParallelTest, NestedCallsOfALoopThatRunsAloneDoToo) {
  const ThreadCount scope(4);
  std::atomic<bool> other_runs = false, begun = false, other_is_done = false;
  std::thread other([&] {
    parallel_for(2, [&](int64_t, int) {
      other_runs = true;
      while (!begun) std::this_thread::yield();
    });
    other_is_done = true;
  });
  while (!other_runs) std::this_thread::yield();
  parallel_for(2, [&](int64_t, int outer) {
    begun = true;
    while (!other_is_done) std::this_thread::yield();
    EXPECT_THROW(set_num_threads(2), ValueError);
    const std::thread::id own = std::this_thread::get_id();
    parallel_for(64, [&](int64_t, int inner) {
      EXPECT_EQ(inner, outer);
      EXPECT_EQ(std::this_thread::get_id(), own);
      std::this_thread::yield();
    });
  });
  other.join();
  std::atomic<int> total = 0;
  parallel_for(5, [&](int64_t, int) { ++total; });
  EXPECT_EQ(total, 5);
}

TEST(ParallelTest, ManyUserThreadsAtOnce) {
  const ThreadCount scope(2);
  std::vector<std::thread> users;
  std::atomic<int64_t> total = 0;
  for (int u = 0; u < 8; ++u) {
    users.emplace_back([&] {
      for (int round = 0; round < 200; ++round) parallel_for(10, [&](int64_t i, int) { total += i; });
    });
  }
  for (std::thread& user : users) user.join();
  EXPECT_EQ(total, 8 * 200 * 45);
}

TEST(ParallelTest, AForkedChildMakesItsOwnWorkers) {
  const ThreadCount scope(2);
  parallel_for(4, [](int64_t, int) {});
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int64_t> sum = 0;
    parallel_for(100, [&](int64_t i, int) { sum += i; });
    _exit(sum == 4950 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(ParallelTest, ThreadsAtWorkAreNotChanged) {
  const int before = num_threads();
  set_num_threads(3);
  parallel_for(5, [&](int64_t, int) { EXPECT_THROW(set_num_threads(2), ValueError); });
  EXPECT_EQ(num_threads(), 3);
  set_num_threads(before);
}

TEST(ParallelTest, ThreadCountIsChecked) {
  EXPECT_THROW(set_num_threads(0), ValueError);
  EXPECT_THROW(set_num_threads(1000000), ValueError);
}

int64_t sum_of_a_region(int64_t count) {
  std::atomic<int64_t> sum = 0;
  parallel_for(count, [&](int64_t i, int worker) {
    EXPECT_LT(worker, num_threads());
    sum += i;
  });
  return sum;
}

TEST(ParallelTest, ThreadsThatCannotBeMadeAreDoneWithout) {
  for (const auto error : {ThreadLimit::Error::system, ThreadLimit::Error::memory}) {
    for (int threads = 1; threads <= 8; ++threads) {
      for (int allowed = 0; allowed <= threads; ++allowed) {
        const ThreadCount other(threads + 1);  // whatever pool there is goes
        sum_of_a_region(2);
        const ThreadLimit limit(allowed, error);
        const ThreadCount scope(threads);
        for (const int64_t count : {1, 2, 7, 100}) EXPECT_EQ(sum_of_a_region(count), count * (count - 1) / 2);
        EXPECT_EQ(missing_threads(), std::max(0, threads - 1 - allowed)) << threads << " " << allowed;
        EXPECT_EQ(num_threads(), threads);
        EXPECT_THROW(parallel_for(50, [](int64_t i, int) { MH_CHECK(i != 17, ValueError, "seventeen"); }),
                     ValueError);
        EXPECT_EQ(sum_of_a_region(50), 49 * 25);
      }
    }
  }
}

TEST(ParallelTest, SettingTheThreadsTriesTheMissingOnesAgain) {
  const ThreadCount scope(4);
  sum_of_a_region(9);
  {
    const ThreadLimit limit(1, ThreadLimit::Error::system);
    set_num_threads(5);
    sum_of_a_region(9);
    sum_of_a_region(9);  // and not in every region
    EXPECT_EQ(missing_threads(), 3);
  }
  sum_of_a_region(9);
  EXPECT_EQ(missing_threads(), 3);
  set_num_threads(5);
  EXPECT_EQ(sum_of_a_region(9), 36);
  EXPECT_EQ(missing_threads(), 0);
}

// A child has no workers, and no shortage, of its parent's.
TEST(ParallelTest, AForkUnderALimitCountsItsOwnThreads) {
  const ThreadCount scope(3);
  {
    const ThreadLimit limit(0, ThreadLimit::Error::system);
    sum_of_a_region(9);
    set_num_threads(4);
    sum_of_a_region(9);
    EXPECT_EQ(missing_threads(), 3);
  }
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const bool good = missing_threads() == 0 && sum_of_a_region(100) == 4950 && missing_threads() == 0;
    _exit(good ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(missing_threads(), 3);
}

// The system's own limit on a user's processes, which does not hold for root.
TEST(ParallelTest, ALimitOnProcessesIsNoEnd) {
  if (getuid() != 0) GTEST_SKIP() << "only root can become a user without processes";
  for (const rlim_t limit : {1, 2, 3}) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      const rlimit processes = {limit, limit};
      const uid_t nobody = 54321;  // who has no other process
      if (setrlimit(RLIMIT_NPROC, &processes) != 0 || setgroups(0, nullptr) != 0 || setuid(nobody) != 0) {
        _exit(0);
      }
      set_num_threads(8);
      const bool good = sum_of_a_region(100) == 4950 && missing_threads() == 8 - static_cast<int>(limit);
      _exit(good ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << limit;
  }
}

// As many std::threads as requested, or one fewer: a host need not give all.
void run_on_std_threads(void (*task)(void*), void* context, int threads) {
  std::vector<std::thread> others;
  for (int i = 2; i < threads; ++i) others.emplace_back([=] { task(context); });
  task(context);
  for (std::thread& t : others) t.join();
}

TEST(ParallelTest, HostThreadsRunEveryIndexOnce) {
  const ThreadCount ours(2);
  const HostThreads host{run_on_std_threads, 5};
  {
    const HostThreadsScope scope(host);
    EXPECT_EQ(num_threads(), 5);
    std::vector<std::atomic<int>> seen(1000);
    parallel_for(100, [&](int64_t i, int worker) {
      EXPECT_EQ(num_threads(), 5);
      parallel_for(10, [&](int64_t j, int inner) {
        EXPECT_EQ(inner, worker);
        ++seen[static_cast<size_t>(10 * i + j)];
      });
      EXPECT_LT(worker, 5);
    });
    for (const auto& n : seen) EXPECT_EQ(n, 1);
    EXPECT_THROW(parallel_for(50, [](int64_t i, int) { MH_CHECK(i != 17, ValueError, "seventeen"); }),
                 ValueError);
  }
  EXPECT_EQ(num_threads(), 2);
}

}  // namespace
}  // namespace multihead
