#include "multihead/kernels/elementwise/strided_copy.h"

#include <algorithm>

#include "multihead/core/parallel.h"
#include "multihead/kernels/elementwise/strided_walk-inl.h"

namespace multihead::kernels {
namespace {

constexpr int64_t kGrain = 8192;  // elements

template <class T, class F>
void copy_walk(const void* from, void* to, const CopyLayout& layout, F&& copy) {
  const StridedWalk walk(layout.shape, layout.strides_from, layout.strides_to);
  parallel_ranges(layout.shape.numel(), kGrain, [&](int64_t begin, int64_t end) {
    walk.pieces(begin, end, [&](int64_t at_from, int64_t at_to, int64_t, int64_t length) {
      copy(static_cast<const T*>(from) + at_from, walk.a.back(), static_cast<T*>(to) + at_to, walk.b.back(),
           length);
    });
  });
}

template <class T>
void strided_copy_of(const void* from, void* to, const CopyLayout& layout) {
  copy_walk<T>(from, to, layout,
               [](const T* source, int64_t step_from, T* target, int64_t step_to, int64_t n) {
                 if (step_from == 1 && step_to == 1) {
                   std::copy(source, source + n, target);
                 } else {
                   for (int64_t i = 0; i < n; ++i) target[i * step_to] = source[i * step_from];
                 }
               });
}

}  // namespace

void strided_copy(const void* from, void* to, const CopyLayout& layout) {
  if (layout.shape.numel() == 0) return;
  switch (layout.element_bytes) {
    case 1:
      return strided_copy_of<uint8_t>(from, to, layout);
    case 2:
      return strided_copy_of<uint16_t>(from, to, layout);
    case 4:
      return strided_copy_of<uint32_t>(from, to, layout);
    default:
      return strided_copy_of<uint64_t>(from, to, layout);
  }
}

}  // namespace multihead::kernels
