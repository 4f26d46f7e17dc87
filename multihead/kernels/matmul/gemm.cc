// f32 products, and those with bf16 that is widened: the driver with the engine of f32.
#include "multihead/kernels/matmul/gemm.h"

#include <algorithm>

#include "multihead/kernels/matmul/gemm_amx-inl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/matmul/gemm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/kernels/matmul/driver-inl.h"
#include "multihead/kernels/matmul/engine_f32-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

template TileFunction<Floats> TileOf<Floats>(bool, bool, int64_t, int);  // packed_linear.cc's too

void MultiplyF32(const EngineArgs& g) { MultiplyWith<Floats>(g); }

void FinishSums(const EngineArgs& g, const Block& b) {
  g.c16 != nullptr ? RoundSums<Floats>(g, b) : FinishBlock{g}(b);
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {

HWY_EXPORT(MultiplyF32);
HWY_EXPORT(FinishSums);

void finish_block(const EngineArgs& args, const Block& block) {
  HWY_DYNAMIC_DISPATCH(FinishSums)(args, block);
}

void multiply_widened(const EngineArgs& g) {
  if (g.m == 0 || g.n == 0) return;
  if (g.k > 0) return HWY_DYNAMIC_DISPATCH(MultiplyF32)(g);
  for (int64_t i = 0; i < g.m && g.c != nullptr && !g.accumulate; ++i)
    std::fill_n(g.c + i * g.ldc, g.n, 0.0f);
  const auto columns = static_cast<size_t>(g.n);
  float* zeros = private_scratch->get<float>(columns);
  std::fill_n(zeros, columns, 0.0f);
  finish_block(g, {0, g.m, 0, g.n, zeros, 0});
}

void gemm(const GemmArgs<float>& args) {
  const MatmulPrecision precision = float32_matmul_precision();
  if (precision != MatmulPrecision::highest && has_tiles() && tiles_pay(args))
    return gemm_on_tiles({args}, part_scheme(precision), TileUnit::amx);
  multiply_widened({args});
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
