// f64 products: the driver with the engine of f64.
#include <algorithm>
#include <cmath>

#include "multihead/kernels/matmul/gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/matmul/gemm_f64.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#ifndef MULTIHEAD_KERNELS_MATMUL_GEMM_F64_ONCE
#define MULTIHEAD_KERNELS_MATMUL_GEMM_F64_ONCE
namespace multihead::kernels {

inline double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::relu:
      return std::max(x, 0.0);
    case Activation::gelu:
      return 0.5 * x * std::erfc(-x * M_SQRT1_2);
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(M_2_SQRTPI * M_SQRT1_2 * (x + 0.044715 * x * x * x)));
    case Activation::silu:
      return x / (1 + std::exp(-x));
    default:
      return x;
  }
}

// The epilogue of a block of C.
inline void Finish(const GemmArgs<double>& g, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  for (int64_t i = row; i < row + rows; ++i) {
    for (int64_t j = column; j < column + columns; ++j) {
      const int64_t at = i * g.ldc + j;
      double x = g.c[at] + (g.bias != nullptr ? g.bias[j] : 0.0);
      if (g.pre_activation != nullptr) g.pre_activation[at] = x;
      x = activate(g.activation, x);
      if (g.factor != nullptr) x *= g.factor[at];
      g.c[at] = g.residual != nullptr ? x + g.residual[at] : x;
    }
  }
}

}  // namespace multihead::kernels
#endif

#include "multihead/kernels/matmul/driver-inl.h"
#include "multihead/kernels/matmul/engine_f64-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

void MultiplyF64(const GemmArgs<double>& g) { MultiplyWith<DoubleWords>({g}); }

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {

HWY_EXPORT(MultiplyF64);

void gemm(const GemmArgs<double>& g) {
  if (g.m == 0 || g.n == 0) return;
  if (g.k > 0) return HWY_DYNAMIC_DISPATCH(MultiplyF64)(g);
  for (int64_t i = 0; i < g.m && !g.accumulate; ++i) std::fill_n(g.c + i * g.ldc, g.n, 0.0);
  Finish(g, 0, g.m, 0, g.n);
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
