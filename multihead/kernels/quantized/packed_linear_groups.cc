// A single row reads panels once, in a few long streams. With many rows the panels pass before blocks of rows
// whose quantised values stay in L2, and every tile has the arithmetic of a single row.
#include "multihead/kernels/quantized/packed_linear_groups.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "multihead/core/dtype.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/kernels/cpu/scratch-inl.h"
#include "multihead/kernels/quantized/packed_linear_amx-inl.h"
#include "multihead/kernels/quantized/packed_linear_panels-inl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/quantized/packed_linear_groups.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/kernels/matmul/epilogue-inl.h"
#include "multihead/kernels/quantized/packed_linear_groups-inl.h"

#ifndef MULTIHEAD_KERNELS_PACKED_LINEAR_GROUPS_ONCE
#define MULTIHEAD_KERNELS_PACKED_LINEAR_GROUPS_ONCE
namespace multihead::kernels {
namespace {

constexpr int64_t kSerialFlops = 4'000'000;  // below, starting threads costs more than it saves
constexpr int64_t kBlockBytes = 256 << 10;   // of quantised rows that stay in L2
// A tile takes as long for one row as for 16: the last rows of a product are faster by dots if they are
// fewer.
constexpr int64_t kLastTileRows = 9;  // of q8; of the others 16

thread_local Scratch stored_rows;  // of a weight that is packed

// Calls use(std::integral_constant of a dtype with groups).
template <class Use>
void with_dtype(WeightDtype dtype, const Use& use) {
  switch (dtype) {
    case WeightDtype::q4:
      return use(std::integral_constant<WeightDtype, WeightDtype::q4>());
    case WeightDtype::q4_k:
      return use(std::integral_constant<WeightDtype, WeightDtype::q4_k>());
    case WeightDtype::q5_k:
      return use(std::integral_constant<WeightDtype, WeightDtype::q5_k>());
    case WeightDtype::q6_k:
      return use(std::integral_constant<WeightDtype, WeightDtype::q6_k>());
    default:
      use(std::integral_constant<WeightDtype, WeightDtype::q8>());
  }
}

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

void QuantizeGroups(const PackedLinearArgs& p, const QuantizedRows& to, int64_t begin, int64_t end) {
  const int64_t count = groups::groups_of(p.in);
  for (int64_t i = begin; i < end; ++i) {
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
  share_rows(p, [&](int64_t begin, int64_t end) { QuantizeGroups(p, x, begin, end); });
  const auto run = [&](auto panels) {
    share_panels(p, groups::panels_of(p.out), kSerialFlops,
                 [&](int64_t begin, int64_t end) { panels(p, x, begin, end); });
  };
  with_dtype(p.dtype, [&](auto dtype) {
    constexpr WeightDtype kDtype = dtype();
#if HWY_TARGET == HWY_AVX3
    if (int8_dots()) return run(MultiplyGroupPanels<kDtype, true>);
#endif
    run(MultiplyGroupPanels<kDtype, false>);
  });
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels::groups {

HWY_EXPORT(MultiplyGroups);

namespace {

// A group of one output.
struct Group {
  // q8: the values; else those at k and k + 16 in the halves of a byte.
  uint8_t bytes[kWeightGroup] = {};
  uint8_t high[kWeightGroup] = {};  // the bits above the halves
  Float16 scale, min;               // of the group, or of its block
  uint8_t factors[2] = {};          // in a block: of scale and min; of the scale of either half
};

// Values without a sign of four bits and, in high, more.
void set_values(const uint8_t* values, Group& to) {
  constexpr int64_t kHalf = kWeightGroup / 2;
  for (int64_t k = 0; k < kHalf; ++k)
    to.bytes[k] = static_cast<uint8_t>((values[k] & 15) | values[k + kHalf] << 4);
  for (int64_t k = 0; k < kWeightGroup; ++k) to.high[k] = static_cast<uint8_t>(values[k] >> 4);
}

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
  uint8_t values[kWeightGroup] = {};
  for (int64_t k = 0; k < count; ++k) {
    values[k] =
        static_cast<uint8_t>(q4 ? rounded((w[k] - min) / scale, 0, 15) : rounded(w[k] / scale, -127, 127));
  }
  q4 ? set_values(values, g) : static_cast<void>(std::memcpy(g.bytes, values, kWeightGroup));
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
  uint8_t values[kWeightGroup];
  for (int64_t k = 0; k < kWeightGroup; ++k) {
    const int four = nibbles[g / 2 * kWeightGroup + k] >> (g % 2 * 4) & 15;
    values[k] = static_cast<uint8_t>(has_fifth ? four | (fifth[k] >> g & 1) << 4 : four);
  }
  set_values(values, to);
  return to;
}

// Group g of a block of Q6_K: low nibbles, high pairs of bits, factors of groups of 16, scale.
Group group_of_q6_k(const uint8_t* block, int64_t g) {
  const uint8_t *low = block, *high = low + kWeightBlock / 2, *factors = high + kWeightBlock / 4;
  Group to;
  to.scale = read_half(factors + kWeightBlock / 16);
  std::memcpy(to.factors, factors + 2 * g, 2);
  const int64_t section = g / 4, quarter = g % 4;
  uint8_t values[kWeightGroup];
  for (int64_t k = 0; k < kWeightGroup; ++k) {
    const int four = low[section * 64 + quarter % 2 * 32 + k] >> (quarter / 2 * 4) & 15;
    values[k] = static_cast<uint8_t>(four | (high[section * 32 + k] >> (quarter * 2) & 3) << 4);
  }
  set_values(values, to);
  return to;
}

// Bytes of a stored group; in a K format, of a block of eight.
template <WeightDtype kDtype>
constexpr int64_t stored_bytes(bool has_min) {
  if (kDtype == WeightDtype::q8) return 2 + kWeightGroup;
  if (kDtype == WeightDtype::q4) return (has_min ? 4 : 2) + kWeightGroup / 2;
  return kDtype == WeightDtype::q4_k ? 144 : kDtype == WeightDtype::q5_k ? 176 : 210;
}

int64_t stored_count(WeightDtype dtype, int64_t in) {
  return has_blocks(dtype) ? (in + kWeightBlock - 1) / kWeightBlock : groups_of(in);
}

// Group g of a row.
template <WeightDtype kDtype>
Group group_at(const uint8_t* row, int64_t g, bool has_min) {
  if constexpr (has_blocks(kDtype)) {
    constexpr int64_t kCount = GroupLayout::kGroupsOfBlock;
    const uint8_t* block = row + g / kCount * stored_bytes<kDtype>(has_min);
    if constexpr (kDtype == WeightDtype::q6_k) return group_of_q6_k(block, g % kCount);
    return group_of_k(kDtype == WeightDtype::q5_k, block, g % kCount);
  }
  const uint8_t* from = row + g * stored_bytes<kDtype>(has_min);
  Group to;
  to.scale = read_half(from);
  if constexpr (kDtype == WeightDtype::q8) {
    std::memcpy(to.bytes, from + 2, kWeightGroup);
  } else {
    to.min = has_min ? read_half(from + 2) : Float16(-8 * static_cast<float>(to.scale));
    std::memcpy(to.bytes, from + (has_min ? 4 : 2), kWeightGroup / 2);
  }
  return to;
}

// The bits above the nibbles, stored after them.
template <WeightDtype kDtype>
void place_high_bits(const Group& g, int64_t column, uint8_t* group) {
  constexpr int64_t kPlane = kPanelColumns * kWeightGroup / 2;
  constexpr bool kTwo = kDtype == WeightDtype::q6_k;
  for (int64_t k = 0; k < kWeightGroup; ++k) {
    uint8_t& to =
        group[kPlane + (kTwo ? k / 4 % 2 * kStepBytes : 0) + column * kNeighbours + k % kNeighbours];
    to = static_cast<uint8_t>(to | g.high[k] << (kTwo ? k / 8 * 2 : k / 4));
  }
}

// `head`: of the group's block, if it has one.
template <WeightDtype kDtype>
void place(const Group& g, int64_t column, uint8_t* to, uint8_t* head) {
  constexpr GroupLayout kLayout(kDtype);
  uint8_t* scales = to + kLayout.value_bytes;
  uint8_t* halves = (has_blocks(kDtype) ? head : scales) + 2 * column;
  std::memcpy(halves, &g.scale.bits, 2);
  if constexpr (kLayout.has_min || kLayout.head_bytes == 4 * kPanelColumns) {
    std::memcpy(halves + 2 * kPanelColumns, &g.min.bits, 2);
  }
  if (has_blocks(kDtype)) scales[column] = g.factors[0], scales[kPanelColumns + column] = g.factors[1];
  for (int64_t k = 0; k < (kLayout.has_nibbles ? kWeightGroup / 2 : kWeightGroup); k += kNeighbours) {
    std::memcpy(to + offset_of(column, k), g.bytes + k, kNeighbours);
  }
  if constexpr (kDtype == WeightDtype::q5_k || kDtype == WeightDtype::q6_k)
    place_high_bits<kDtype>(g, column, to);
}

// group(column, g) for every group of a panel, zeros after the last column.
template <WeightDtype kDtype, class GroupOf>
void pack_panel(int64_t columns, int64_t count, uint8_t* to, const GroupOf& group) {
  constexpr GroupLayout kLayout(kDtype);
  std::fill_n(to, kLayout.panel(count), uint8_t{0});
  for (int64_t g = 0; g < count; ++g) {
    for (int64_t column = 0; column < columns; ++column) {
      place<kDtype>(group(column, g), column, to + kLayout.group(g), to + kLayout.block(g));
    }
  }
}

// Reads and packs as many rows at a time as stay in L2 with their packed form.
template <WeightDtype kDtype>
void pack_stored(const StoredWeight& from, int64_t out, int64_t in, uint8_t* packed) {
  constexpr int64_t kReadBytes = 64 << 10;
  const int64_t count = groups_of(in), panel_bytes = GroupLayout(kDtype).panel(count),
                row_bytes = stored_count(kDtype, in) * stored_bytes<kDtype>(from.has_min),
                panels = std::max<int64_t>(kReadBytes / (kPanelColumns * row_bytes), 1),
                step = panels * kPanelColumns;
  parallel_for((out + step - 1) / step, [&](int64_t task, int) {
    const int64_t begin = task * step, end = std::min(begin + step, out);
    auto* rows = stored_rows.get<uint8_t>(static_cast<size_t>((end - begin) * row_bytes));
    from.read(begin, end - begin, rows);
    for (int64_t row = begin; row < end; row += kPanelColumns) {
      const uint8_t* first = rows + (row - begin) * row_bytes;
      pack_panel<kDtype>(std::min(kPanelColumns, end - row), count,
                         packed + row / kPanelColumns * panel_bytes, [&](int64_t column, int64_t g) {
                           return group_at<kDtype>(first + column * row_bytes, g, from.has_min);
                         });
    }
  });
}

template <WeightDtype kDtype>
void pack_floats(const float* weight, int64_t stride, int64_t out, int64_t in, uint8_t* packed) {
  const int64_t count = groups_of(in);
  parallel_for(panels_of(out), [&](int64_t panel, int) {
    const int64_t row = panel * kPanelColumns;
    pack_panel<kDtype>(std::min(kPanelColumns, out - row), count,
                       packed + panel * GroupLayout(kDtype).panel(count), [&](int64_t column, int64_t g) {
                         const int64_t k = g * kWeightGroup;
                         return quantize(kDtype, weight + (row + column) * stride + k,
                                         std::min(kWeightGroup, in - k));
                       });
  });
}

}  // namespace

int64_t packed_bytes(WeightDtype dtype, int64_t out, int64_t in) {
  return (panels_of(out) * GroupLayout(dtype).panel(groups_of(in)) + 63) / 64 * 64;
}

void pack(WeightDtype dtype, const float* weight, int64_t stride, int64_t out, int64_t in, void* packed) {
  auto* to = static_cast<uint8_t*>(packed);
  if (dtype == WeightDtype::q4) return pack_floats<WeightDtype::q4>(weight, stride, out, in, to);
  pack_floats<WeightDtype::q8>(weight, stride, out, in, to);
}

void pack(const StoredWeight& from, int64_t out, int64_t in, void* packed) {
  with_dtype(from.dtype,
             [&](auto dtype) { pack_stored<dtype()>(from, out, in, static_cast<uint8_t*>(packed)); });
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

void multiply(const PackedLinearArgs& args) {
  const int64_t last = args.rows % kAmxLines;
  const bool last_too = args.dtype == WeightDtype::q8 && last >= kLastTileRows;
  const int64_t on_tiles =
      !int8_tiles() || args.dtype == WeightDtype::q6_k ? 0 : args.rows - (last_too ? 0 : last);
  PackedLinearArgs part = args;
  part.rows = on_tiles;
  if (part.rows > 0) packed_groups_on_tiles(part, TileUnit::amx);
  part.rows = args.rows - on_tiles;
  part.x += on_tiles * args.ldx, part.y += on_tiles * args.ldy;
  if (part.residual != nullptr) part.residual += on_tiles * args.ldy;
  if (part.rows > 0) HWY_DYNAMIC_DISPATCH(MultiplyGroups)(part);
}

}  // namespace multihead::kernels::groups
#endif  // HWY_ONCE
