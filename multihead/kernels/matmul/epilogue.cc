// The epilogue of f32 products, compiled once for all of them.
#include <algorithm>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/matmul/epilogue.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/kernels/elementwise/activation-inl.h"
#include "multihead/kernels/matmul/epilogue-inl.h"
#include "multihead/kernels/simd/first_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace {

template <class Function>
void FinishWith(const GemmArgs<float>& g, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  const TileFloats d;
  for (int64_t i = row; i < row + rows; ++i) {
    for (int64_t j = column; j < column + columns; j += kLanes) {
      const int64_t lanes = std::min(kLanes, column + columns - j), at = i * g.ldc + j;
      const bool whole = lanes == kLanes;
      const auto mask = hn::FirstN(d, static_cast<size_t>(lanes));
      const auto load = [&](const float* from)
                            HWY_ATTR { return whole ? hn::LoadU(d, from) : LoadLanes(mask, d, from); };
      const auto store = [&](TileVec x, float* to)
                             HWY_ATTR { whole ? hn::StoreU(x, d, to) : StoreLanes(x, mask, d, to); };
      // The next tile goes on in the rows below: its operands arrive while it multiplies.
      if (g.factor != nullptr) __builtin_prefetch(g.factor + at + rows * g.ldc);
      if (g.residual != nullptr) __builtin_prefetch(g.residual + at + rows * g.ldc);
      TileVec x = load(g.c + at);
      if (g.bias != nullptr) x = hn::Add(x, load(g.bias + j));
      if (g.pre_activation != nullptr) store(x, g.pre_activation + at);
      x = Function::Value(d, x);
      if (g.factor != nullptr) x = hn::Mul(x, load(g.factor + at));
      if (g.residual != nullptr) x = hn::Add(x, load(g.residual + at));
      store(x, g.c + at);
    }
  }
}

}  // namespace

void Finish(const GemmArgs<float>& g, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  DispatchActivation(g.activation, [&](auto function) HWY_ATTR {
    FinishWith<decltype(function)>(g, row, rows, column, columns);
  });
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
