// bf16 matrices in an f32 product: A widened into the scratch of a task, sums rounded on their way to C.
// (B is widened where it is packed, pack-inl.h.)

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_MATMUL_MIXED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_MATMUL_MIXED_INL_H_
#undef MULTIHEAD_KERNELS_MATMUL_MIXED_INL_H_
#else
#define MULTIHEAD_KERNELS_MATMUL_MIXED_INL_H_
#endif

#include <algorithm>

#include "multihead/kernels/elementwise/activation-inl.h"
#include "multihead/kernels/matmul/engine_args.h"
#include "multihead/kernels/matmul/pack-inl.h"
#include "multihead/kernels/simd/bf16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

template <class T>
HWY_NOINLINE void CopyRows(const T* from, int64_t from_stride, int64_t rows, int64_t columns, float* to,
                           int64_t to_stride) {
  for (int64_t i = 0; i < rows; ++i) CopyFloats(from + i * from_stride, columns, to + i * to_stride);
}

// The first sum of a block of C and the distance between rows; 0 repeats one row.
struct Sums {
  const float* first;
  int64_t stride;
};

template <class Function>
HWY_NOINLINE void RoundWith(const EngineArgs& g, const Sums& sums, int64_t row, int64_t rows, int64_t column,
                            int64_t columns) {
  const TileFloats d;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; j += kLanes) {
      const int64_t lanes = std::min(kLanes, columns - j), at = (row + i) * g.ldc + column + j;
      const bool whole = lanes == kLanes;
      const auto count = static_cast<size_t>(lanes);
      const auto mask = hn::FirstN(d, count);
      const auto load = [&](const float* from)
                            HWY_ATTR { return whole ? hn::LoadU(d, from) : LoadLanes(mask, d, from); };
      const auto store = [&](TileVec x, BFloat16* to)
                             HWY_ATTR { whole ? StoreVector(x, d, to) : StoreFirst(x, d, to, count); };
      TileVec x = load(sums.first + i * sums.stride + j);
      if (g.bias != nullptr) x = hn::Add(x, load(g.bias + column + j));
      if (g.pre_activation16 != nullptr) store(x, g.pre_activation16 + at);
      x = Function::Value(d, x);
      if (g.factor != nullptr) x = hn::Mul(x, load(g.factor + at));
      if (const BFloat16* r = g.residual16; r != nullptr) {
        x = hn::Add(x, whole ? LoadVector(d, r + at) : LoadFirst(d, r + at, count));
      }
      store(x, g.c16 + at);
    }
  }
}

// The epilogue (epilogue-inl.h) of a bf16 C, from sums that lie elsewhere.
inline void RoundSums(const EngineArgs& g, const Sums& sums, int64_t row, int64_t rows, int64_t column,
                      int64_t columns) {
  DispatchActivation(g.activation, [&](auto function) HWY_ATTR {
    RoundWith<decltype(function)>(g, sums, row, rows, column, columns);
  });
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
