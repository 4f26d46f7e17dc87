// The part of packed_linear.h with groups along k.
#pragma once

#include <cstdint>
#include <cstring>

#include "multihead/core/dtype.h"
#include "multihead/kernels/quantized/packed_linear.h"

namespace multihead::kernels::groups {

int64_t packed_bytes(WeightDtype dtype, int64_t out, int64_t in);
void pack(WeightDtype dtype, const float* weight, int64_t stride, int64_t out, int64_t in, void* packed);
void pack(const StoredWeight& from, int64_t out, int64_t in, void* packed);
void unpack_row(WeightDtype dtype, const void* packed, int64_t row, int64_t in, float* to);
void multiply(const PackedLinearArgs& args);

/// Rows of the weight that are stored side by side.
inline constexpr int64_t kPanelColumns = 16;
/// Neighbours along k that are stored together: what a dot product of bytes adds up.
inline constexpr int64_t kNeighbours = 4;
inline constexpr int64_t kStepBytes = kPanelColumns * kNeighbours;

inline int64_t groups_of(int64_t in) { return (in + kWeightGroup - 1) / kWeightGroup; }
inline int64_t panels_of(int64_t out) { return (out + kPanelColumns - 1) / kPanelColumns; }

/// A packed weight is panels of 16 outputs, a panel is its groups in order, and a group is, the same bytes on
/// every machine,
///   q8  [k / 4][16 outputs][4] int8, [16] scales
///   q4  [k / 4 of the first 16][16 outputs][4] bytes: the low half is the value at k, the high at k + 16;
///       [16] scales, [16] minima
/// with scales and minima in f16. In the K formats eight groups follow [16] scales of a block, and those of
/// its minima but in q6_k, in f16; a group is
///   q4_k  the bytes of q4; [16] scales and [16] minima of bytes, which those of the block multiply
///   q5_k  likewise, and between them [16 outputs][4] bytes whose bit k / 4 is the fifth of the value at k
///   q6_k  likewise, but [2][16 outputs][4] bytes: of number k / 4 % 2, two bits at k / 8 * 2; [2][16] scales
///         of int8, of the first and the last 16 values, which are less by 32 than their bits say
struct GroupLayout {
  constexpr explicit GroupLayout(WeightDtype dtype)
      : has_min(dtype == WeightDtype::q4),
        has_nibbles(dtype != WeightDtype::q8),
        value_bytes(kPanelColumns * kWeightGroup / (has_nibbles ? 2 : 1) +
                    (dtype == WeightDtype::q5_k   ? kStepBytes
                     : dtype == WeightDtype::q6_k ? 2 * kStepBytes
                                                  : 0)),
        bytes(value_bytes + kPanelColumns * (has_min ? 4 : 2)),
        head_bytes(!has_blocks(dtype) ? 0 : kPanelColumns * (dtype == WeightDtype::q6_k ? 2 : 4)) {}
  bool has_min;      // per group, in f16
  bool has_nibbles;  // four bits of the values at k and k + 16 in a byte
  int64_t value_bytes, bytes;
  int64_t head_bytes;  // before every block

  /// Where group g of a panel begins, and its block; the size of a panel of `count` groups.
  constexpr int64_t group(int64_t g) const { return g * bytes + (g / kGroupsOfBlock + 1) * head_bytes; }
  constexpr int64_t block(int64_t g) const {
    return g / kGroupsOfBlock * (kGroupsOfBlock * bytes + head_bytes);
  }
  constexpr int64_t panel(int64_t count) const {
    return count * bytes + (count + kGroupsOfBlock - 1) / kGroupsOfBlock * head_bytes;
  }
  static constexpr int64_t kGroupsOfBlock = kWeightBlock / kWeightGroup;
};

/// Where the value at k of an output is in its group: in q8 and, with k % 16, the nibbles.
constexpr int64_t offset_of(int64_t column, int64_t k) {
  return k / kNeighbours * kStepBytes + column * kNeighbours + k % kNeighbours;
}

inline float half_at(const uint8_t* from, int64_t index) {
  Float16 half;
  std::memcpy(&half.bits, from + 2 * index, sizeof(half.bits));
  return static_cast<float>(half);
}

/// What multiplies the integer sum of a group's output, and its minimum: to be added in q4, to be subtracted
/// in q4_k and q5_k.
struct GroupScales {
  float scale = 0, min = 0;
};
inline GroupScales scales_at(WeightDtype dtype, const uint8_t* scales, const uint8_t* head, int64_t column) {
  const int64_t other = kPanelColumns + column;
  if (dtype == WeightDtype::q8) return {half_at(scales, column), 0};
  if (dtype == WeightDtype::q4) return {half_at(scales, column), half_at(scales, other)};
  if (dtype == WeightDtype::q6_k) return {half_at(head, column), 0};
  return {half_at(head, column) * static_cast<float>(scales[column]),
          half_at(head, other) * static_cast<float>(scales[other])};
}

/// The value at k of a group's output.
inline int value_at(WeightDtype dtype, const uint8_t* group, int64_t column, int64_t k) {
  if (dtype == WeightDtype::q8) return static_cast<int8_t>(group[offset_of(column, k)]);
  constexpr int64_t kHalf = kWeightGroup / 2;
  const int four = group[offset_of(column, k % kHalf)] >> (k / kHalf * 4) & 15;
  const uint8_t* more = group + kPanelColumns * kHalf + column * kNeighbours + k % kNeighbours;
  if (dtype == WeightDtype::q5_k) return four | (*more >> (k / 4) & 1) << 4;
  if (dtype == WeightDtype::q6_k) return (four | (more[k / 4 % 2 * kStepBytes] >> (k / 8 * 2) & 3) << 4) - 32;
  return four;
}

}  // namespace multihead::kernels::groups
