#include "python/src/host_threads.h"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <sstream>

namespace multihead::python {
namespace {

// The entry of GCC's OpenMP (Clang's and Intel's have it too) that runs a region on the caller's team.
using Parallel = void (*)(void (*task)(void*), void* context, unsigned threads, unsigned flags);
std::atomic<Parallel> parallel{nullptr};
std::atomic<bool> in_use{false};

void run_on_openmp(void (*task)(void*), void* context, int threads) {
  parallel.load(std::memory_order_relaxed)(task, context, static_cast<unsigned>(threads), 0);
}

// Whether this process is a copy of another one that it has not replaced by a program of its own: Linux's
// PF_FORKNOEXEC, in the ninth field of /proc/self/stat. Names may hold blanks and brackets.
bool is_forked() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  if (!std::getline(file, line)) return false;
  std::istringstream fields(line.substr(std::min(line.rfind(')') + 1, line.size())));
  std::string skipped;
  for (int field = 3; field < 9; ++field) fields >> skipped;
  unsigned flags = 0;
  return fields >> flags && (flags & 0x40) != 0;
}

}  // namespace

bool find_openmp(const std::string& library) {
  if (is_forked()) return false;  // OpenMP would wait for the workers of its parent, which are not here
  void* handle = dlopen(library.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return false;
  void* symbol = dlsym(handle, "GOMP_parallel");  // searches what the object depends on, too
  dlclose(handle);
  if (symbol == nullptr) return false;
  if (parallel.exchange(reinterpret_cast<Parallel>(symbol)) == nullptr) {
    pthread_atfork(nullptr, nullptr, [] {
      parallel.store(nullptr);
      in_use.store(false);
    });
  }
  return true;
}

OpenMpScope::OpenMpScope(int threads) {
  if (parallel.load(std::memory_order_relaxed) == nullptr) return;
  first_ = !in_use.exchange(true);
  host_ = {run_on_openmp, first_ ? std::max(threads, 1) : 1};
  scope_.emplace(host_);
}

OpenMpScope::~OpenMpScope() {
  if (first_) in_use.store(false);
}

}  // namespace multihead::python
