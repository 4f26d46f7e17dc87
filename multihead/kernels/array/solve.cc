// Substitution row by row: a task takes up to 64 columns of one system. size² · columns multiplications, without blocks,
// for the small systems of chunks and windows.
#include "multihead/kernels/array/solve.h"

#include <algorithm>

#include "multihead/core/threads/parallel.h"

namespace multihead::kernels {
namespace {

constexpr int64_t kSolveColumns = 64;

template <class T>
void solve_columns(const T* a, T* x, const SolveSizes& s, int64_t columns) {
  const bool forwards = s.lower != s.transposed;
  for (int64_t step = 0; step < s.size; ++step) {
    const int64_t i = forwards ? step : s.size - 1 - step;
    T* row = x + i * s.columns;
    for (int64_t before = 0; before < step; ++before) {
      const int64_t j = forwards ? before : s.size - 1 - before;
      const T factor = s.transposed ? a[j * s.size + i] : a[i * s.size + j];
      const T* other = x + j * s.columns;
      for (int64_t c = 0; c < columns; ++c) row[c] -= factor * other[c];
    }
    if (s.unit) continue;
    const T diagonal = a[i * s.size + i];
    for (int64_t c = 0; c < columns; ++c) row[c] /= diagonal;
  }
}

template <class T>
void solve_systems(const T* a, T* x, const SolveSizes& s) {
  const int64_t blocks = (s.columns + kSolveColumns - 1) / kSolveColumns;
  const int64_t each = std::max<int64_t>(1, s.size * s.size * std::min(kSolveColumns, s.columns));
  parallel_ranges(s.batch * blocks, std::max<int64_t>(1, 32768 / each), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / blocks, first = task % blocks * kSolveColumns;
      solve_columns(a + b * s.size * s.size, x + b * s.size * s.columns + first, s,
                    std::min(kSolveColumns, s.columns - first));
    }
  });
}

}  // namespace

void solve_triangular(const float* a, float* x, const SolveSizes& sizes) { solve_systems(a, x, sizes); }
void solve_triangular(const double* a, double* x, const SolveSizes& sizes) { solve_systems(a, x, sizes); }

}  // namespace multihead::kernels
