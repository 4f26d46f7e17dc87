// The epilogue (epilogue-inl.h) of a bf16 C, from f32 sums that lie elsewhere.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_MATMUL_EPILOGUE_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_MATMUL_EPILOGUE_BF16_INL_H_
#undef MULTIHEAD_KERNELS_MATMUL_EPILOGUE_BF16_INL_H_
#else
#define MULTIHEAD_KERNELS_MATMUL_EPILOGUE_BF16_INL_H_
#endif

#include <algorithm>

#include "multihead/kernels/elementwise/activation-inl.h"
#include "multihead/kernels/matmul/engine_args.h"
#include "multihead/kernels/matmul/epilogue-inl.h"
#include "multihead/kernels/matmul/micro_kernel-inl.h"
#include "multihead/kernels/simd/bf16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// A vector of sums, or its first lanes, to C[at], [at + 1] … in the columns from `column` on.
template <class Engine, class Function, bool kWhole>
HWY_INLINE void RoundVector(const EngineArgs& g, const float* sums, int64_t at, int64_t column,
                            size_t count) {
  const TileFloats d;
  const auto mask = hn::FirstN(d, count);
  const auto load = [&](const float* from)
                        HWY_ATTR { return kWhole ? hn::LoadU(d, from) : LoadLanes(mask, d, from); };
  const auto store = [&](TileVec x, BFloat16* to)
                         HWY_ATTR { kWhole ? Engine::StoreRounded(x, to) : StoreFirst(x, d, to, count); };
  TileVec x = load(sums);
  if (g.bias != nullptr) x = hn::Add(x, load(g.bias + column));
  if (g.pre_activation16 != nullptr) store(x, g.pre_activation16 + at);
  x = Function::Value(d, x);
  if (g.factor != nullptr) x = hn::Mul(x, load(g.factor + at));
  if (const BFloat16* r = g.residual16; r != nullptr) {
    x = hn::Add(x, kWhole ? LoadVector(d, r + at) : LoadFirst(d, r + at, count));
  }
  store(x, g.c16 + at);
}

template <class Engine, class Function, bool kPlain = false>
HWY_NOINLINE void RoundWith(const EngineArgs& g, const Block& b) {
  for (int64_t i = 0; i < b.rows; ++i) {
    const float* from = b.sums + i * b.stride;
    const int64_t at = (b.row + i) * g.ldc + b.column;
    int64_t j = 0;
    if constexpr (kPlain) {
      const TileFloats d;
      for (; j + 2 * kLanes <= b.columns; j += 2 * kLanes)
        Engine::StoreRounded(hn::LoadU(d, from + j), hn::LoadU(d, from + j + kLanes), g.c16 + at + j);
    }
    for (; j + kLanes <= b.columns; j += kLanes)
      RoundVector<Engine, Function, true>(g, from + j, at + j, b.column + j, kLanes);
    if (j == b.columns) continue;
    const auto count = static_cast<size_t>(b.columns - j);
    RoundVector<Engine, Function, false>(g, from + j, at + j, b.column + j, count);
  }
}

template <class Engine>
void RoundSums(const EngineArgs& g, const Block& b) {
  if (!HasEpilogue(g) && g.pre_activation16 == nullptr && g.residual16 == nullptr)
    return RoundWith<Engine, Activate<Activation::none>, true>(g, b);
  DispatchActivation(g.activation,
                     [&](auto function) HWY_ATTR { RoundWith<Engine, decltype(function)>(g, b); });
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
