// The sum over an array whose order depends on its length alone. No Highway: included once, outside the
// targets.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "multihead/core/threads/parallel.h"

namespace multihead::kernels {

/// Adds run(x, n) over at most kParts blocks of a multiple of kMultiple elements, kSmallest at least; the
/// blocks in parallel, their sums in order.
template <int64_t kParts, int64_t kSmallest, int64_t kMultiple, class T, class Run>
double blocked_sum(const T* x, int64_t count, Run run) {
  const int64_t block = std::max(kSmallest, (count / kParts + kMultiple) / kMultiple * kMultiple);
  std::array<double, kParts> parts = {};
  constexpr int64_t kGrain = 1 << 15;  // elements: what takes as long as waking a thread
  parallel_ranges((count + block - 1) / block, kGrain / block, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      parts[static_cast<size_t>(i)] = run(x + i * block, std::min(block, count - i * block));
    }
  });
  double total = 0;
  for (const double part : parts) total += part;
  return total;
}

}  // namespace multihead::kernels
