// A persistent fork-join pool. Workers stay awake for a while after a job (Patience) and then sleep on a
// futex (std::atomic::wait), so that back-to-back kernels start in about a microsecond and an idle program
// uses no CPU.
#include "multihead/core/threads/parallel.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/core/memory/storage.h"
#include "multihead/core/threads/float_mode-inl.h"
#include "multihead/core/threads/interrupt.h"
#include "multihead/core/threads/parallel-inl.h"
#include "multihead/core/threads/quiet_thread-inl.h"
#include "multihead/core/threads/threads.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace multihead {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kSpins = 4000;  // about 20–40 us: longer than the gap between two kernels of a layer

thread_local int current_worker = -1;  // >= 0 inside a body
thread_local const HostThreads* current_host = nullptr;
thread_local const std::function<void()>* current_check = nullptr;

// Keeps the code in which workers wait where it is when a host closes a plugin that holds this library. No lock is
// held: the linker's own may be another thread's, whose plugin computes while it is loaded.
void keep_code() {
  static std::atomic<bool> is_kept{false};
  if (is_kept.load(std::memory_order_relaxed) || is_kept.exchange(true)) return;
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&keep_code), &info) == 0 || info.dli_fname == nullptr) return;
  const void* const code = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  if (code == nullptr) dlerror();  // a program's own code is not found by its name: no error of the host's
}

// While this thread runs a loop of several indices alone, because another's has the pool, the loops inside it stay on
// this thread, too.
class AloneScope {
 public:
  AloneScope() { current_worker = 0; }
  ~AloneScope() { current_worker = -1; }
  AloneScope(const AloneScope&) = delete;
  AloneScope& operator=(const AloneScope&) = delete;
};

// The body at one index, unless this thread's region is to stop; the pool's threads have no check.
void run_index(const FunctionRef<void(int64_t, int)>& body, int64_t index, int worker) {
  check_interrupt();
  body(index, worker);
}

void run_alone(int64_t count, const FunctionRef<void(int64_t, int)>& body) {
  const int worker = std::max(current_worker, 0);
  for (int64_t i = 0; i < count; ++i) run_index(body, i, worker);
}

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // "yield" takes no time on most cores
#else
  std::this_thread::yield();
#endif
}

// 0 if it says nothing that we understand.
int threads_from(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return 0;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  return end != text && *end == '\0' && value >= 1 && value <= kMaxThreads ? static_cast<int>(value) : 0;
}

constexpr const char* kVariable = "MULTIHEAD_NUM_THREADS";

// 0: our variable makes no sense, which num_threads() reports. OMP_NUM_THREADS may hold lists that are not
// ours.
int default_threads() {
  if (const char* text = std::getenv(kVariable); text != nullptr && *text != '\0')
    return threads_from(kVariable);
  if (const int n = threads_from("OMP_NUM_THREADS")) return n;
#ifdef __EMSCRIPTEN__
  return 1;  // built without threads
#else
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::clamp(CPU_COUNT(&set), 1, kMaxThreads);
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
#endif
}

// A region ends when every index has been run, not when every worker has come by: on a busy machine a worker
// may get its processor only much later, and then finds nothing left to do (threads_bench.cc: a region costs
// 1 us instead of 190 us when another program holds the second core).
class Pool {
 public:
  static constexpr int64_t kMaxCount = 0xffffffff;

  // Whatever allocates comes before the first thread: from then on nothing may throw past the workers.
  explicit Pool(int threads) : wanted_(threads), shares_(static_cast<size_t>(threads)) {
    workers_.reserve(static_cast<size_t>(threads));
    for (int worker = 1; worker < threads && add_worker(worker);) ++worker;
    used_ = workers_.size() + 1;
  }

