// Places are sorted by their element, then by themselves: the order is total, so no algorithm changes it.
#include "multihead/kernels/array/sort.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>
#include <vector>

#include "multihead/core/threads/parallel.h"

namespace multihead::kernels {
namespace {

template <class T>
bool is_less(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(b)) return !std::isnan(a);
  }
  return a < b;
}

template <class T>
void order_rows(const T* x, int64_t* index, int64_t rows, int64_t size, int64_t count, bool descending) {
  if (count == 0) return;
  parallel_ranges(rows, std::max<int64_t>(1, 2048 / size), [&](int64_t begin, int64_t end) {
    std::vector<int64_t> places(static_cast<size_t>(size));
    for (int64_t row = begin; row < end; ++row) {
      const T* values = x + row * size;
      const auto before = [&](int64_t a, int64_t b) {
        if (is_less(values[a], values[b])) return !descending;
        if (is_less(values[b], values[a])) return descending;
        return a < b;
      };
      std::iota(places.begin(), places.end(), 0);
      if (count == 1) {
        index[row] = *std::min_element(places.begin(), places.end(), before);
        continue;
      }
      std::partial_sort(places.begin(), places.begin() + count, places.end(), before);
      std::copy_n(places.begin(), count, index + row * count);
    }
  });
}

}  // namespace

void order(const float* x, int64_t* index, int64_t rows, int64_t size, int64_t count, bool descending) {
  order_rows(x, index, rows, size, count, descending);
}
void order(const double* x, int64_t* index, int64_t rows, int64_t size, int64_t count, bool descending) {
  order_rows(x, index, rows, size, count, descending);
}
void order(const int32_t* x, int64_t* index, int64_t rows, int64_t size, int64_t count, bool descending) {
  order_rows(x, index, rows, size, count, descending);
}
void order(const int64_t* x, int64_t* index, int64_t rows, int64_t size, int64_t count, bool descending) {
  order_rows(x, index, rows, size, count, descending);
}

}  // namespace multihead::kernels
