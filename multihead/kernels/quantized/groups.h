// The order of weights packed in groups along k.
#pragma once

#include <cstdint>
#include <cstring>
#include <iterator>
#include <utility>

#include "multihead/core/dtype.h"
#include "multihead/kernels/quantized/packed_linear.h"

namespace multihead::kernels::groups {

/// The rows of x, quantised: values, whole groups, rows `stride` apart; of every `block` rows,
/// [group][rows of the block] scales and sums, which are null where they are not wanted.
struct QuantizedRows {
  int8_t* values;
  int64_t stride;
  float *scales, *sums;
  int64_t block = 1;
};

void quantize_rows(const PackedLinearArgs& args, const QuantizedRows& to, int64_t begin, int64_t end);

/// Rows of the weight that are stored side by side.
inline constexpr int64_t kPanelColumns = 16;
/// Neighbours along k that are stored together: what a dot product of bytes adds up.
inline constexpr int64_t kNeighbours = 4;
inline constexpr int64_t kStepBytes = kPanelColumns * kNeighbours;

inline int64_t groups_of(int64_t in) { return (in + kWeightGroup - 1) / kWeightGroup; }
inline int64_t panels_of(int64_t out) { return (out + kPanelColumns - 1) / kPanelColumns; }

/// A packed weight is panels of 16 outputs, a panel is its groups in order, and a group is, the same bytes on
/// every machine, its values,
///   of 8 bits   [k / 4][16 outputs][4] int8
///   of 4        [k / 4 of the first 16][16 outputs][4] bytes: the low half is the value at k, the high at k + 16
///   of 5        the same, then [16 outputs][4] bytes whose bit k / 4 is the fifth of the value at k
///   of 6        the same, but [2][16 outputs][4] bytes: of number k / 4 % 2, two bits at k / 8 * 2
/// then [16] scales and, if it has them, [16] minima in f16. In blocks of eight groups these stand before the
/// block, and after a group's values [2][16] bytes that multiply them: a scale's and a minimum's, or, without
/// minima, signed ones of a scale of the first and of the last 16 values.
struct GroupLayout {
  constexpr explicit GroupLayout(const GroupFormat& format)
      : has_nibbles(format.bits < 8),
        planes(has_nibbles ? format.bits - 4 : 0),
        value_bytes(kPanelColumns * kWeightGroup / (has_nibbles ? 2 : 1) + planes * kStepBytes),
        bytes(value_bytes + kPanelColumns * (format.has_min && !format.in_blocks ? 4 : 2)),
        head_bytes(!format.in_blocks ? 0 : kPanelColumns * (format.has_min ? 4 : 2)) {}
  bool has_nibbles;
  int planes;  // bytes of the bits above the nibbles, for four values each
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

/// Where the bits above the nibbles of four neighbours from k on are: the plane, and the lowest bit's place.
struct HighBits {
  constexpr HighBits(int planes, int64_t k)
      : plane(planes == 2 ? k / kNeighbours % 2 : 0),
        shift(static_cast<int>(planes == 2 ? k / 8 * 2 : k / kNeighbours)) {}
  int64_t plane;
  int shift;
};

/// Calls use.operator()<format>() with the row of the table that equals `format`.
template <class Use>
void with_format(const GroupFormat& format, const Use& use) {
  const auto try_row = [&]<GroupFormat kFormat>() {
    if constexpr (kFormat.bits > 0) {
      if (format == kFormat) use.template operator()<kFormat>();
    }
  };
  [&]<size_t... kRow>(std::index_sequence<kRow...>) {
    (try_row.template operator()<kWeightFormats[kRow].groups>(), ...);
  }
  (std::make_index_sequence<std::size(kWeightFormats)>());
}

/// Where the value at k of an output is in its group: in q8 and, with k % 16, the nibbles.
constexpr int64_t offset_of(int64_t column, int64_t k) {
  return k / kNeighbours * kStepBytes + column * kNeighbours + k % kNeighbours;
}

inline float half_at(const uint8_t* from, int64_t index) {
  Float16 half;
  std::memcpy(&half.bits, from + 2 * index, sizeof(half.bits));
  return static_cast<float>(half);
}

/// The factor of the integer sum of a group's output, and its minimum, to be added. `head` is its block's.
struct GroupScales {
  float scale = 0, min = 0;
};
inline GroupScales scales_at(const GroupFormat& format, const uint8_t* scales, const uint8_t* head,
                             int64_t column) {
  const uint8_t* halves = format.in_blocks ? head : scales;
  const int64_t other = kPanelColumns + column;
  GroupScales own{half_at(halves, column), format.has_min ? half_at(halves, other) : -0.0f};
  if (format.in_blocks && format.has_min) {
    own.scale *= static_cast<float>(scales[column]), own.min *= -static_cast<float>(scales[other]);
  }
  return own;
}

/// The value at k of a group's output.
inline int value_at(const GroupFormat& format, const uint8_t* group, int64_t column, int64_t k) {
  if (format.bits == 8) return static_cast<int8_t>(group[offset_of(column, k)]);
  constexpr int64_t kHalf = kWeightGroup / 2;
  int value = group[offset_of(column, k % kHalf)] >> (k / kHalf * 4) & 15;
  if (const int planes = format.bits - 4; planes > 0) {
    const HighBits at(planes, k);
    const int64_t place = kPanelColumns * kHalf + at.plane * kStepBytes + column * kNeighbours;
    value |= (group[place + k % kNeighbours] >> at.shift & ((1 << planes) - 1)) << 4;
  }
  return value - format.middle();
}

}  // namespace multihead::kernels::groups
