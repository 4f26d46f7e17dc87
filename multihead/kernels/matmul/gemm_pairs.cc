// bf16 products on pairs: the driver with the engine of pairs.
#include "multihead/kernels/matmul/engine_args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/matmul/gemm_pairs.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/kernels/matmul/driver-inl.h"
#include "multihead/kernels/matmul/engine_pairs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
template TileFunction<Pairs> TileOf<Pairs>(bool, bool, int64_t, int);  // half.cc's too

void MultiplyPairs(const EngineArgs& g) { MultiplyWith<Pairs>(g); }
#else
void MultiplyPairs(const EngineArgs& g) { multiply_widened(g); }  // bf16_dots() is false
#endif

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {

HWY_EXPORT(MultiplyPairs);
void multiply_pairs(const EngineArgs& g) { HWY_DYNAMIC_DISPATCH(MultiplyPairs)(g); }

}  // namespace multihead::kernels
#endif  // HWY_ONCE
