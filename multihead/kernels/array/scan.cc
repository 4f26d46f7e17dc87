// A task takes up to 64 columns of one `outer`, so the order of the additions is that of the axis.
#include "multihead/kernels/array/scan.h"

#include <algorithm>

#include "multihead/core/threads/parallel.h"

namespace multihead::kernels {
namespace {

constexpr int64_t kScanColumns = 64;

// Sums along rows of `count` elements, several side by side: one sum waits for its own last addition.
template <class T>
void row_sums(const T* x, T* y, int64_t rows, const ScanSizes& s) {
  constexpr int kSideBySide = 8;
  for (; rows > 0; rows -= kSideBySide, x += kSideBySide * s.count, y += kSideBySide * s.count) {
    double sums[kSideBySide] = {};
    for (int64_t j = 0; j < s.count; ++j) {
      const int64_t at = s.reverse ? s.count - 1 - j : j;
      if (rows >= kSideBySide) {
        for (int r = 0; r < kSideBySide; ++r) {
          sums[r] += static_cast<double>(x[r * s.count + at]);
          y[r * s.count + at] = static_cast<T>(sums[r]);
        }
      } else {
        for (int r = 0; r < rows; ++r) {
          sums[r] += static_cast<double>(x[r * s.count + at]);
          y[r * s.count + at] = static_cast<T>(sums[r]);
        }
      }
    }
  }
}

template <class T>
void running_sums(const T* x, T* y, const ScanSizes& s) {
  if (s.inner == 1) {
    return parallel_ranges(s.outer, std::max<int64_t>(8, 8192 / std::max<int64_t>(1, s.count)),
                           [&](int64_t begin, int64_t end) {
                             row_sums(x + begin * s.count, y + begin * s.count, end - begin, s);
                           });
  }
  const int64_t blocks = (s.inner + kScanColumns - 1) / kScanColumns;
  const int64_t each = std::max<int64_t>(1, s.count * std::min(kScanColumns, s.inner));
  parallel_ranges(s.outer * blocks, std::max<int64_t>(1, 8192 / each), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % blocks * kScanColumns, columns = std::min(kScanColumns, s.inner - first);
      double sums[kScanColumns] = {};
      for (int64_t j = 0; j < s.count; ++j) {
        const int64_t row = s.reverse ? s.count - 1 - j : j;
        const int64_t at = (task / blocks * s.count + row) * s.inner + first;
        for (int64_t i = 0; i < columns; ++i) {
          sums[i] += static_cast<double>(x[at + i]);
          y[at + i] = static_cast<T>(sums[i]);
        }
      }
    }
  });
}

}  // namespace

void cumsum(const float* x, float* y, const ScanSizes& sizes) { running_sums(x, y, sizes); }
void cumsum(const double* x, double* y, const ScanSizes& sizes) { running_sums(x, y, sizes); }

}  // namespace multihead::kernels
