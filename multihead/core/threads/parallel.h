// Fork-join parallelism. Results do not depend on which thread runs an index: the caller orders every
// reduction.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace multihead {

/// Number of threads of parallel_for, the caller included. Starts as MULTIHEAD_NUM_THREADS, else
/// OMP_NUM_THREADS, else the CPUs on which the first thread to ask may run. Throws ValueError if the first is invalid.
int num_threads();

/// Throws ValueError unless 1 <= threads <= 1024, and in a parallel_for() of several threads.
void set_num_threads(int threads);

/// Non-owning reference to a callable; valid for the duration of the call it is passed to.
template <class Signature>
class FunctionRef;

template <class R, class... Args>
class FunctionRef<R(Args...)> {
 public:
  template <class F, class = std::enable_if_t<!std::is_same_v<std::decay_t<F>, FunctionRef>>>
  FunctionRef(F&& f)  // NOLINT(google-explicit-constructor)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<Args>(args)...);
        }) {}
  R operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

/// Runs body(index, worker) for every index in [0, count), each once, on up to num_threads() threads.
///
/// Indices are handed out in increasing order, so put the longest task first. `worker` is in
/// [0, num_threads()) and no two concurrent calls share it: use it for scratch memory. The first exception is
/// rethrown here after all threads have stopped. A call from inside a body of several indices runs on that
/// thread alone, with the outer worker number.
void parallel_for(int64_t count, FunctionRef<void(int64_t index, int worker)> body);

/// Threads of the host program, such as another library's pool that would compete with ours.
/// run(task, context, threads) calls task(context) on up to `threads` threads at once, the caller among them,
/// and returns when all have.
struct HostThreads {
  void (*run)(void (*task)(void* context), void* context, int threads) = nullptr;
  int threads = 1;
};

/// While it is alive, num_threads() and parallel_for() on this thread use the host's threads.
class HostThreadsScope {
 public:
  explicit HostThreadsScope(const HostThreads& host);
  ~HostThreadsScope();
  HostThreadsScope(const HostThreadsScope&) = delete;
  HostThreadsScope& operator=(const HostThreadsScope&) = delete;

 private:
  const HostThreads* before_;
};

/// Splits [0, count) into ranges of at least `grain` and runs body(begin, end) on them.
void parallel_ranges(int64_t count, int64_t grain, FunctionRef<void(int64_t begin, int64_t end)> body);

}  // namespace multihead
