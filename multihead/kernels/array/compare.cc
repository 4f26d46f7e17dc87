#include "multihead/kernels/array/compare.h"

#include <functional>

#include "multihead/core/threads/parallel.h"

namespace multihead::kernels {
namespace {

template <class T, class F>
void compare_by(F f, const T* a, const T* b, bool* y, int64_t count) {
  parallel_ranges(count, 8192, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = f(a[i], b[i]);
  });
}

}  // namespace

template <class T>
void compare(Comparison op, const T* a, const T* b, bool* y, int64_t count) {
  switch (op) {
    case Comparison::equal:
      return compare_by(std::equal_to<T>(), a, b, y, count);
    case Comparison::not_equal:
      return compare_by(std::not_equal_to<T>(), a, b, y, count);
    case Comparison::less:
      return compare_by(std::less<T>(), a, b, y, count);
    case Comparison::less_equal:
      return compare_by(std::less_equal<T>(), a, b, y, count);
    case Comparison::greater:
      return compare_by(std::greater<T>(), a, b, y, count);
    case Comparison::greater_equal:
      return compare_by(std::greater_equal<T>(), a, b, y, count);
  }
}

template void compare(Comparison, const float*, const float*, bool*, int64_t);
template void compare(Comparison, const double*, const double*, bool*, int64_t);
template void compare(Comparison, const int32_t*, const int32_t*, bool*, int64_t);
template void compare(Comparison, const int64_t*, const int64_t*, bool*, int64_t);
template void compare(Comparison, const bool*, const bool*, bool*, int64_t);

}  // namespace multihead::kernels
