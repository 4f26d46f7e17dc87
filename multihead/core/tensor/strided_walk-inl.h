// How broadcast arithmetic and copies go through two strided operands.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "multihead/core/shape.h"

namespace multihead::detail {

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

  // From a row to the next along the axis before the last.
  int64_t row_a() const { return a.rank() > 1 ? a[-2] : 0; }
  int64_t row_b() const { return b.rank() > 1 ? b[-2] : 0; }

  // f(offset of a, offset of b, flat index, rows, length) on blocks that cover [begin, end): neighbouring
  // rows, or a piece of one.
  template <class F>
  void blocks(int64_t begin, int64_t end, F&& f) const {
    if (begin >= end) return;
    const int last = shape.rank() - 1;
    const int64_t *sizes = shape.begin(), *steps_a = a.begin(), *steps_b = b.begin();
    const int64_t row_length = sizes[last];
    std::array<int64_t, Shape::kMaxRank> index = {};
    int64_t at_a = 0, at_b = 0, row = begin / row_length, column = begin % row_length;
    for (int axis = last - 1; axis >= 0; row /= sizes[axis--]) {
      index[axis] = row % sizes[axis];
      at_a += index[axis] * steps_a[axis];
      at_b += index[axis] * steps_b[axis];
    }
    while (true) {
      const int64_t length = std::min(row_length - column, end - begin);
      int64_t rows = 1;
      if (last > 0 && length == row_length) {
        rows = std::min(sizes[last - 1] - index[last - 1], (end - begin) / row_length);
      }
      f(at_a + column * steps_a[last], at_b + column * steps_b[last], begin, rows, length);
      if ((begin += rows * length) >= end) return;
      column = 0;
      for (int axis = last - 1; axis >= 0; --axis, rows = 1) {
        at_a += rows * steps_a[axis];
        at_b += rows * steps_b[axis];
        if ((index[axis] += rows) < sizes[axis]) break;
        at_a -= steps_a[axis] * sizes[axis];
        at_b -= steps_b[axis] * sizes[axis];
        index[axis] = 0;
      }
    }
  }

  // f(offset of a, offset of b, flat index, length), row by row.
  template <class F>
  void pieces(int64_t begin, int64_t end, F&& f) const {
    blocks(begin, end, [&](int64_t at_a, int64_t at_b, int64_t at, int64_t rows, int64_t length) {
      for (int64_t row = 0; row < rows; ++row) {
        f(at_a + row * row_a(), at_b + row * row_b(), at + row * length, length);
      }
    });
  }
};

}  // namespace multihead::detail
