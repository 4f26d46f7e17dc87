// A task takes up to 64 columns of one `outer`, so the order of the additions is that of the axis.
#include "multihead/kernels/array/scan.h"

#include <algorithm>

#include "multihead/core/threads/parallel.h"

namespace multihead::kernels {
namespace {

constexpr int64_t kScanColumns = 64;

template <class T>
void running_sums(const T* x, T* y, const ScanSizes& s) {
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
