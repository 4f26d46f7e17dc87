// A persistent fork-join pool. Workers spin for a few microseconds after a job and then sleep on a futex
// (std::atomic::wait), so that back-to-back kernels start in about a microsecond and an idle program uses no
// CPU.
#include "multihead/core/parallel.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "multihead/core/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace multihead {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kSpins = 4000;  // about 20–40 us: longer than the gap between two kernels of a layer

thread_local int current_worker = -1;  // >= 0 inside a body

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

int threads_from(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return 0;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  return end != text && *end == '\0' && value >= 1 && value <= kMaxThreads ? static_cast<int>(value) : 0;
}

int default_threads() {
  if (const int n = threads_from("MULTIHEAD_NUM_THREADS")) return n;
  if (const int n = threads_from("OMP_NUM_THREADS")) return n;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::clamp(CPU_COUNT(&set), 1, kMaxThreads);
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
}

class Pool {
 public:
  explicit Pool(int threads) {
    for (int worker = 1; worker < threads; ++worker) workers_.emplace_back([this, worker] { serve(worker); });
  }

  ~Pool() {
    stopping_.store(true);
    generation_.fetch_add(1);
    generation_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  void run(int64_t count, const FunctionRef<void(int64_t, int)>& body) {
    body_ = &body;
    count_ = count;
    next_.store(0, std::memory_order_relaxed);
    failure_ = nullptr;
    failed_.store(false, std::memory_order_relaxed);
    running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    work(0);
    for (int spins = 0; running_.load(std::memory_order_acquire) != 0; ++spins) {
      if (spins < kSpins) {
        pause();
      } else if (const int left = running_.load(std::memory_order_acquire); left != 0) {
        running_.wait(left);
      }
    }
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void serve(int worker) {
    uint32_t seen = 0;
    while (true) {
      for (int spins = 0; generation_.load(std::memory_order_acquire) == seen; ++spins) {
        if (spins < kSpins) {
          pause();
        } else {
          generation_.wait(seen);
        }
      }
      seen = generation_.load(std::memory_order_acquire);
      if (stopping_.load()) return;
      work(worker);
      if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
    }
  }

  void work(int worker) {
    current_worker = worker;
    try {
      for (int64_t i; !failed_.load(std::memory_order_relaxed) && (i = next_.fetch_add(1)) < count_;) {
        (*body_)(i, worker);
      }
    } catch (...) {
      if (!failed_.exchange(true)) failure_ = std::current_exception();
    }
    current_worker = -1;
  }

  std::vector<std::thread> workers_;
  const FunctionRef<void(int64_t, int)>* body_ = nullptr;
  int64_t count_ = 0;
  std::exception_ptr failure_;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int> running_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
  std::atomic<bool> failed_{false};
  std::atomic<bool> stopping_{false};
};

// One job at a time: a second thread of the user's that calls in meanwhile works alone (see parallel_for).
struct Shared {
  std::mutex busy;
  Pool* pool = nullptr;
  std::atomic<int> threads{default_threads()};
};

Shared& shared() {
  static Shared* instance = [] {
    auto* created = new Shared;
    // The child of a fork has no workers: it forgets the pool (whose threads exist in the parent only) and
    // makes its own on first use. The lock is taken around the fork so that it is free in the child.
    pthread_atfork([] { shared().busy.lock(); }, [] { shared().busy.unlock(); },
                   [] {
                     shared().pool = nullptr;
                     shared().busy.unlock();
                   });
    return created;
  }();
  return *instance;
}

void run_here(int64_t count, const FunctionRef<void(int64_t, int)>& body) {
  const int worker = std::max(current_worker, 0);
  for (int64_t i = 0; i < count; ++i) body(i, worker);
}

}  // namespace

int num_threads() { return shared().threads.load(std::memory_order_relaxed); }

void set_num_threads(int threads) {
  MH_CHECK(threads >= 1 && threads <= kMaxThreads, ValueError, "set_num_threads: expected 1 to ", kMaxThreads,
           ", got ", threads);
  const std::lock_guard lock(shared().busy);
  shared().threads.store(threads);
}

void parallel_for(int64_t count, FunctionRef<void(int64_t, int)> body) {
  if (count <= 0) return;
  Shared& state = shared();
  if (count == 1 || current_worker >= 0 || state.threads.load(std::memory_order_relaxed) == 1) {
    run_here(count, body);
    return;
  }
  const std::unique_lock lock(state.busy, std::try_to_lock);
  if (!lock.owns_lock()) {
    run_here(count, body);
    return;
  }
  const int threads = state.threads.load(std::memory_order_relaxed);
  if (state.pool != nullptr && state.pool->threads() != threads) {
    delete state.pool;
    state.pool = nullptr;
  }
  if (state.pool == nullptr) state.pool = new Pool(threads);
  state.pool->run(count, body);
}

void parallel_ranges(int64_t count, int64_t grain, FunctionRef<void(int64_t, int64_t)> body) {
  if (count <= 0) return;
  const int64_t chunks =
      std::clamp<int64_t>(count / std::max<int64_t>(grain, 1), 1, int64_t{4} * num_threads());
  parallel_for(chunks,
               [&](int64_t chunk, int) { body(count * chunk / chunks, count * (chunk + 1) / chunks); });
}

}  // namespace multihead
