// A single row reads panels once, in a few long streams. With many rows the panels pass before blocks of rows
// whose quantised values stay in L2, and every tile has the arithmetic of a single row.
#include "multihead/kernels/quantized/groups.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "multihead/core/dtype.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/kernels/cpu/scratch-inl.h"
#include "multihead/kernels/quantized/on_tiles-inl.h"
#include "multihead/kernels/quantized/share-inl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/quantized/groups.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/core/threads/per_thread-inl.h"
#include "multihead/kernels/matmul/epilogue-inl.h"
#include "multihead/kernels/quantized/groups-inl.h"

#ifndef MULTIHEAD_KERNELS_QUANTIZED_GROUPS_ONCE
#define MULTIHEAD_KERNELS_QUANTIZED_GROUPS_ONCE
namespace multihead::kernels {
namespace {

constexpr int64_t kSerialFlops = 4'000'000;  // below, starting threads costs more than it saves
constexpr int64_t kBlockBytes = 256 << 10;   // of quantised rows that stay in L2
// A tile takes as long for one row as for 16: the last rows of a product are faster by dots if they are
// fewer.
constexpr int64_t kLastTileRows = 11;  // of q8; of the others 16

thread_local PerThread<Scratch> stored_rows;  // of a weight that is packed

}  // namespace
}  // namespace multihead::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// The scale of a group, its quantised values and their sum, which is not wanted where null.
HWY_INLINE float QuantizeGroup(const float* x, int64_t count, int8_t* q, float* sum) {
#if HWY_TARGET == HWY_AVX3
  const TileFloats d;
  const TileInts di;
  if (HWY_LIKELY(count == kWeightGroup)) {
    const TileVec low = hn::LoadU(d, x), high = hn::LoadU(d, x + kLanes);
    const IntVec most = hn::Max(hn::BitCast(di, hn::Abs(low)), hn::BitCast(di, hn::Abs(high)));
    const RowScale row(hn::GetLane(hn::MaxOfLanes(di, most)));
    if (HWY_LIKELY(row.inverse != 0)) {
      // As in QuantizeRow(); the lowest byte of 1.5 · 2^23 is zero.
      const TileVec inverse = hn::Set(d, row.inverse), middle = hn::Set(d, 12582912.0f);
      const IntVec a = hn::BitCast(di, hn::Add(hn::Mul(low, inverse), middle)),
                   b = hn::BitCast(di, hn::Add(hn::Mul(high, inverse), middle));
      _mm512_mask_cvtepi32_storeu_epi8(q, 0xffff, a.raw);
      _mm512_mask_cvtepi32_storeu_epi8(q + kLanes, 0xffff, b.raw);
      if (sum == nullptr) return row.scale;
      const IntVec base = hn::Set(di, 0x4b400000);
      const IntVec values = hn::Add(hn::Sub(a, base), hn::Sub(b, base));
      *sum = static_cast<float>(hn::GetLane(hn::SumOfLanes(di, values)));
      return row.scale;
    }
  }
#endif
  const float scale = QuantizeRow(x, count, kWeightGroup, 0, q);
  if (sum == nullptr) return scale;
  int32_t total = 0;
  for (int64_t j = 0; j < kWeightGroup; ++j) total += q[j];
  *sum = static_cast<float>(total);
  return scale;
}

#if HWY_TARGET == HWY_AVX3
constexpr int64_t kSideBySide = 16;  // groups of a row, a lane each

