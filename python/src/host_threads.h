// Runs kernels on the threads of PyTorch's OpenMP. Its workers spin for milliseconds after each of its own
// regions: a second pool would share the processors with them.
#pragma once

#include <optional>
#include <string>

#include "multihead/core/threads/parallel.h"

namespace multihead::python {

/// Finds OpenMP among the libraries that the loaded shared object `library` depends on; false if there is
/// none, or if this process was forked from one that may have used it.
bool find_openmp(const std::string& library);

/// OpenMP's threads for the kernels called while it lives; our own pool without OpenMP and in the children of
/// a fork, which inherit no threads. A second caller at the same time works alone.
class OpenMpScope {
 public:
  explicit OpenMpScope(int threads);
  ~OpenMpScope();
  OpenMpScope(const OpenMpScope&) = delete;
  OpenMpScope& operator=(const OpenMpScope&) = delete;

 private:
  bool first_ = false;
  HostThreads host_;
  std::optional<HostThreadsScope> scope_;
};

}  // namespace multihead::python
