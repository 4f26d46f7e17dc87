// The sum over an array whose order depends on its length alone. No Highway: included once, outside the
// targets.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "multihead/core/threads/parallel.h"

namespace multihead::kernels {

/// Adds the sums of at most kParts blocks of a multiple of kMultiple elements, kSmallest at least; the blocks in
/// parallel, their sums in order. run(x, n, blocks, sums) makes those of blocks of n elements that follow each other.
template <class Sum, int64_t kParts, int64_t kSmallest, int64_t kMultiple, class T, class Run>
double blocked_sum(const T* x, int64_t count, Run run) {
  const int64_t block = std::max(kSmallest, (count / kParts + kMultiple) / kMultiple * kMultiple);
  std::array<Sum, kParts> parts = {};
  constexpr int64_t kGrain = 1 << 15;  // elements: what takes as long as waking a thread
  parallel_ranges((count + block - 1) / block, kGrain / block, [&](int64_t begin, int64_t end) {
    const int64_t whole = std::min(end, count / block);
    run(x + begin * block, block, whole - begin, parts.data() + begin);
    if (whole < end) run(x + whole * block, count - whole * block, 1, parts.data() + whole);
  });
  double total = 0;
  for (const Sum part : parts) total += part;
  return total;
}

}  // namespace multihead::kernels
