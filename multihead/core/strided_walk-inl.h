// How broadcast arithmetic and strided copies go through their operands.
#pragma once

#include <algorithm>
#include <cstdint>

#include "multihead/core/shape.h"

namespace multihead::kernels {

// Two strided operands with neighbouring axes merged where both allow it.
struct StridedWalk {
  Shape shape, a, b;

  StridedWalk(const Shape& sizes, const Shape& strides_a, const Shape& strides_b) {
    for (int i = 0; i < sizes.rank(); ++i) {
      if (sizes[i] == 1) continue;
      const int last = shape.rank() - 1;
      if (last >= 0 && a[last] == strides_a[i] * sizes[i] && b[last] == strides_b[i] * sizes[i]) {
        shape[last] *= sizes[i];
        a[last] = strides_a[i];
        b[last] = strides_b[i];
      } else {
        shape.push_back(sizes[i]);
        a.push_back(strides_a[i]);
        b.push_back(strides_b[i]);
      }
    }
    if (shape.rank() == 0) {
      shape.push_back(1);
      a.push_back(1);
      b.push_back(1);
    }
  }
  int64_t inner() const { return shape.back(); }

  // f(offset of a, offset of b, flat index, length) on pieces of the last axis that cover [begin, end).
  template <class F>
  void pieces(int64_t begin, int64_t end, F&& f) const {
    while (begin < end) {
      int64_t row = begin / inner();
      const int64_t column = begin % inner();
      const int64_t length = std::min(inner() - column, end - begin);
      int64_t offset_a = column * a.back(), offset_b = column * b.back();
      for (int axis = shape.rank() - 2; axis >= 0; --axis) {
        offset_a += row % shape[axis] * a[axis];
        offset_b += row % shape[axis] * b[axis];
        row /= shape[axis];
      }
      f(offset_a, offset_b, begin, length);
      begin += length;
    }
  }
};

}  // namespace multihead::kernels