// Lane i of the result is `op` of all lanes of v[i].
template <class Op>
HWY_INLINE __m512i OfLanes(const __m512i (&v)[kSideBySide], const Op& op) {
  __m512i pairs[8], quads[4], halves[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
    pairs[i] =
        op(_mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i a = pairs[2 * i], b = pairs[2 * i + 1];
    quads[i] = op(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  }
  const auto blocks = [&](__m512i a, __m512i b) HWY_ATTR {
    return op(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
  };
  halves[0] = blocks(quads[0], quads[1]);
  halves[1] = blocks(quads[2], quads[3]);
  return blocks(halves[0], halves[1]);
}

// QuantizeGroup() of groups side by side, whose scales and sums are `step` apart. False, with nothing done, if
// the scale of one is zero or NaN.
bool QuantizeSideBySide(const float* x, int8_t* q, float* scales, float* sums, int64_t step) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff), base = _mm512_set1_epi32(0x4b400000);
  const auto bits = [&](int64_t i) HWY_ATTR { return _mm512_castps_si512(_mm512_loadu_ps(x + i * kLanes)); };
  __m512i of[kSideBySide];
#pragma GCC unroll 16
  for (int64_t i = 0; i < kSideBySide; ++i) {
    of[i] = _mm512_max_epi32(_mm512_and_si512(bits(2 * i), magnitude),
                             _mm512_and_si512(bits(2 * i + 1), magnitude));
  }
  const __m512i largest = OfLanes(of, [](__m512i a, __m512i b) HWY_ATTR { return _mm512_max_epi32(a, b); });
  const int32_t least = std::bit_cast<int32_t>(0x1p-119f);  // as RowScale has it
  if (_mm512_cmplt_epi32_mask(largest, _mm512_set1_epi32(least)) != 0 ||
      _mm512_cmpge_epi32_mask(largest, _mm512_set1_epi32(0x7f800000)) != 0)
    return false;
  alignas(64) float scale[kSideBySide], inverse[kSideBySide], sum[kSideBySide];
  const __m512 max = _mm512_castsi512_ps(largest), steps = _mm512_set1_ps(127.0f);
  _mm512_store_ps(scale, _mm512_div_ps(max, steps));
  _mm512_store_ps(inverse, _mm512_div_ps(steps, max));
  const auto quantized = [&](int64_t i, __m512 by) HWY_ATTR {
    const __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x + i * kLanes), by);
    const __m512i a = _mm512_castps_si512(_mm512_add_ps(v, _mm512_set1_ps(12582912.0f)));
    _mm512_mask_cvtepi32_storeu_epi8(q + i * kLanes, 0xffff, a);
    return _mm512_sub_epi32(a, base);
  };
#pragma GCC unroll 16
  for (int64_t i = 0; i < kSideBySide; ++i) {
    const __m512 by = _mm512_set1_ps(inverse[i]);
    of[i] = _mm512_add_epi32(quantized(2 * i, by), quantized(2 * i + 1, by));
  }
  for (int64_t i = 0; i < kSideBySide; ++i) scales[i * step] = scale[i];
  if (sums == nullptr) return true;
  const __m512i all = OfLanes(of, [](__m512i a, __m512i b) HWY_ATTR { return _mm512_add_epi32(a, b); });
  _mm512_store_ps(sum, hn::ConvertTo(TileFloats(), IntVec{all}).raw);
  for (int64_t i = 0; i < kSideBySide; ++i) sums[i * step] = sum[i];
  return true;
}
#endif

void QuantizeGroups(const PackedLinearArgs& p, const groups::QuantizedRows& to, int64_t begin, int64_t end) {
  const int64_t count = groups::groups_of(p.in);
  for (int64_t i = begin; i < end; ++i) {
    int64_t at = i / to.block * count * to.block + i % to.block;
    const auto sums = [&] { return to.sums == nullptr ? nullptr : to.sums + at; };
    for (int64_t k = 0; k < p.in; k += kWeightGroup, at += to.block) {
      const float* x = p.x + i * p.ldx + k;
      int8_t* q = to.values + i * to.stride + k;
#if HWY_TARGET == HWY_AVX3
      constexpr int64_t kWide = kSideBySide * kWeightGroup;
      while (k + kWide <= p.in && QuantizeSideBySide(x, q, to.scales + at, sums(), to.block)) {
        k += kWide;
        x += kWide;
        q += kWide;
        at += kSideBySide * to.block;
      }
      if (k >= p.in) break;
#endif
      to.scales[at] = QuantizeGroup(x, std::min(kWeightGroup, p.in - k), q, sums());
    }
  }
}

