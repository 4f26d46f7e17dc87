// The f64 product: plain loops in the same order of sums as the f32 kernel, for gradient checks and
// references. A block of rows is one task; op(B) is brought to row-major order so that the inner loop runs
// along columns.
#include <algorithm>
#include <cmath>

#include "multihead/core/parallel.h"
#include "multihead/kernels/cpu/scratch-inl.h"
#include "multihead/kernels/matmul/gemm.h"

namespace multihead::kernels {
namespace {

constexpr int64_t kBlockRows = 16;
constexpr int64_t kBlockColumns = 512;

thread_local Scratch transposed_b;

double activate(Activation activation, double x) {
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

void multiply_row(const GemmArgs<double>& g, const double* b, int64_t ldb, int64_t i, int64_t begin,
                  int64_t end) {
  double* c = g.c + i * g.ldc;
  if (!g.accumulate) std::fill(c + begin, c + end, 0.0);
  const double* a = g.ta == Transpose::yes ? g.a + i : g.a + i * g.lda;
  const int64_t step = g.ta == Transpose::yes ? g.lda : 1;
  for (int64_t k = 0; k < g.k; ++k) {
    const double factor = a[k * step];
    const double* row = b + k * ldb;
    for (int64_t j = begin; j < end; ++j) c[j] += factor * row[j];
  }
  for (int64_t j = begin; j < end; ++j) {
    double x = c[j] + (g.bias != nullptr ? g.bias[j] : 0.0);
    if (g.pre_activation != nullptr) g.pre_activation[i * g.ldc + j] = x;
    x = activate(g.activation, x);
    if (g.factor != nullptr) x *= g.factor[i * g.ldc + j];
    c[j] = g.residual != nullptr ? x + g.residual[i * g.ldc + j] : x;
  }
}

}  // namespace

void gemm(const GemmArgs<double>& g) {
  if (g.m == 0 || g.n == 0) return;
  const double* b = g.b;
  int64_t ldb = g.ldb;
  if (g.tb == Transpose::yes) {
    double* rows = transposed_b.get<double>(static_cast<size_t>(g.k * g.n));
    parallel_ranges(g.k, 8, [&](int64_t begin, int64_t end) {
      for (int64_t j = 0; j < g.n; ++j) {
        for (int64_t k = begin; k < end; ++k) rows[k * g.n + j] = g.b[j * g.ldb + k];
      }
    });
    b = rows;
    ldb = g.n;
  }
  const int64_t blocks = (g.m + kBlockRows - 1) / kBlockRows;
  parallel_for(blocks, [&](int64_t block, int) {
    const int64_t row_end = std::min((block + 1) * kBlockRows, g.m);
    for (int64_t j = 0; j < g.n; j += kBlockColumns) {
      const int64_t column_end = std::min(j + kBlockColumns, g.n);
      for (int64_t i = block * kBlockRows; i < row_end; ++i) multiply_row(g, b, ldb, i, j, column_end);
    }
  });
}

}  // namespace multihead::kernels
