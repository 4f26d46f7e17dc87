// Packed f32, and the choice among the types.
#include "multihead/kernels/quantized/packed_linear.h"

#include <algorithm>
#include <iterator>

#include "multihead/core/error.h"
#include "multihead/kernels/quantized/packed_linear_groups.h"
#include "multihead/kernels/quantized/packed_linear_half.h"
#include "multihead/kernels/quantized/packed_linear_int8.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/quantized/packed_linear.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/kernels/matmul/engine_f32-inl.h"
#include "multihead/kernels/matmul/pack-inl.h"
#include "multihead/kernels/quantized/packed_panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

extern template TileFunction<Floats> TileOf<Floats>(bool, bool, int64_t, int);  // in gemm.cc

void PackWeight(const float* weight, int64_t stride, int64_t out, int64_t in, float* packed) {
  for (int64_t i = 0; i < PanelCount(out); ++i) {
    const PackedPanel p(out, i);
    PackB<Floats, float>({weight + p.column * stride, stride, true, in, p.columns, p.vectors},
                         packed + p.column * in);
  }
}

void UnpackWeightRow(const float* packed, int64_t row, int64_t out, int64_t in, float* to) {
  const PackedPanel panel(out, row / kPanelColumns);
  const int64_t width = panel.vectors * kLanes;
  const float* from = packed + panel.column * in + (row - panel.column);
  for (int64_t k = 0; k < in; ++k) to[k] = from[k * width];
}

void PackedLinear(const PackedLinearArgs& p) { MultiplyPacked<Floats>(p, {p.x, p.ldx, p.in}); }

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {

HWY_EXPORT(PaddedColumns);
HWY_EXPORT(PackWeight);
HWY_EXPORT(UnpackWeightRow);
HWY_EXPORT(PackedLinear);

std::string_view name(WeightDtype dtype) {
  constexpr std::string_view kBlocks[] = {"q4_k", "q5_k", "q6_k"};
  const auto index = static_cast<size_t>(dtype);
  return has_blocks(dtype) ? kBlocks[index - std::size(kWeightDtypes)] : kWeightDtypes[index];
}

WeightDtype parse_weight_dtype(std::string_view text) {
  const auto* found = std::find(std::begin(kWeightDtypes), std::end(kWeightDtypes), text);
  MH_CHECK(found != std::end(kWeightDtypes), ValueError,
           "weight_dtype: expected f32, bf16, f16, int8, q8 or q4, got '", text, "'");
  return static_cast<WeightDtype>(found - std::begin(kWeightDtypes));
}

int64_t packed_weight_bytes(WeightDtype dtype, int64_t out, int64_t in) {
  if (has_groups(dtype)) return groups::packed_bytes(dtype, out, in);
  if (dtype == WeightDtype::int8) return int8::packed_bytes(out, in);
  if (is_half(dtype)) return half::packed_bytes(out, in);
  const int64_t bytes = HWY_DYNAMIC_DISPATCH(PaddedColumns)(out) * in * static_cast<int64_t>(sizeof(float));
  return (bytes + 63) / 64 * 64;
}

void pack_weight(WeightDtype dtype, const float* weight, int64_t stride, int64_t out, int64_t in,
                 void* packed) {
  if (has_groups(dtype)) return groups::pack(dtype, weight, stride, out, in, packed);
  if (dtype == WeightDtype::int8) return int8::pack(weight, stride, out, in, packed);
  if (is_half(dtype)) return half::pack(dtype, weight, stride, out, in, packed);
  HWY_DYNAMIC_DISPATCH(PackWeight)(weight, stride, out, in, static_cast<float*>(packed));
}

void pack_stored(const StoredWeight& weight, int64_t out, int64_t in, void* packed) {
  is_half(weight.dtype) ? half::pack(weight, out, in, packed) : groups::pack(weight, out, in, packed);
}

void unpack_weight_row(WeightDtype dtype, const void* packed, int64_t row, int64_t out, int64_t in,
                       float* to) {
  if (is_half(dtype)) return half::unpack_row(dtype, packed, row, out, in, to);
  if (has_groups(dtype)) return groups::unpack_row(dtype, packed, row, in, to);
  HWY_DYNAMIC_DISPATCH(UnpackWeightRow)(static_cast<const float*>(packed), row, out, in, to);
}

void packed_linear(const PackedLinearArgs& args) {
  if (args.rows <= 0 || args.out <= 0) return;
  if (has_groups(args.dtype)) return groups::multiply(args);
  if (args.dtype == WeightDtype::int8) return int8::multiply(args);
  if (is_half(args.dtype)) return half::multiply(args);
  HWY_DYNAMIC_DISPATCH(PackedLinear)(args);
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
