// Sums of arrays.
#pragma once

#include <cstdint>

#include "multihead/core/dtype.h"

namespace multihead::kernels {

/// Sum of all: fixed blocks of the array, added up in f64. bf16 has the bits of the same numbers in f32.
double sum(const float* x, int64_t count);
double sum(const BFloat16* x, int64_t count);
double sum(const double* x, int64_t count);

/// y[o, i] = Σ_n x[o, n, i]; blocks of 64 n are summed first, then the blocks in order.
struct AxisSum {
  int64_t outer = 1, axis = 1, inner = 1;
};
void sum_axis(const float* x, float* y, const AxisSum& sizes);
void sum_axis(const BFloat16* x, float* y, const AxisSum& sizes);
void sum_axis(const double* x, double* y, const AxisSum& sizes);

}  // namespace multihead::kernels
