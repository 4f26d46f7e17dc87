// Copies between arrays of one shape and any strides.
#pragma once

#include <cstddef>

#include "multihead/core/shape.h"

namespace multihead::kernels {

/// Copies elements of `element_bytes` (1, 2, 4 or 8) between strided arrays of one shape.
struct CopyLayout {
  Shape shape;
  Shape strides_from, strides_to;
  size_t element_bytes = 4;
};
void strided_copy(const void* from, void* to, const CopyLayout& layout);

}  // namespace multihead::kernels
