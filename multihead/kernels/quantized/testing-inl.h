// Memory for packed weights.
#pragma once

#include <algorithm>
#include <vector>

#include "multihead/kernels/quantized/packed_linear.h"
#include "multihead/testing/everywhere.h"

namespace multihead::testing {

struct alignas(64) Line {
  float floats[16];
};

// A packed weight, with NaN where packing does not write.
struct Packed {
  Packed(kernels::WeightDtype dtype, const std::vector<float>& weight, int64_t stride, int64_t out,
         int64_t in)
      : lines(static_cast<size_t>(kernels::packed_weight_bytes(dtype, out, in) / 64)) {
    for (Line& line : lines) std::fill_n(line.floats, 16, kNan);
    kernels::pack_weight(dtype, weight.data(), stride, out, in, lines.data());
  }
  const void* data() const { return lines.data(); }
  std::vector<Line> lines;
};

}  // namespace multihead::testing