  ~Pool() {
    stopping_.store(true);
    wake_.fetch_add(1);
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  int wanted() const { return wanted_; }
  int missing() const { return wanted_ - static_cast<int>(used_); }

  void run(int64_t count, const FunctionRef<void(int64_t, int)>& body) {
    failure_ = nullptr;
    failed_.store(false, std::memory_order_relaxed);
    finished_.store(0, std::memory_order_relaxed);
    mode_.store(FloatMode::now().bits, std::memory_order_release);
    body_.store(&body, std::memory_order_release);
    count_.store(static_cast<uint32_t>(count), std::memory_order_release);
    ++region_;
    for (size_t share = 0; share < used_; ++share) {
      const int64_t size = begin_of(share + 1, count) - begin_of(share, count);
      shares_[share].tickets.store(region_ << 32 | static_cast<uint64_t>(size), std::memory_order_release);
    }
    wake_.fetch_add(1, std::memory_order_release);
    wake_.notify_all();
    work(0);
    wait_until(finished_, Clock::duration::zero(),
               [&](uint32_t now) { return now == static_cast<uint32_t>(count); });
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  // The indices of a region are dealt out evenly in one run per worker. A worker begins with its own, then
  // helps with the others': what it wrote in the region before is often what it reads in this one, still in
  // its cache (with one run for all, 4 layers of 128 took 13.7 ms a step in three processes of four,
  // else 10.0).
  struct alignas(64) Share {
    std::atomic<uint64_t> tickets{0};  // region << 32 | indices not yet taken
  };

  // A thread that cannot be made is done without; the next one would be refused as well.
  bool add_worker(int worker) {
    try {
      workers_.push_back(start_thread()([this, worker] { serve(worker); }));
      return true;
    } catch (const std::system_error&) {
      return false;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }

  using Clock = Patience::Clock;

  struct Waited {
    uint32_t value = 0;
    Clock::duration slept{};
    bool crowded = false;  // another program had the processor
  };

  // Spins for a while, yields for up to `awake`, then sleeps, until a value is what `is_due` waits for.
  template <class IsDue>
  static Waited wait_until(const std::atomic<uint32_t>& value, Clock::duration awake, IsDue is_due) {
    Waited waited{value.load(std::memory_order_acquire)};
    Clock::time_point begin;
    for (int spins = 0; !is_due(waited.value); ++spins) {
      if (spins < kSpins) {
        pause();
      } else {
        const Clock::time_point now = Clock::now();
        if (spins == kSpins) begin = now;
        if (now - begin < (waited.crowded ? std::min<Clock::duration>(awake, Patience::kShort) : awake)) {
          std::this_thread::yield();
          waited.crowded = waited.crowded || Clock::now() - now > Patience::kCrowded;
        } else {
          value.wait(waited.value);
          waited.slept += Clock::now() - now;
        }
      }
      waited.value = value.load(std::memory_order_acquire);
    }
    return waited;
  }

  static uint64_t region_of(uint64_t tickets) { return tickets >> 32; }
  int64_t begin_of(size_t share, int64_t count) const {
    return count * static_cast<int64_t>(share) / static_cast<int64_t>(used_);
  }
  static uint32_t left_of(uint64_t tickets) { return static_cast<uint32_t>(tickets); }

  void serve(int worker) {
    Patience patience;
    for (uint32_t seen = 0;;) {
      const Waited waited = wait_until(wake_, patience.awake(), [&](uint32_t now) { return now != seen; });
      seen = waited.value;
      if (stopping_.load()) return;
      if (waited.crowded || waited.slept > Clock::duration::zero()) {
        patience.work_came(Clock::now(), waited.slept, waited.crowded);
      }
      work(worker);
    }
  }

  struct Progress {
    uint32_t done = 0, count = 0;  // indices run or withdrawn here, indices of the region
  };

  void work(int worker) {
    current_worker = worker;
    Progress progress;
    for (size_t i = 0; i < used_; ++i) {
      take_from((static_cast<size_t>(worker) + i) % used_, worker, progress);
    }
    current_worker = -1;
    // count was read while this worker held an unreported ticket, so it is the one of the open region.
    const uint32_t done = progress.done;
    if (done != 0 && finished_.fetch_add(done, std::memory_order_acq_rel) + done == progress.count) {
      finished_.notify_one();
    }
  }

  // Taking a ticket proves that its region is still open, so body_, mode_ and count_, read before, belong to it:
  // they change only after all tickets of the region are gone and reported.
  void take_from(size_t share, int worker, Progress& progress) {
    std::atomic<uint64_t>& own = shares_[share].tickets;
    uint64_t tickets = own.load(std::memory_order_acquire);
    while (left_of(tickets) != 0) {
      const FunctionRef<void(int64_t, int)>* body = body_.load(std::memory_order_acquire);
      const FloatMode mode = {mode_.load(std::memory_order_acquire)};
      const uint32_t count = count_.load(std::memory_order_acquire);
      if (!own.compare_exchange_weak(tickets, tickets - 1, std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
        continue;
      }
      progress.count = count;
      mode.apply();
      try {
        run_index(*body, begin_of(share + 1, count) - left_of(tickets), worker);
      } catch (...) {
        if (!failed_.exchange(true)) failure_ = std::current_exception();
        progress.done += withdraw_tickets();
      }
      ++progress.done;
      tickets = own.load(std::memory_order_acquire);
    }
  }

  // After a failure nothing more is started; returns how many indices that leaves out.
  uint32_t withdraw_tickets() {
    uint32_t left = 0;
    for (size_t i = 0; i < used_; ++i) {
      Share& share = shares_[i];
      uint64_t tickets = share.tickets.load(std::memory_order_relaxed);
      while (!share.tickets.compare_exchange_weak(tickets, region_of(tickets) << 32,
                                                  std::memory_order_acq_rel)) {
      }
      left += left_of(tickets);
    }
    return left;
  }

  const int wanted_;
  std::vector<std::thread> workers_;
  std::exception_ptr failure_;
  std::atomic<bool> failed_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<const FunctionRef<void(int64_t, int)>*> body_{nullptr};
  std::atomic<unsigned> mode_{0};  // the caller's FloatMode
  std::atomic<uint32_t> count_{0};
  std::vector<Share> shares_;
  size_t used_ = 0;  // shares, one per thread there is; fixed before the first region wakes a worker
  uint64_t region_ = 0;
  alignas(64) std::atomic<uint32_t> finished_{0};  // indices run in this region
  alignas(64) std::atomic<uint32_t> wake_{0};      // changes when there is something to do
};

// One job at a time: a second thread of the user's that calls in meanwhile works alone (see parallel_for).
struct Shared {
  std::mutex busy;
  std::mutex making;  // held, with busy, while threads begin or end
  Pool* pool = nullptr;
  std::atomic<int> threads{default_threads()};
  std::atomic<int> missing{0};

  void make_pool(int count) {
    const std::lock_guard lock(making);
    pool = new Pool(count);
    missing.store(pool->missing());
  }
  void forget_pool() {
    const std::lock_guard lock(making);
    delete pool;
    pool = nullptr;
    missing.store(0);
  }
};

Shared& shared() {
  static Shared* instance = [] {
    memory_stats();  // registers the storage's lock first: a fork takes last what was registered first
    auto* created = new Shared;
    // The child of a fork has no workers: it forgets the pool (whose threads exist in the parent only) and
    // makes its own on first use. A fork does not come while threads begin or end, but waits for no region,
    // which may wait for what the forking thread holds (Python's lock, to look for Ctrl-C): where another
    // thread held the lock of regions, the child makes it anew.
    pthread_atfork([] { shared().making.lock(); }, [] { shared().making.unlock(); },
                   [] {
                     std::construct_at(&shared().busy);
                     shared().pool = nullptr;
                     shared().missing.store(0);
                     shared().making.unlock();
                   });
    return created;
  }();
  return *instance;
}

// One region on the host's threads: however many of them come, each takes indices until none is left.
class HostRegion {
 public:
  HostRegion(const HostThreads& host, int64_t count, const FunctionRef<void(int64_t, int)>& body)
      : host_(host), mode_(FloatMode::now()), count_(count), body_(body) {}

  void run() {
    host_.run([](void* region) { static_cast<HostRegion*>(region)->work(); }, this, host_.threads);
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void work() {
    const HostThreadsScope scope(host_);  // nested calls size their scratch by the same number of workers
    const FloatMode before = FloatMode::now();
    mode_.apply();
    current_worker = workers_.fetch_add(1, std::memory_order_relaxed);
    try {
      for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) {
        run_index(body_, i, current_worker);
      }
    } catch (...) {
      next_.store(count_, std::memory_order_relaxed);
      if (!failed_.exchange(true)) failure_ = std::current_exception();
    }
    current_worker = -1;
    before.apply();
  }

  const HostThreads& host_;
  const FloatMode mode_;
  const int64_t count_;
  const FunctionRef<void(int64_t, int)>& body_;
  std::exception_ptr failure_;
  std::atomic<bool> failed_{false};
  std::atomic<int> workers_{0};
  std::atomic<int64_t> next_{0};
};

}  // namespace

StartThread& start_thread() {
  static StartThread start = [](std::function<void()> body) { return quiet_thread(std::move(body)); };
  return start;
}

HostThreadsScope::HostThreadsScope(const HostThreads& host) : before_(current_host) { current_host = &host; }
HostThreadsScope::~HostThreadsScope() { current_host = before_; }

int num_threads() {
  if (current_host != nullptr) return current_host->threads;
  const int threads = shared().threads.load(std::memory_order_relaxed);
  MH_CHECK(threads > 0, ValueError, kVariable, ": expected a whole number in [1, ", kMaxThreads, "], got '",
           std::getenv(kVariable), "'");
  return threads;
}

void set_num_threads(int threads) {
  MH_CHECK(threads >= 1 && threads <= kMaxThreads, ValueError, "set_num_threads: expected 1 to ", kMaxThreads,
           ", got ", threads);
  MH_CHECK(current_worker < 0, ValueError,
           "set_num_threads: threads are at work, called from one of their tasks");
  Shared& state = shared();
  const std::lock_guard lock(state.busy);
  if (state.missing.load() > 0) state.forget_pool();
  state.threads.store(threads);
}

int missing_threads() { return current_host != nullptr ? 0 : shared().missing.load(); }

InterruptScope::InterruptScope(std::function<void()> check)
    : check_(std::move(check)), before_(current_check) {
  current_check = &check_;
}
InterruptScope::~InterruptScope() { current_check = before_; }

void check_interrupt() {
  if (current_check != nullptr) (*current_check)();
}

void parallel_for(int64_t count, FunctionRef<void(int64_t, int)> body) {
  if (count <= 0) return;
  if (count == 1 || current_worker >= 0 || num_threads() == 1) return run_alone(count, body);
  if (current_host != nullptr) return HostRegion(*current_host, count, body).run();
  keep_code();
  Shared& state = shared();
  const std::unique_lock lock(state.busy, std::try_to_lock);
  if (!lock.owns_lock()) {
    const AloneScope scope;
    return run_alone(count, body);
  }
  const int threads = state.threads.load(std::memory_order_relaxed);
  if (state.pool != nullptr && state.pool->wanted() != threads) state.forget_pool();
  if (state.pool == nullptr) state.make_pool(threads);
  for (int64_t begin = 0; begin < count; begin += Pool::kMaxCount) {  // one round, unless count is astronomic
    const int64_t part = std::min(count - begin, Pool::kMaxCount);
    state.pool->run(part, [&](int64_t i, int worker) { body(begin + i, worker); });
  }
}

void parallel_ranges(int64_t count, int64_t grain, FunctionRef<void(int64_t, int64_t)> body) {
  if (count <= 0) return;
  const int64_t chunks =
      std::clamp<int64_t>(count / std::max<int64_t>(grain, 1), 1, int64_t{4} * num_threads());
  parallel_for(chunks,
               [&](int64_t chunk, int) { body(count * chunk / chunks, count * (chunk + 1) / chunks); });
}

}  // namespace multihead
