// A host's plugin that computes on several threads.
#include <atomic>

#include "multihead/core/threads/parallel.h"

extern "C" int compute() {
  multihead::set_num_threads(2);
  std::atomic<int> sum{0};
  multihead::parallel_for(64, [&](int64_t i, int) { sum += static_cast<int>(i); });
  return sum;
}
