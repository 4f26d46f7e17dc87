// Bound by memory. Forward: any piece of the result by any thread. Backward: a task owns elements of dx, some columns
// of one `outer`, and adds to each in the order of j.
#include "multihead/kernels/array/gather.h"

#include <algorithm>
#include <cstring>

#include "multihead/core/threads/parallel.h"

namespace multihead::kernels {
namespace {

constexpr int64_t kGatherGrain = 8192;  // elements

int64_t grain_of(int64_t elements_each) {
  return std::max<int64_t>(1, kGatherGrain / std::max<int64_t>(1, elements_each));
}

// f(outer, first column, end) over tasks that own their part of every row.
template <class F>
void for_columns(const GatherSizes& s, F&& f) {
  constexpr int64_t kColumns = 64;
  const int64_t blocks = (s.inner + kColumns - 1) / kColumns;
  parallel_ranges(s.outer * blocks, grain_of(s.count * std::min(kColumns, s.inner)),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t task = begin; task < end; ++task) {
                      const int64_t first = task % blocks * kColumns;
                      f(task / blocks, first, std::min(first + kColumns, s.inner));
                    }
                  });
}

template <class T>
void along(const T* x, const int64_t* index, T* y, const GatherSizes& s) {
  parallel_ranges(s.outer * s.count, grain_of(s.inner), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end;) {
      const int64_t outer = row / s.count, last = std::min(end, (outer + 1) * s.count);
      const T* from = x + outer * s.size * s.inner;
      if (s.inner == 1) {
        for (; row < last; ++row) y[row] = from[index[row]];
      }
      for (; row < last; ++row) {
        for (int64_t i = 0; i < s.inner; ++i) {
          y[row * s.inner + i] = from[index[row * s.inner + i] * s.inner + i];
        }
      }
    }
  });
}

template <class T>
void add_rows(const T* dy, const int64_t* index, T* dx, const GatherSizes& s) {
  for_columns(s, [&](int64_t o, int64_t first, int64_t end) {
    for (int64_t j = 0; j < s.count; ++j) {
      const T* from = dy + (o * s.count + j) * s.inner;
      T* to = dx + (o * s.size + index[j]) * s.inner;
      for (int64_t i = first; i < end; ++i) to[i] += from[i];
    }
  });
}

template <class T>
void add_along(const T* dy, const int64_t* index, T* dx, const GatherSizes& s) {
  for_columns(s, [&](int64_t o, int64_t first, int64_t end) {
    T* to = dx + o * s.size * s.inner;
    for (int64_t j = 0; j < s.count; ++j) {
      const int64_t at = (o * s.count + j) * s.inner;
      for (int64_t i = first; i < end; ++i) to[index[at + i] * s.inner + i] += dy[at + i];
    }
  });
}

}  // namespace

void take(const void* x, const int64_t* index, void* y, const GatherSizes& s, size_t element) {
  const size_t bytes = static_cast<size_t>(s.inner) * element;
  const auto* from = static_cast<const std::byte*>(x);
  auto* to = static_cast<std::byte*>(y);
  if (bytes == 0) return;
  parallel_ranges(s.outer * s.count, grain_of(s.inner), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t source = row / s.count * s.size + index[row % s.count];
      std::memcpy(to + static_cast<size_t>(row) * bytes, from + static_cast<size_t>(source) * bytes, bytes);
    }
  });
}

void take_along(const void* x, const int64_t* index, void* y, const GatherSizes& s, size_t element) {
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    along(static_cast<const T*>(x), index, static_cast<T*>(y), s);
  };
  switch (element) {
    case 1:
      return run(uint8_t{});
    case 2:
      return run(uint16_t{});
    case 4:
      return run(uint32_t{});
    default:
      return run(uint64_t{});
  }
}

void take_backward(const float* dy, const int64_t* index, float* dx, const GatherSizes& s) {
  add_rows(dy, index, dx, s);
}
void take_backward(const double* dy, const int64_t* index, double* dx, const GatherSizes& s) {
  add_rows(dy, index, dx, s);
}
void take_along_backward(const float* dy, const int64_t* index, float* dx, const GatherSizes& s) {
  add_along(dy, index, dx, s);
}
void take_along_backward(const double* dy, const int64_t* index, double* dx, const GatherSizes& s) {
  add_along(dy, index, dx, s);
}

}  // namespace multihead::kernels