// Rows [row, last) times as many panels, `step` apart. Without a distance they are one panel, multiplied again.
template <GroupFormat kFormat, ByteSums kSums, int kStreams>
void MultiplyPanelStreams(const PackedLinearArgs& p, const groups::QuantizedRows& x, int64_t row,
                          int64_t last, int64_t panel, int64_t step) {
  constexpr groups::GroupLayout kLayout(kFormat);
  const int64_t count = groups::groups_of(p.in), column = panel * groups::kPanelColumns;
  const int64_t columns = std::min(groups::kPanelColumns, p.out - column);
  const GemmArgs<float> g = epilogue_of(p);
  const bool finish = p.rows > 1 && HasEpilogue(g);
  for (int64_t i = row, rows; i < last; i += rows) {
    rows = std::min(kGroupTileRows, last - i);
    GroupRows<kFormat, kSums, kStreams>(
        {.x = x.values + i * count * kWeightGroup,
         .x_stride = count * kWeightGroup,
         .x_scales = x.scales + i * count,
         .x_sums = x.sums + i * count,
         .groups = count,
         .w = static_cast<const uint8_t*>(p.packed) + panel * kLayout.panel(count),
         .y = p.y + i * p.ldy + column,
         .ldy = p.ldy,
         .columns = columns},
        rows, step);
    for (int s = 0; finish && s < (step > 0 ? kStreams : 1); ++s)
      Finish(g, i, rows, column + s * step * groups::kPanelColumns, columns);
  }
}

template <GroupFormat kFormat, ByteSums kSums>
void MultiplyGroupPanels(const PackedLinearArgs& p, const groups::QuantizedRows& x, int64_t begin,
                         int64_t end) {
  const int64_t whole = std::min(end, p.out / groups::kPanelColumns);
  constexpr int kRest = kSums != ByteSums::pairs ? kManyRowsStreams : 1;
  // All panels before rows [row, last), in streams, and what is left over of them.
  const auto run = [&]<int kStreams>(int64_t row, int64_t last) {
    const int64_t step = std::max<int64_t>(whole - begin, 0) / kStreams;
    for (int64_t panel = begin; panel < begin + step; ++panel)
      MultiplyPanelStreams<kFormat, kSums, kStreams>(p, x, row, last, panel, step);
    for (int64_t panel = begin + step * kStreams; panel < end; ++panel)
      MultiplyPanelStreams<kFormat, kSums, kRest>(p, x, row, last, panel, 0);
  };
  if (p.rows == 1) {
    run.template operator()<kGroupStreams>(0, 1);
    const int64_t column = begin * groups::kPanelColumns;
    const GemmArgs<float> g = epilogue_of(p);
    if (HasEpilogue(g)) Finish(g, 0, 1, column, std::min(end * groups::kPanelColumns, p.out) - column);
    return;
  }
  const int64_t block = std::max(kBlockBytes / (groups::groups_of(p.in) * kWeightGroup), kGroupTileRows);
  for (int64_t row = 0; row < p.rows; row += block)
    run.template operator()<kRest>(row, std::min(row + block, p.rows));
}

