// Rows are quantised before the product into scratch memory of the calling thread, per row and once for all
// panels; a panel [k / 4][64 columns][4] is 64 bytes a vector, read in order.
#include "multihead/kernels/quantized/int8.h"

#include <algorithm>

#include "multihead/kernels/cpu/isa.h"
#include "multihead/kernels/cpu/scratch-inl.h"
#include "multihead/kernels/quantized/on_tiles-inl.h"
#include "multihead/kernels/quantized/share-inl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/quantized/int8.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/core/threads/per_thread-inl.h"
#include "multihead/kernels/matmul/epilogue-inl.h"
#include "multihead/kernels/quantized/int8-inl.h"
#include "multihead/kernels/quantized/integers-inl.h"

#ifndef MULTIHEAD_KERNELS_QUANTIZED_INT8_ONCE
#define MULTIHEAD_KERNELS_QUANTIZED_INT8_ONCE
namespace multihead::kernels {
namespace {

// Below, starting threads costs more than it saves. On some days two cores take 5 us to meet, on others less
// than one: a decoder layer of 256 in one thread is 10 % slower on the fast days, twice as fast on the slow.
constexpr int64_t kSerialFlops = 12'000'000;
constexpr int64_t kTileRows = 6;  // fewer rows read the weight at full speed with dots

}  // namespace
}  // namespace multihead::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

void PackInt8(const float* weight, int64_t stride, int64_t out, int64_t in, void* packed) {
  static thread_local PerThread<Scratch> scratch;
  const int64_t padded = int8::padded_columns(out), groups = int8::groups_of(in);
  const int8::PackedInt8 parts(packed, out, in);
  auto* weights = static_cast<int8_t*>(packed);
  auto* starts = const_cast<int32_t*>(parts.starts);
  auto* scales = const_cast<float*>(parts.scales);
  auto* row = scratch->get<int16_t>(static_cast<size_t>(groups * int8::kGroup));
  for (int64_t j = 0; j < padded; ++j) {
    const int64_t first = j / int8::kPanelColumns * int8::kPanelColumns;
    const int64_t width = std::min(int8::kPanelColumns, padded - first);
    if (j < out) {
      scales[j] = QuantizeRow(weight + j * stride, in, groups * int8::kGroup, 0, row);
    } else {
      std::fill_n(row, groups * int8::kGroup, int16_t{0});
      scales[j] = 0;
    }
    int8_t* to = weights + (first * groups + j - first) * int8::kGroup;
    int32_t sum = 0;
    for (int64_t g = 0; g < groups; ++g, to += width * int8::kGroup) {
      for (int64_t k = 0; k < int8::kGroup; ++k) {
        sum += row[g * int8::kGroup + k];
        to[k] = static_cast<int8_t>(row[g * int8::kGroup + k]);
      }
    }
    starts[j] = -128 * sum;
  }
}

// All rows of one panel.
void MultiplyInt8Panel(const PackedLinearArgs& p, Int8Tile t, ByteSums sums, int64_t index) {
  const int64_t column = index * int8::kPanelColumns, columns = std::min(int8::kPanelColumns, p.out - column);
  const int8::PackedInt8 parts(p.packed, p.out, p.in);
  const bool here = p.activation == Activation::none || p.activation == Activation::relu;
  const int64_t x_row = t.x_stride * static_cast<int64_t>(HasByteRows(sums) ? sizeof(Int8) : sizeof(int16_t));
  t.groups = int8::groups_of(p.in);
  t.w = parts.weights + column * t.groups * int8::kGroup;
  t.w_step = std::min(int8::kPanelColumns, int8::padded_columns(p.out) - column) * int8::kGroup;
  t.starts = parts.starts + column;
  t.w_scales = parts.scales + column;
  t.relu = p.activation == Activation::relu;
  t.bias = here && p.bias != nullptr ? p.bias + column : nullptr;
  const float* x_scales = t.x_scales;
  const auto* x = static_cast<const char*>(t.x);
  for (int64_t i = 0, rows; i < p.rows; i += rows) {
    rows = TileHeight(p.rows - i, kInt8TileRows, 1);
    t.x = x + i * x_row;
    t.x_scales = x_scales + i;
    t.y = p.y + i * p.ldy + column;
    t.residual = here && p.residual != nullptr ? p.residual + i * p.ldy + column : nullptr;
    Int8Rows(t, rows, columns, sums, p.rows <= kPackedFewRows);
    if (here) continue;
    Finish(epilogue_of(p), i, rows, column, columns);
  }
}

template <class Q>
HWY_NOINLINE void QuantizeRows(const PackedLinearArgs& p, int zero, int64_t stride, Q* q, float* scales) {
  share_rows(p, [&](int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t i = begin; i < end; ++i) {
      scales[i] = QuantizeRow(p.x + i * p.ldx, p.in, stride, zero, q + i * stride);
    }
  });
}

void QuantizeInt8Rows(const PackedLinearArgs& p, int64_t stride, int8_t* rows, float* scales) {
  QuantizeRows(p, 0, stride, rows, scales);
}

void MultiplyInt8(const PackedLinearArgs& p) {
  static thread_local PerThread<Scratch> scratch;
  const ByteSums sums = BestByteSums(p.rows);
  const int64_t stride = int8::groups_of(p.in) * int8::kGroup;
  auto* scales = scratch->get<float>(static_cast<size_t>(p.rows + p.rows * stride / 2));
  Int8Tile t{};
  t.x = scales + p.rows;
  t.x_stride = stride;
  t.x_scales = scales;
  t.ldy = p.ldy;
  if (HasByteRows(sums)) {
    QuantizeRows(p, kInt8Zero, stride, reinterpret_cast<Int8*>(scales + p.rows), scales);
  } else {
    QuantizeRows(p, 0, stride, reinterpret_cast<int16_t*>(scales + p.rows), scales);
  }
  const int64_t panels = (p.out + int8::kPanelColumns - 1) / int8::kPanelColumns;
  share_panels(p, panels, kSerialFlops, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) MultiplyInt8Panel(p, t, sums, i);
  });
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels::int8 {

HWY_EXPORT(PackInt8);
HWY_EXPORT(QuantizeInt8Rows);
HWY_EXPORT(MultiplyInt8);

void quantize_rows(const PackedLinearArgs& args, int64_t stride, int8_t* rows, float* scales) {
  HWY_DYNAMIC_DISPATCH(QuantizeInt8Rows)(args, stride, rows, scales);
}

namespace {

int64_t packed_bytes(const WeightFormat&, int64_t out, int64_t in) {
  return padded_columns(out) *
         (groups_of(in) * kGroup + static_cast<int64_t>(sizeof(int32_t) + sizeof(float)));
}

void pack(const WeightFormat&, const float* weight, int64_t stride, int64_t out, int64_t in, void* packed) {
  HWY_DYNAMIC_DISPATCH(PackInt8)(weight, stride, out, in, packed);
}

void multiply(const WeightFormat&, const PackedLinearArgs& args) {
  if (args.rows >= kTileRows && int8_tiles()) return packed_int8_on_tiles(args, TileUnit::amx);
  HWY_DYNAMIC_DISPATCH(MultiplyInt8)(args);
}

}  // namespace
}  // namespace multihead::kernels::int8

namespace multihead::kernels {
const FormatFunctions int8_functions = {int8::packed_bytes, int8::pack, int8::multiply, nullptr, nullptr};
}  // namespace multihead::kernels
#endif  // HWY_ONCE
