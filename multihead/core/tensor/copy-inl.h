// Copies between arrays of one shape, whatever their strides and types.
#pragma once

#include <cstring>

#include "multihead/core/dtype.h"
#include "multihead/core/shape.h"
#include "multihead/core/threads/parallel.h"

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

/// Rows and columns of a square at most.
inline constexpr int64_t kTile = 64;

/// to[to + j · step_to + i] is what comes of from[from + i · step_from + j], for `rows` i and `columns` j.
struct Tile {
  int64_t from, step_from, to, step_to, rows, columns;
};

/// If the source has its runs along another axis than the target: f on squares that cover both, on several
/// threads if there are `grain` elements for each. Else false.
bool for_tiles(const Shape& shape, const Shape& strides_from, const Shape& strides_to, int64_t grain,
               FunctionRef<void(const Tile&)> f);

}  // namespace multihead::detail
