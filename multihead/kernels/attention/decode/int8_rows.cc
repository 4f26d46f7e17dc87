#include "multihead/kernels/attention/decode/int8_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace multihead::kernels {

void quantize_int8_row(const float* x, int64_t dim, int32_t* row) {
  // As integers the bits of positive floats are ordered as the floats are, NaN above all of them.
  uint32_t largest = 0;
  for (int64_t i = 0; i < dim; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  const auto max = std::bit_cast<float>(largest);
  float scale = 0;
  auto* q = reinterpret_cast<int8_t*>(row);
  if (largest >= 0x7f800000u || max < 0x1p-119f) {  // smaller ones would have an infinite inverse
    if (largest >= 0x7f800000u) scale = std::numeric_limits<float>::quiet_NaN();
    std::fill_n(q, dim, int8_t{0});
  } else {
    scale = max / 127;
    const float inverse = 127 / max;
    // Where one is the last place of a float, adding rounds, and the bits count up from those of the middle.
    for (int64_t i = 0; i < dim; ++i) {
      const float middle = x[i] * inverse + 12582912.0f;  // 1.5 · 2^23
      q[i] = static_cast<int8_t>(std::bit_cast<int32_t>(middle) - 0x4b400000);
    }
  }
  std::memcpy(row + dim / 4, &scale, sizeof(scale));
}

void widen_int8_row(const int32_t* row, int64_t dim, float* x) {
  const auto* q = reinterpret_cast<const int8_t*>(row);
  float scale;
  std::memcpy(&scale, row + dim / 4, sizeof(scale));
  for (int64_t i = 0; i < dim; ++i) x[i] = static_cast<float>(q[i]) * scale;
}

}  // namespace multihead::kernels
