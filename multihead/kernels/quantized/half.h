// The order of weights packed in 16 bits: bf16 and f16.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "multihead/core/dtype.h"
#include "multihead/kernels/quantized/packed_linear.h"

namespace multihead::kernels::half {

/// A packed weight is panels of 64 outputs, the last one as narrow as a multiple of 16 may be, and a panel
/// is, the same bytes on every machine, of bf16 [ceil(in / 2)][outputs][2], neighbours along k side by side,
/// of f16 [in rounded up to an even number][outputs]; zeros past the ends.
inline constexpr int64_t kColumns = 64;  // outputs of a panel
inline constexpr int64_t kStep = 16;     // what its width is a multiple of

/// Where an output of a packed weight is.
struct Place {
  Place(int64_t row, int64_t out)
      : panel(row / kColumns * kColumns),
        width(std::min(kColumns, (out - panel + kStep - 1) / kStep * kStep)),
        column(row - panel) {}
  // Index of the panel's first value in a weight with rows of `in`.
  int64_t first(int64_t in) const { return (in + 1) / 2 * 2 * panel; }
  // Index of a value in the panel.
  template <class Half>
  int64_t index(int64_t k, int64_t at) const {
    return std::is_same_v<Half, BFloat16> ? (k / 2 * width + at) * 2 + k % 2 : k * width + at;
  }
  int64_t panel, width, column;
};

}  // namespace multihead::kernels::half