void MultiplyGroups(const PackedLinearArgs& p) {
  static thread_local PerThread<Scratch> scratch;
  const int64_t count = p.rows * groups::groups_of(p.in);
  auto* floats = scratch->get<float>(static_cast<size_t>(count * (2 + kWeightGroup / 4)));
  const groups::QuantizedRows x{reinterpret_cast<int8_t*>(floats + 2 * count),
                                groups::groups_of(p.in) * kWeightGroup, floats, floats + count};
  share_rows(p, [&](int64_t begin, int64_t end) { QuantizeGroups(p, x, begin, end); });
  const auto run = [&](auto panels) {
    share_panels(p, groups::panels_of(p.out), kSerialFlops,
                 [&](int64_t begin, int64_t end) { panels(p, x, begin, end); });
  };
  [[maybe_unused]] const ByteSums sums = BestByteSums(p.rows);
  groups::with_format(format_of(p.dtype).groups, [&]<GroupFormat kFormat>() {
#if HWY_TARGET == HWY_NEON
    if (sums == ByteSums::squares) return run(MultiplyGroupPanels<kFormat, ByteSums::squares>);
#endif
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
    if (sums == ByteSums::dots) return run(MultiplyGroupPanels<kFormat, ByteSums::dots>);
#endif
    run(MultiplyGroupPanels<kFormat, ByteSums::pairs>);
  });
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels::groups {

HWY_EXPORT(MultiplyGroups);
HWY_EXPORT(QuantizeGroups);

void quantize_rows(const PackedLinearArgs& args, const QuantizedRows& to, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(QuantizeGroups)(args, to, begin, end);
}

namespace {

// To nearest, ties to even, where one is the last place of a float: std::nearbyint is a call on plain x86-64.
int8_t rounded(float value, float low, float high) {
  constexpr float kMiddle = 12582912.0f;  // 1.5 · 2^23
  return static_cast<int8_t>(std::min(std::max(value, low), high) + kMiddle - kMiddle);
}

// The scales are rounded first, so that the values make up for it.
BlockGroup quantize(const GroupFormat& format, const float* w, int64_t count) {
  BlockGroup g;
  float low = w[0], high = w[0];
  bool finite = true;
  for (int64_t k = 0; k < count; ++k) {
    low = std::min(low, w[k]), high = std::max(high, w[k]);
    finite = finite && std::isfinite(w[k]);
  }
  const auto last = static_cast<float>((1 << (format.has_min ? format.bits : format.bits - 1)) - 1),
             first = format.has_min ? 0 : -last;
  g.scale = Float16(!finite ? NAN : format.has_min ? high / last - low / last : std::max(-low, high) / last);
  if (format.has_min) g.min = Float16(low), g.min_factors[0] = -1;
  const auto scale = static_cast<float>(g.scale), min = static_cast<float>(g.min);
  if (scale == 0 || !std::isfinite(scale)) return g;
  for (int64_t k = 0; k < count; ++k) g.values[k] = rounded((w[k] - min) / scale, first, last);
  return g;
}

// `head`: of the group's block, if it has one.
template <GroupFormat kFormat>
void place(const BlockGroup& g, int64_t column, uint8_t* to, uint8_t* head) {
  constexpr GroupLayout kLayout(kFormat);
  uint8_t* scales = to + kLayout.value_bytes;
  uint8_t* halves = (kFormat.in_blocks ? head : scales) + 2 * column;
  std::memcpy(halves, &g.scale.bits, 2);
  if (kFormat.has_min) {
    // An offset becomes a minimum.
    const bool shifts = !kFormat.in_blocks && g.min_factors[0] == 0;
    const Float16 min = shifts ? Float16(static_cast<float>(-g.offset) * static_cast<float>(g.scale)) : g.min;
    std::memcpy(halves + 2 * kPanelColumns, &min.bits, 2);
  }
  if (kFormat.in_blocks) {
    scales[column] = static_cast<uint8_t>(g.factors[0]);
    scales[kPanelColumns + column] = static_cast<uint8_t>(kFormat.has_min ? g.min_factors[0] : g.factors[1]);
  }
  const int more = kFormat.has_min ? 0 : kFormat.middle() - g.offset;
  constexpr int64_t kHalf = kWeightGroup / 2;
  uint8_t values[kWeightGroup], bytes[kWeightGroup];
  for (int64_t k = 0; k < kWeightGroup; ++k) values[k] = bytes[k] = static_cast<uint8_t>(g.values[k] + more);
  for (int64_t k = 0; k < kHalf && kLayout.has_nibbles; ++k)
    bytes[k] = static_cast<uint8_t>((values[k] & 15) | values[k + kHalf] << 4);
  for (int64_t k = 0; k < (kLayout.has_nibbles ? kHalf : kWeightGroup); k += kNeighbours) {
    std::memcpy(to + offset_of(column, k), bytes + k, kNeighbours);
  }
  for (int64_t k = 0; k < kWeightGroup && kLayout.planes > 0; ++k) {
    const HighBits at(kLayout.planes, k);
    uint8_t& byte =
        to[kPanelColumns * kHalf + at.plane * kStepBytes + column * kNeighbours + k % kNeighbours];
    byte = static_cast<uint8_t>(byte | values[k] >> 4 << at.shift);
  }
}

// group(column, g) for every group of a panel, zeros after the last column.
template <class GroupOf>
void pack_panel(const GroupFormat& format, int64_t columns, int64_t count, uint8_t* to,
                const GroupOf& group) {
  with_format(format, [&]<GroupFormat kFormat>() {
    constexpr GroupLayout kLayout(kFormat);
    std::fill_n(to, kLayout.panel(count), uint8_t{0});
    for (int64_t g = 0; g < count; ++g) {
      for (int64_t column = 0; column < columns; ++column)
        place<kFormat>(group(column, g), column, to + kLayout.group(g), to + kLayout.block(g));
    }
  });
}

int64_t packed_bytes(const WeightFormat& format, int64_t out, int64_t in) {
  return panels_of(out) * GroupLayout(format.groups).panel(groups_of(in));
}

void pack(const WeightFormat& format, const float* weight, int64_t stride, int64_t out, int64_t in,
          void* packed) {
  const int64_t count = groups_of(in), panel_bytes = GroupLayout(format.groups).panel(count);
  parallel_for(panels_of(out), [&](int64_t panel, int) {
    const int64_t row = panel * kPanelColumns;
    pack_panel(format.groups, std::min(kPanelColumns, out - row), count,
               static_cast<uint8_t*>(packed) + panel * panel_bytes, [&](int64_t column, int64_t g) {
                 const int64_t k = g * kWeightGroup;
                 return quantize(format.groups, weight + (row + column) * stride + k,
                                 std::min(kWeightGroup, in - k));
               });
  });
}

// Reads and packs as many rows at a time as stay in L2 with their packed form.
void pack_stored(const WeightFormat& format, const StoredWeight& from, int64_t out, int64_t in,
                 void* packed) {
  constexpr int64_t kReadBytes = 64 << 10;
  const BlockFormat& stored = from.format;
  const int64_t count = groups_of(in), panel_bytes = GroupLayout(format.groups).panel(count),
                row_bytes = (in + stored.block - 1) / stored.block * stored.bytes,
                panels = std::max<int64_t>(kReadBytes / (kPanelColumns * row_bytes), 1),
                step = panels * kPanelColumns, of_block = stored.block / kWeightGroup;
  parallel_for((out + step - 1) / step, [&](int64_t task, int) {
    const int64_t begin = task * step, end = std::min(begin + step, out);
    auto* rows = stored_rows->get<uint8_t>(static_cast<size_t>((end - begin) * row_bytes));
    from.read(begin, end - begin, rows);
    for (int64_t row = begin; row < end; row += kPanelColumns) {
      const uint8_t* first = rows + (row - begin) * row_bytes;
      pack_panel(format.groups, std::min(kPanelColumns, end - row), count,
                 static_cast<uint8_t*>(packed) + row / kPanelColumns * panel_bytes,
                 [&](int64_t column, int64_t g) {
                   const uint8_t* block = first + column * row_bytes + g / of_block * stored.bytes;
                   return stored.group(block, g % of_block);
                 });
    }
  });
}

void unpack_row(const WeightFormat& packed_as, const void* packed, int64_t row, int64_t, int64_t in,
                float* to) {
  const GroupFormat& format = packed_as.groups;
  const GroupLayout layout(format);
  const int64_t count = groups_of(in), column = row % kPanelColumns;
  const auto* panel = static_cast<const uint8_t*>(packed) + row / kPanelColumns * layout.panel(count);
  for (int64_t g = 0; g < count; ++g) {
    const uint8_t *group = panel + layout.group(g), *scales = group + layout.value_bytes;
    const GroupScales own = scales_at(format, scales, panel + layout.block(g), column);
    for (int64_t k = 0; k < std::min(kWeightGroup, in - g * kWeightGroup); ++k) {
      float scale = own.scale;
      if (format.has_two_scales()) {
        scale *=
            static_cast<float>(static_cast<int8_t>(scales[k / (kWeightGroup / 2) * kPanelColumns + column]));
      }
      to[g * kWeightGroup + k] = static_cast<float>(value_at(format, group, column, k)) * scale + own.min;
    }
  }
}

void multiply(const WeightFormat& format, const PackedLinearArgs& args) {
  const int64_t last = args.rows % kAmxLines;
  const bool last_too = format.groups.bits == 8 && last >= kLastTileRows;
  const int64_t on_tiles = int8_tiles() ? args.rows - (last_too ? 0 : last) : 0;
  PackedLinearArgs part = args;
  part.rows = on_tiles;
  if (part.rows > 0) packed_groups_on_tiles(part, TileUnit::amx);
  part.rows = args.rows - on_tiles;
  part.x += on_tiles * args.ldx, part.y += on_tiles * args.ldy;
  if (part.residual != nullptr) part.residual += on_tiles * args.ldy;
  if (part.rows > 0) HWY_DYNAMIC_DISPATCH(MultiplyGroups)(part);
}

}  // namespace
}  // namespace multihead::kernels::groups

namespace multihead::kernels {
const FormatFunctions group_functions = {groups::packed_bytes, groups::pack, groups::multiply,
                                         groups::unpack_row, groups::pack_stored};
}  // namespace multihead::kernels
#endif  // HWY_ONCE
