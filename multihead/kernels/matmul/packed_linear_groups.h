// The part of packed_linear.h with groups along k: q8 and q4.
#pragma once

#include <cstdint>

#include "multihead/kernels/matmul/packed_linear.h"

namespace multihead::kernels::groups {

int64_t packed_bytes(WeightDtype dtype, int64_t out, int64_t in);
void pack(WeightDtype dtype, const float* weight, int64_t stride, int64_t out, int64_t in, void* packed);
void pack(WeightDtype dtype, const QuantizedGroups& from, int64_t out, int64_t in, void* packed);
void unpack_row(WeightDtype dtype, const void* packed, int64_t row, int64_t in, float* to);
void multiply(const PackedLinearArgs& args);

/// Rows of the weight that stand side by side.
inline constexpr int64_t kPanelColumns = 16;
/// Neighbours along k that stand together, what a dot product of bytes adds up.
inline constexpr int64_t kNeighbours = 4;
inline constexpr int64_t kStepBytes = kPanelColumns * kNeighbours;

inline int64_t groups_of(int64_t in) { return (in + kWeightGroup - 1) / kWeightGroup; }
inline int64_t panels_of(int64_t out) { return (out + kPanelColumns - 1) / kPanelColumns; }

/// A packed weight is panels of 16 outputs, a panel is its groups in order, and a group is, the same bytes on
/// every machine,
///   q8  [k / 4][16 outputs][4] int8, [16] scales
///   q4  [k / 4 of the first 16][16 outputs][4] bytes: the low half is the value at k, the high at k + 16;
///       [16] scales, [16] minima
/// with scales and minima in f16.
struct GroupLayout {
  constexpr explicit GroupLayout(WeightDtype dtype)
      : has_min(dtype == WeightDtype::q4),
        value_bytes(kPanelColumns * kWeightGroup / (has_min ? 2 : 1)),
        bytes(value_bytes + kPanelColumns * (has_min ? 4 : 2)) {}
  bool has_min;
  int64_t value_bytes, bytes;
};

}  // namespace multihead::kernels::groups
