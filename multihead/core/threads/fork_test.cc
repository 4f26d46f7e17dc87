// A child forked while other threads are inside the library has only the thread that forked: no lock that the
// others held may be left to it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "multihead/core/tensor/gradient_lock-inl.h"
#include "multihead/core/tensor/tensor.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/testing/sanitizers.h"

namespace multihead {
namespace {

void allocate() {
  for (const int64_t n : {10, 1000, 100000}) Tensor::empty({n}, Dtype::f32).data<float>()[0] = 1;
}

void run_a_region() {
  parallel_for(8, [](int64_t, int) { allocate(); });
}

void change_a_gradient() {
  static const Tensor parameter = Tensor::zeros({16}, Dtype::f32).set_requires_grad(true);
  parameter.set_grad(Tensor::empty({16}, Dtype::f32));
}

// 0 if the child came through all of it, SIGALRM if it hung.
int status_of_a_child() {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    allocate();
    run_a_region();
    change_a_gradient();
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST(ForkTest, NoChildWaitsForALockOfAThreadThatItDoesNotHave) {
  if (testing::kSanitized) {
    GTEST_SKIP()
        << "the child may wait for a lock of the address sanitizer's allocator, which GCC 12's does not "
           "hold over a fork";
  }
  change_a_gradient();  // what is made on first use is there
  const int before = num_threads();
  set_num_threads(2);
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (void (*work)() : {allocate, run_a_region, change_a_gradient, allocate}) {
    threads.emplace_back([&stop, work] {
      while (!stop) work();
    });
  }
  int hung = 0;
  for (int i = 0; i < 200 && hung == 0; ++i) hung += status_of_a_child() != 0;
  stop = true;
  for (std::thread& thread : threads) thread.join();
  set_num_threads(before);
  EXPECT_EQ(hung, 0);
}

// Python forks while it holds its interpreter's lock, which a region may be waiting for.
TEST(ForkTest, AForkDoesNotWaitForARegion) {
  const int before = num_threads();
  set_num_threads(2);
  std::atomic<bool> running = false, forked = false;
  std::atomic<int> saw_the_fork = 0;
  std::thread region([&] {
    parallel_for(2, [&](int64_t, int) {
      running = true;
      for (int i = 0; i < 10000 && !forked; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      saw_the_fork += forked;
    });
  });
  while (!running) std::this_thread::yield();
  const int status = status_of_a_child();
  forked = true;
  region.join();
  set_num_threads(before);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(saw_the_fork, 2);
}

}  // namespace
}  // namespace multihead
