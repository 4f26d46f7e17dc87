// Copies between arrays of one shape, whatever their strides and types.
#pragma once

#include "multihead/core/dtype.h"
#include "multihead/core/shape.h"

namespace multihead::detail {

/// One side of a copy; strides in elements, 0 repeats (not in what is written).
struct StridedElements {
  void* data;
  Dtype dtype;
  const Shape& strides;
};

/// to = from, converted, on several threads if it is worth it.
void copy_elements(const Shape& shape, const StridedElements& from, const StridedElements& to);

}  // namespace multihead::detail
