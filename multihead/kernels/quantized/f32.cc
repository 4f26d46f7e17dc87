// Packed f32.
#include "multihead/kernels/quantized/packed_linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/quantized/f32.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/kernels/matmul/engine_f32-inl.h"
#include "multihead/kernels/matmul/pack-inl.h"
#include "multihead/kernels/quantized/float_panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

extern template TileFunction<Floats> TileOf<Floats>(bool, bool, int64_t, int);  // in gemm.cc

int64_t F32Bytes(int64_t out, int64_t in) {
  return PaddedColumns(out) * in * static_cast<int64_t>(sizeof(float));
}

void PackF32(const float* weight, int64_t stride, int64_t out, int64_t in, float* packed) {
  for (int64_t i = 0; i < PanelCount(out); ++i) {
    const PackedPanel p(out, i);
    PackB<Floats, float>({weight + p.column * stride, stride, true, in, p.columns, p.vectors},
                         packed + p.column * in);
  }
}

void UnpackF32Row(const float* packed, int64_t row, int64_t out, int64_t in, float* to) {
  const PackedPanel panel(out, row / kPanelColumns);
  const int64_t width = panel.vectors * kLanes;
  const float* from = packed + panel.column * in + (row - panel.column);
  for (int64_t k = 0; k < in; ++k) to[k] = from[k * width];
}

void MultiplyF32(const PackedLinearArgs& p) { MultiplyPacked<Floats>(p, {p.x, p.ldx, p.in}); }

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {

HWY_EXPORT(F32Bytes);
HWY_EXPORT(PackF32);
HWY_EXPORT(MultiplyF32);
HWY_EXPORT(UnpackF32Row);

namespace {

int64_t bytes(const WeightFormat&, int64_t out, int64_t in) {
  return HWY_DYNAMIC_DISPATCH(F32Bytes)(out, in);
}
void pack(const WeightFormat&, const float* weight, int64_t stride, int64_t out, int64_t in, void* packed) {
  HWY_DYNAMIC_DISPATCH(PackF32)(weight, stride, out, in, static_cast<float*>(packed));
}
void unpack_row(const WeightFormat&, const void* packed, int64_t row, int64_t out, int64_t in, float* to) {
  HWY_DYNAMIC_DISPATCH(UnpackF32Row)(static_cast<const float*>(packed), row, out, in, to);
}
void multiply(const WeightFormat&, const PackedLinearArgs& args) { HWY_DYNAMIC_DISPATCH(MultiplyF32)(args); }

}  // namespace

const FormatFunctions f32_functions = {bytes, pack, multiply, unpack_row, nullptr, false, true};

}  // namespace multihead::kernels
#endif  // HWY_ONCE
