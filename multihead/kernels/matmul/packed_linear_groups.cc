// A single row reads panels once, in a few long streams. With many rows the panels pass before blocks of rows
// whose quantised values stay in L2, and every tile has the arithmetic of a single row.
#include "multihead/kernels/matmul/packed_linear_groups.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "multihead/core/dtype.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/kernels/cpu/scratch-inl.h"
#include "multihead/kernels/matmul/packed_linear_panels-inl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/matmul/packed_linear_groups.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/kernels/matmul/epilogue-inl.h"
#include "multihead/kernels/matmul/packed_linear_groups-inl.h"

#ifndef MULTIHEAD_KERNELS_PACKED_LINEAR_GROUPS_ONCE
#define MULTIHEAD_KERNELS_PACKED_LINEAR_GROUPS_ONCE
namespace multihead::kernels {
namespace {

constexpr int64_t kSerialFlops = 4'000'000;  // below, starting threads costs more than it saves
constexpr int64_t kBlockBytes = 256 << 10;   // of quantised rows that stay in L2

// The rows of x: values, then per row and group scales and sums.
struct QuantizedRows {
  int8_t* values;
  float *scales, *sums;
};

}  // namespace
}  // namespace multihead::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

void QuantizeGroups(const PackedLinearArgs& p, const QuantizedRows& to) {
  const int64_t count = groups::groups_of(p.in);
  for (int64_t i = 0; i < p.rows; ++i) {
    for (int64_t g = 0; g < count; ++g) {
      const int64_t at = i * count + g, k = g * kWeightGroup;
      int8_t* q = to.values + at * kWeightGroup;
      to.scales[at] = QuantizeRow(p.x + i * p.ldx + k, std::min(kWeightGroup, p.in - k), kWeightGroup, 0, q);
      int32_t sum = 0;
      for (int64_t j = 0; j < kWeightGroup; ++j) sum += q[j];
      to.sums[at] = static_cast<float>(sum);
    }
  }
}

template <WeightDtype kDtype, bool kDots>
void MultiplyGroupPanels(const PackedLinearArgs& p, const QuantizedRows& x, int64_t begin, int64_t end) {
  constexpr groups::GroupLayout kLayout(kDtype);
  const int64_t count = groups::groups_of(p.in);
  const GemmArgs<float> g = epilogue_of(p);
  const bool finish = HasEpilogue(g);
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  if (p.rows == 1) {
    const int64_t whole = std::min(end, p.out / groups::kPanelColumns),
                  step = (whole - begin) / kGroupStreams;
    for (int64_t panel = begin; panel < begin + step; ++panel) {
      GroupStreams<kDtype, kDots>({.x = x.values,
                                   .x_scales = x.scales,
                                   .x_sums = x.sums,
                                   .groups = count,
                                   .w = static_cast<const uint8_t*>(p.packed) + panel * kLayout.panel(count),
                                   .y = p.y + panel * groups::kPanelColumns,
                                   .columns = groups::kPanelColumns},
                                  step);
    }
    const int64_t panels = step * kGroupStreams;
    if (finish) Finish(g, 0, 1, begin * groups::kPanelColumns, panels * groups::kPanelColumns);
    begin += panels;
  }
#endif
  const int64_t block = std::max(kBlockBytes / (count * kWeightGroup), kGroupTileRows);
  for (int64_t row = 0; row < p.rows; row += block) {
    const int64_t last = std::min(row + block, p.rows);
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t column = panel * groups::kPanelColumns;
      const int64_t columns = std::min(groups::kPanelColumns, p.out - column);
      for (int64_t i = row, rows; i < last; i += rows) {
        rows = std::min(kGroupTileRows, last - i);
        GroupRows<kDtype, kDots>({.x = x.values + i * count * kWeightGroup,
                                  .x_stride = count * kWeightGroup,
                                  .x_scales = x.scales + i * count,
                                  .x_sums = x.sums + i * count,
                                  .groups = count,
                                  .w = static_cast<const uint8_t*>(p.packed) + panel * kLayout.panel(count),
                                  .y = p.y + i * p.ldy + column,
                                  .ldy = p.ldy,
                                  .columns = columns},
                                 rows);
        if (finish) Finish(g, i, rows, column, columns);
      }
    }
  }
}

