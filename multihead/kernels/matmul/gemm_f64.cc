// f64 products: the driver with the engine of f64.
#include <algorithm>

#include "multihead/kernels/matmul/gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/matmul/gemm_f64.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#ifndef MULTIHEAD_KERNELS_MATMUL_GEMM_F64_ONCE
#define MULTIHEAD_KERNELS_MATMUL_GEMM_F64_ONCE
namespace multihead::kernels {

// The epilogue of a row of C from `at` on: step by step, so that the compiler makes vectors of all but the functions.
inline void FinishRow(const GemmArgs<double>& g, int64_t at, const double* bias, int64_t columns) {
  double* c = g.c + at;
  // Without a bias 0 is added: -0 becomes 0.
  for (int64_t j = 0; j < columns; ++j) c[j] += bias != nullptr ? bias[j] : 0.0;
  if (g.pre_activation != nullptr) std::copy_n(c, columns, g.pre_activation + at);
  if (g.activation != Activation::none) activate(g.activation, c, c, columns);
  for (int64_t j = 0; j < columns && g.factor != nullptr; ++j) c[j] *= g.factor[at + j];
  for (int64_t j = 0; j < columns && g.residual != nullptr; ++j) c[j] += g.residual[at + j];
}

// The epilogue of a block of C.
inline void Finish(const GemmArgs<double>& g, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  const double* bias = g.bias != nullptr ? g.bias + column : nullptr;
  for (int64_t i = row; i < row + rows; ++i) FinishRow(g, i * g.ldc + column, bias, columns);
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
