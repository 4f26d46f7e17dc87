#include "multihead/kernels/reduce/extreme.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "multihead/core/threads/parallel.h"

namespace multihead::kernels {
namespace {

constexpr int64_t kExtremeGrain = 1 << 15;  // elements of a task

template <bool kLargest, class T>
int64_t extreme_place(const T* x, int64_t count) {
  int64_t place = 0;
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(x[i])) return i;
    }
    if (kLargest ? x[i] > x[place] : x[i] < x[place]) place = i;
  }
  return place;
}

}  // namespace

template <class T>
void extreme_places(const T* x, int64_t* places, int64_t rows, int64_t count, bool largest) {
  const int64_t step = std::max<int64_t>(1, kExtremeGrain / count);
  parallel_for((rows + step - 1) / step, [&](int64_t task, int) {
    for (int64_t r = task * step; r < std::min(rows, (task + 1) * step); ++r) {
      places[r] =
          largest ? extreme_place<true>(x + r * count, count) : extreme_place<false>(x + r * count, count);
    }
  });
}

template void extreme_places(const float*, int64_t*, int64_t, int64_t, bool);
template void extreme_places(const double*, int64_t*, int64_t, int64_t, bool);
template void extreme_places(const int64_t*, int64_t*, int64_t, int64_t, bool);
template void extreme_places(const int32_t*, int64_t*, int64_t, int64_t, bool);

}  // namespace multihead::kernels
