// Fork-join cost: our pool against oneTBB and OpenMP, on what training does between two kernels.
//   threads_bench [ours|tbb|openmp ...]      each engine runs in a process of its own, so none disturbs
//   another
// Prints the median and the smallest of many bursts, in microseconds per parallel region.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#if defined(MULTIHEAD_BENCH_TBB)
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#endif
#if defined(_OPENMP)
#include <omp.h>
#endif

#include "multihead/core/threads/parallel.h"

namespace {

using Clock = std::chrono::steady_clock;

// Each engine runs body(i) for i in [0, count) and returns when all are done.
struct Ours {
  template <class F>
  static void loop(int count, const F& body) {
    multihead::parallel_for(count, [&](int64_t i, int) { body(static_cast<int>(i)); });
  }
};

#if defined(MULTIHEAD_BENCH_TBB)
struct Tbb {
  template <class F>
  static void loop(int count, const F& body) {
    tbb::parallel_for(0, count, body, tbb::simple_partitioner());
  }
};
#endif

#if defined(_OPENMP)
struct OpenMp {
  template <class F>
  static void loop(int count, const F& body) {
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < count; ++i) body(i);
  }
};
#endif

void busy_microseconds(double us) {
  const auto until = Clock::now() + std::chrono::nanoseconds(static_cast<int64_t>(us * 1000));
  while (Clock::now() < until) {
  }
}

// y += a·x on the part that belongs to task i of `tasks`.
void axpy(std::vector<float>& y, const std::vector<float>& x, int i, int tasks) {
  const size_t begin = y.size() * static_cast<size_t>(i) / static_cast<size_t>(tasks);
  const size_t end = y.size() * static_cast<size_t>(i + 1) / static_cast<size_t>(tasks);
  for (size_t k = begin; k < end; ++k) y[k] += 0.5f * x[k];
}

template <class Engine>
void measure(const char* name) {
  const int threads = multihead::num_threads();
  std::vector<float> x(1 << 20, 1.0f), y(1 << 20, 0.0f);
  std::vector<float> small_x(1 << 14, 1.0f), small_y(1 << 14, 0.0f);
  struct Case {
    const char* what;
    double subtract;  // serial time that is part of every region, in microseconds
    std::function<void()> region;
  };
  const std::vector<Case> cases = {
      {"empty, back to back", 0, [&] { Engine::loop(threads, [](int) {}); }},
      {"empty, 5 us of serial work before", 5,
       [&] {
         busy_microseconds(5);
         Engine::loop(threads, [](int) {});
       }},
      {"empty, 200 us of serial work before", 200,
       [&] {
         busy_microseconds(200);
         Engine::loop(threads, [](int) {});
       }},
      {"20 us a thread, 400 us of serial work before", 400,
       [&] {
         busy_microseconds(400);
         Engine::loop(threads, [](int) { busy_microseconds(20); });
       }},
      {"20 us a thread, 2000 us of serial work before", 2000,
       [&] {
         busy_microseconds(2000);
         Engine::loop(threads, [](int) { busy_microseconds(20); });
       }},
      {"axpy of 16 Ki floats, a task per thread", 0,
       [&] { Engine::loop(threads, [&](int i) { axpy(small_y, small_x, i, threads); }); }},
      {"axpy of 1 Mi floats, 16 tasks", 0, [&] { Engine::loop(16, [&](int i) { axpy(y, x, i, 16); }); }},
      {"32 unequal tasks, 1 to 32 us, longest first", 0,
       [&] { Engine::loop(32, [&](int i) { busy_microseconds(32 - i); }); }},
  };
  for (const Case& c : cases) {
    for (int i = 0; i < 50; ++i) c.region();  // threads started, pages touched
    std::vector<double> bursts;
    const auto end = Clock::now() + std::chrono::milliseconds(1500);
    while (Clock::now() < end) {
      constexpr int kRegions = 16;
      const auto start = Clock::now();
      for (int i = 0; i < kRegions; ++i) c.region();
      const double us = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
      bursts.push_back(us / kRegions - c.subtract);
    }
    std::sort(bursts.begin(), bursts.end());
    std::printf("%-8s %-46s median %8.2f  least %8.2f\n", name, c.what, bursts[bursts.size() / 2], bursts[0]);
  }
}

void run(const std::string& engine) {
  if (engine == "ours") return measure<Ours>("ours");
#if defined(MULTIHEAD_BENCH_TBB)
  if (engine == "tbb") {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism,
                                    static_cast<size_t>(multihead::num_threads()));
    return measure<Tbb>("tbb");
  }
#endif
#if defined(_OPENMP)
  if (engine == "openmp") {
    omp_set_num_threads(multihead::num_threads());
    return measure<OpenMp>("openmp");
  }
#endif
  std::printf("%-8s is not in this build\n", engine.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> engines(argv + 1, argv + argc);
  if (engines.empty()) engines = {"ours", "tbb", "openmp"};
  for (const std::string& engine : engines) {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      run(engine);
      std::fflush(stdout);
      _exit(0);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) return 1;
  }
  return 0;
}