void MultiplyGroups(const PackedLinearArgs& p) {
  static thread_local Scratch scratch;
  const int64_t count = p.rows * groups::groups_of(p.in);
  auto* floats = scratch.get<float>(static_cast<size_t>(count * (2 + kWeightGroup / 4)));
  const QuantizedRows x{reinterpret_cast<int8_t*>(floats + 2 * count), floats, floats + count};
  QuantizeGroups(p, x);
  const auto run = [&](auto panels) {
    share_panels(p, groups::panels_of(p.out), kSerialFlops,
                 [&](int64_t begin, int64_t end) { panels(p, x, begin, end); });
  };
  const auto run_as = [&](auto dtype) {
    constexpr WeightDtype kDtype = dtype();
#if HWY_TARGET == HWY_AVX3
    if (int8_dots()) return run(MultiplyGroupPanels<kDtype, true>);
#endif
    run(MultiplyGroupPanels<kDtype, false>);
  };
  switch (p.dtype) {
    case WeightDtype::q4:
      return run_as(std::integral_constant<WeightDtype, WeightDtype::q4>());
    case WeightDtype::q4_k:
      return run_as(std::integral_constant<WeightDtype, WeightDtype::q4_k>());
    case WeightDtype::q5_k:
      return run_as(std::integral_constant<WeightDtype, WeightDtype::q5_k>());
    case WeightDtype::q6_k:
      return run_as(std::integral_constant<WeightDtype, WeightDtype::q6_k>());
    default:
      run_as(std::integral_constant<WeightDtype, WeightDtype::q8>());
  }
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels::groups {

HWY_EXPORT(MultiplyGroups);

namespace {

// A group of one output: values in the order of k, without a sign but in q8.
struct Group {
  int8_t values[kWeightGroup] = {};
  Float16 scale, min;       // of the group, or of its block
  uint8_t factors[2] = {};  // in a block: of scale and min; of the scale of either half
};

// To nearest, ties to even, where one is the last place of a float: std::nearbyint is a call on plain x86-64.
int8_t rounded(float value, float low, float high) {
  constexpr float kMiddle = 12582912.0f;  // 1.5 · 2^23
  return static_cast<int8_t>(std::min(std::max(value, low), high) + kMiddle - kMiddle);
}

// The scales are rounded first, so that the values make up for it.
Group quantize(WeightDtype dtype, const float* w, int64_t count) {
  Group g;
  float low = w[0], high = w[0];
  bool finite = true;
  for (int64_t k = 0; k < count; ++k) {
    low = std::min(low, w[k]), high = std::max(high, w[k]);
    finite = finite && std::isfinite(w[k]);
  }
  const bool q4 = dtype == WeightDtype::q4;
  g.scale = Float16(!finite ? NAN : q4 ? high / 15 - low / 15 : std::max(-low, high) / 127);
  if (q4) g.min = Float16(low);
  const auto scale = static_cast<float>(g.scale), min = static_cast<float>(g.min);
  if (scale == 0 || !std::isfinite(scale)) return g;
  for (int64_t k = 0; k < count; ++k) {
    g.values[k] = q4 ? rounded((w[k] - min) / scale, 0, 15) : rounded(w[k] / scale, -127, 127);
  }
  return g;
}

Float16 read_half(const uint8_t* from) {
  Float16 value;
  std::memcpy(&value.bits, from, sizeof(value.bits));
  return value;
}

// Group g of a block of Q4_K or Q5_K: scale, minimum, eight factors of each in six bits, [fifth bits,]
// nibbles of two groups in a byte.
Group group_of_k(bool has_fifth, const uint8_t* block, int64_t g) {
  const uint8_t *sixes = block + 4, *fifth = sixes + 12, *nibbles = fifth + (has_fifth ? kWeightGroup : 0);
  Group to;
  to.scale = read_half(block), to.min = read_half(block + 2);
  for (int64_t part = 0; part < 2; ++part) {
    const int64_t low = g % 4 + 4 * part;
    to.factors[part] = static_cast<uint8_t>(
        g < 4 ? sixes[low] & 63 : (sixes[8 + g % 4] >> (4 * part) & 15) | sixes[low] >> 6 << 4);
  }
  for (int64_t k = 0; k < kWeightGroup; ++k) {
    const int four = nibbles[g / 2 * kWeightGroup + k] >> (g % 2 * 4) & 15;
    to.values[k] = static_cast<int8_t>(has_fifth ? four | (fifth[k] >> g & 1) << 4 : four);
  }
  return to;
}

// Group g of a block of Q6_K: low nibbles, high pairs of bits, factors of groups of 16, scale.
Group group_of_q6_k(const uint8_t* block, int64_t g) {
  const uint8_t *low = block, *high = low + kWeightBlock / 2, *factors = high + kWeightBlock / 4;
  Group to;
  to.scale = read_half(factors + kWeightBlock / 16);
  std::memcpy(to.factors, factors + 2 * g, 2);
  const int64_t section = g / 4, quarter = g % 4;
  for (int64_t k = 0; k < kWeightGroup; ++k) {
    const int four = low[section * 64 + quarter % 2 * 32 + k] >> (quarter / 2 * 4) & 15;
    to.values[k] = static_cast<int8_t>(four | (high[section * 32 + k] >> (quarter * 2) & 3) << 4);
  }
  return to;
}

Group group_at(WeightDtype dtype, const QuantizedGroups& from, int64_t index) {
  const auto at = [&](const void* part) { return static_cast<const uint8_t*>(part) + index * from.stride; };
  const auto half = [&](const void* part) { return read_half(at(part)); };
  if (has_blocks(dtype)) {
    constexpr int64_t kCount = GroupLayout::kGroupsOfBlock;
    const uint8_t* block = static_cast<const uint8_t*>(from.values) + index / kCount * from.stride;
    return dtype == WeightDtype::q6_k ? group_of_q6_k(block, index % kCount)
                                      : group_of_k(dtype == WeightDtype::q5_k, block, index % kCount);
  }
  Group g;
  g.scale = half(from.scales);
  const uint8_t* values = at(from.values);
  if (dtype == WeightDtype::q8) {
    std::memcpy(g.values, values, kWeightGroup);
    return g;
  }
  g.min = from.mins != nullptr ? half(from.mins) : Float16(-8 * static_cast<float>(g.scale));
  for (int64_t k = 0; k < kWeightGroup / 2; ++k) {
    g.values[k] = static_cast<int8_t>(values[k] & 15);
    g.values[k + kWeightGroup / 2] = static_cast<int8_t>(values[k] >> 4);
  }
  return g;
}

// The bits above the nibbles, behind them.
void place_high_bits(WeightDtype dtype, const Group& g, int64_t column, uint8_t* group) {
  constexpr int64_t kPlane = kPanelColumns * kWeightGroup / 2;
  for (int64_t k = 0; k < kWeightGroup && has_blocks(dtype) && dtype != WeightDtype::q4_k; ++k) {
    const bool two = dtype == WeightDtype::q6_k;
    uint8_t& to = group[kPlane + (two ? k / 4 % 2 * kStepBytes : 0) + column * kNeighbours + k % kNeighbours];
    to = static_cast<uint8_t>(to | g.values[k] >> 4 << (two ? k / 8 * 2 : k / 4));
  }
}

// `head`: of the group's block, if it has one.
void place(WeightDtype dtype, const Group& g, int64_t column, uint8_t* to, uint8_t* head) {
  const GroupLayout layout(dtype);
  uint8_t* scales = to + layout.value_bytes;
  uint8_t* halves = (has_blocks(dtype) ? head : scales) + 2 * column;
  std::memcpy(halves, &g.scale.bits, 2);
  if (layout.has_min || layout.head_bytes == 4 * kPanelColumns) {
    std::memcpy(halves + 2 * kPanelColumns, &g.min.bits, 2);
  }
  if (has_blocks(dtype)) scales[column] = g.factors[0], scales[kPanelColumns + column] = g.factors[1];
  constexpr int64_t kHalf = kWeightGroup / 2;
  uint8_t bytes[kWeightGroup];
  std::memcpy(bytes, g.values, sizeof(bytes));
  for (int64_t k = 0; layout.has_nibbles && k < kHalf; ++k) {
    bytes[k] = static_cast<uint8_t>((bytes[k] & 15) | (bytes[k + kHalf] & 15) << 4);
  }
  for (int64_t k = 0; k < (layout.has_nibbles ? kHalf : kWeightGroup); k += kNeighbours) {
    std::memcpy(to + offset_of(column, k), bytes + k, kNeighbours);
  }
  place_high_bits(dtype, g, column, to);
}

// group(row, g) for every group, zeros behind the last row.
template <class GroupOf>
void pack_panels(WeightDtype dtype, int64_t out, int64_t in, void* packed, const GroupOf& group) {
  const GroupLayout layout(dtype);
  const int64_t count = groups_of(in);
  parallel_for(panels_of(out), [&](int64_t panel, int) {
    uint8_t* to = static_cast<uint8_t*>(packed) + panel * layout.panel(count);
    std::fill_n(to, layout.panel(count), uint8_t{0});
    for (int64_t g = 0; g < count; ++g) {
      for (int64_t column = 0; column < kPanelColumns; ++column) {
        const int64_t row = panel * kPanelColumns + column;
        if (row < out) place(dtype, group(row, g), column, to + layout.group(g), to + layout.block(g));
      }
    }
  });
}

}  // namespace

int64_t packed_bytes(WeightDtype dtype, int64_t out, int64_t in) {
  return (panels_of(out) * GroupLayout(dtype).panel(groups_of(in)) + 63) / 64 * 64;
}

void pack(WeightDtype dtype, const float* weight, int64_t stride, int64_t out, int64_t in, void* packed) {
  pack_panels(dtype, out, in, packed, [&](int64_t row, int64_t g) {
    const int64_t k = g * kWeightGroup;
    return quantize(dtype, weight + row * stride + k, std::min(kWeightGroup, in - k));
  });
}

void pack(WeightDtype dtype, const QuantizedGroups& from, int64_t out, int64_t in, void* packed) {
  const int64_t count = has_blocks(dtype)
                            ? (in + kWeightBlock - 1) / kWeightBlock * GroupLayout::kGroupsOfBlock
                            : groups_of(in);
  pack_panels(dtype, out, in, packed,
              [&](int64_t row, int64_t g) { return group_at(dtype, from, row * count + g); });
}

void unpack_row(WeightDtype dtype, const void* packed, int64_t row, int64_t in, float* to) {
  const GroupLayout layout(dtype);
  const int64_t count = groups_of(in), column = row % kPanelColumns;
  const auto* panel = static_cast<const uint8_t*>(packed) + row / kPanelColumns * layout.panel(count);
  for (int64_t g = 0; g < count; ++g) {
    const uint8_t *group = panel + layout.group(g), *scales = group + layout.value_bytes;
    const GroupScales own = scales_at(dtype, scales, panel + layout.block(g), column);
    for (int64_t k = 0; k < std::min(kWeightGroup, in - g * kWeightGroup); ++k) {
      float scale = own.scale;
      if (dtype == WeightDtype::q6_k) {
        scale *=
            static_cast<float>(static_cast<int8_t>(scales[k / (kWeightGroup / 2) * kPanelColumns + column]));
      }
      const float value = static_cast<float>(value_at(dtype, group, column, k)) * scale;
      to[g * kWeightGroup + k] = has_blocks(dtype) ? value - own.min : value + own.min;
    }
  }
}

void multiply(const PackedLinearArgs& args) { HWY_DYNAMIC_DISPATCH(MultiplyGroups)(args); }

}  // namespace multihead::kernels::groups
#endif  // HWY_ONCE
