// Panels of kMaxVectors·lanes columns, k after k, each of them one run of memory; the last one is as narrow
// as it may be. With few rows every panel is read once, in order, at the rate of the memory it lies in; with
// many it stays in L2, and the tiles of one panel fetch the next.
#include "multihead/kernels/matmul/packed_linear.h"

#include <algorithm>
#include <iterator>

#include "multihead/core/error.h"
#include "multihead/kernels/matmul/packed_linear_groups.h"
#include "multihead/kernels/matmul/packed_linear_int8.h"
#include "multihead/kernels/matmul/packed_linear_panels-inl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/matmul/packed_linear.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/kernels/matmul/engine_f32-inl.h"
#include "multihead/kernels/matmul/epilogue-inl.h"
#include "multihead/kernels/matmul/few_rows-inl.h"
#include "multihead/kernels/matmul/micro_kernel-inl.h"
#include "multihead/kernels/matmul/pack-inl.h"

#ifndef MULTIHEAD_KERNELS_PACKED_LINEAR_ONCE
#define MULTIHEAD_KERNELS_PACKED_LINEAR_ONCE
namespace multihead::kernels {
namespace {

constexpr int64_t kLongestK = 1024;          // of one pass over a panel: 256 KiB
constexpr int64_t kSerialFlops = 2'000'000;  // below, starting threads costs more than it saves
constexpr int64_t kLineFloats = 16;

}  // namespace
}  // namespace multihead::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

inline constexpr int64_t kPanelColumns = kMaxVectors * kLanes;
static_assert(kLongestK % kChain == 0, "chains are cut where gemm() cuts them");

int64_t PaddedColumns(int64_t out) { return (out + kLanes - 1) / kLanes * kLanes; }
int64_t PanelCount(int64_t out) { return (out + kPanelColumns - 1) / kPanelColumns; }

struct PackedPanel {
  PackedPanel(int64_t out, int64_t index)
      : column(index * kPanelColumns),
        columns(std::min(kPanelColumns, out - column)),
        vectors(static_cast<int>((columns + kLanes - 1) / kLanes)) {}
  int64_t column, columns;
  int vectors;
};

void PackWeight(const float* weight, int64_t stride, int64_t out, int64_t in, float* packed) {
  for (int64_t i = 0; i < PanelCount(out); ++i) {
    const PackedPanel p(out, i);
    PackB<Floats, float>({weight + p.column * stride, stride, true, in, p.columns, p.vectors},
                         packed + p.column * in);
  }
}

void MultiplyPackedPanel(const PackedLinearArgs& p, int64_t index, LateFinish& finish) {
  const PackedPanel panel(p.out, index);
  const float* weights = static_cast<const float*>(p.packed) + panel.column * p.in;
  const float* next = index + 1 < PanelCount(p.out) ? weights + kPanelColumns * p.in : nullptr;
  GemmTileArgs t{};
  t.a_stride = p.ldx;
  t.b_stride = panel.vectors * kLanes;
  t.c_stride = p.ldy;
  t.last_lanes = panel.columns - (panel.vectors - 1) * kLanes;
  for (int64_t k = 0; k < p.in; k += kLongestK) {
    t.k = std::min(kLongestK, p.in - k);
    t.b = weights + k * t.b_stride;
    t.add_c = k > 0;
    const int64_t lines = next != nullptr ? kPanelColumns / kLineFloats : 0;
    int64_t line = 0;
    for (int64_t i = 0, height; i < p.rows; i += height, ++line) {
      height = TileHeight(p.rows - i, kTileRows[panel.vectors], panel.vectors);
      t.a = p.x + i * p.ldx + k;
      t.c = p.y + i * p.ldy + panel.column;
      const bool streams = line < lines && t.k == p.in;
      if (streams) {
        t.next_a = {t.b, 0};
        t.next_b = {next + line * t.k * kLineFloats, kLineFloats};
      }
      if (p.rows <= kPackedFewRows && panel.vectors == kMaxVectors) {
        RowsInPlace<Floats, kMaxVectors>(height, t);
      } else {
        TileOf<Floats>(true, streams, height, panel.vectors)(t);
      }
      if (k + t.k == p.in) finish({i, height, panel.column, panel.columns});
    }
  }
}

void PackedLinear(const PackedLinearArgs& p) {
  GemmArgs<float> g;
  g.c = p.y;
  g.ldc = p.ldy;
  g.bias = p.bias;
  g.activation = p.activation;
  g.residual = p.residual;
  share_panels(p, PanelCount(p.out), kSerialFlops, [&](int64_t begin, int64_t end) {
    LateFinish finish({g});
    for (int64_t i = begin; i < end; ++i) MultiplyPackedPanel(p, i, finish);
  });
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {

HWY_EXPORT(PaddedColumns);
HWY_EXPORT(PackWeight);
HWY_EXPORT(PackedLinear);

namespace {
constexpr std::string_view kWeightDtypes[] = {"f32", "int8", "q8", "q4"};
bool has_groups(WeightDtype dtype) { return dtype == WeightDtype::q8 || dtype == WeightDtype::q4; }
}  // namespace

std::string_view name(WeightDtype dtype) { return kWeightDtypes[static_cast<size_t>(dtype)]; }

WeightDtype parse_weight_dtype(std::string_view text) {
  const auto* found = std::find(std::begin(kWeightDtypes), std::end(kWeightDtypes), text);
  MH_CHECK(found != std::end(kWeightDtypes), ValueError, "weight_dtype: expected f32, int8, q8 or q4, got '",
           text, "'");
  return static_cast<WeightDtype>(found - std::begin(kWeightDtypes));
}

int64_t packed_weight_bytes(WeightDtype dtype, int64_t out, int64_t in) {
  if (has_groups(dtype)) return groups::packed_bytes(dtype, out, in);
  if (dtype == WeightDtype::int8) return int8::packed_bytes(out, in);
  const int64_t bytes = HWY_DYNAMIC_DISPATCH(PaddedColumns)(out) * in * static_cast<int64_t>(sizeof(float));
  return (bytes + 63) / 64 * 64;
}

void pack_weight(WeightDtype dtype, const float* weight, int64_t stride, int64_t out, int64_t in,
                 void* packed) {
  if (has_groups(dtype)) return groups::pack(dtype, weight, stride, out, in, packed);
  if (dtype == WeightDtype::int8) return int8::pack(weight, stride, out, in, packed);
  HWY_DYNAMIC_DISPATCH(PackWeight)(weight, stride, out, in, static_cast<float*>(packed));
}

void pack_groups(WeightDtype dtype, const QuantizedGroups& from, int64_t out, int64_t in, void* packed) {
  groups::pack(dtype, from, out, in, packed);
}

void unpack_weight_row(WeightDtype dtype, const void* packed, int64_t row, int64_t in, float* to) {
  groups::unpack_row(dtype, packed, row, in, to);
}

void packed_linear(const PackedLinearArgs& args) {
  if (args.rows <= 0 || args.out <= 0) return;
  if (has_groups(args.dtype)) return groups::multiply(args);
  if (args.dtype == WeightDtype::int8) return int8::multiply(args);
  HWY_DYNAMIC_DISPATCH(PackedLinear)(args);
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
