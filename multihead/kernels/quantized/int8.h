// The int8 part of packed_linear.h.
#pragma once

#include <cstdint>

#include "multihead/kernels/quantized/packed_linear.h"

namespace multihead::kernels::int8 {

/// Rows of x, `stride` apart, zeros past their ends, and the scale of each.
void quantize_rows(const PackedLinearArgs& args, int64_t stride, int8_t* rows, float* scales);

/// Columns of a panel; the last one is as narrow as multiples of kPadding allow.
inline constexpr int64_t kPanelColumns = 64, kPadding = 16;
/// Neighbours along k that are stored together: what one dot product of bytes adds up.
inline constexpr int64_t kGroup = 4;

inline int64_t padded_columns(int64_t out) { return (out + kPadding - 1) / kPadding * kPadding; }
inline int64_t groups_of(int64_t in) { return (in + kGroup - 1) / kGroup; }

/// Layout of a packed weight: panels [k / 4][columns][4], then, per padded column, what starts
/// the sums of dots, and the scales. The same bytes on every machine.
struct PackedInt8 {
  PackedInt8(const void* packed, int64_t out, int64_t in)
      : weights(static_cast<const int8_t*>(packed)),
        starts(reinterpret_cast<const int32_t*>(weights + padded_columns(out) * groups_of(in) * kGroup)),
        scales(reinterpret_cast<const float*>(starts + padded_columns(out))) {}
  const int8_t* weights;
  const int32_t* starts;  ///< -128 · Σ q: the dots' inputs are q + 128
  const float* scales;
};

}  // namespace multihead::kernels::int8
