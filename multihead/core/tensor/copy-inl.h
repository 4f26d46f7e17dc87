// Copies between arrays of one shape, whatever their strides and types.
#pragma once

#include <cstring>

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

/// memcpy(), of few bytes without a call.
inline void copy_bytes(void* to, const void* from, size_t bytes) {
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  if (bytes <= 4096) {
    for (; bytes >= 64; bytes -= 64, target += 64, source += 64) std::memcpy(target, source, 64);
    if (bytes == 0) return;
  }
  std::memcpy(target, source, bytes);
}

}  // namespace multihead::detail
