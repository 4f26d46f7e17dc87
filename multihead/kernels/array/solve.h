// Triangular systems.
#pragma once

#include <cstdint>

namespace multihead::kernels {

/// `a` is [batch, size, size], of which one triangle is read; x is [batch, size, columns].
struct SolveSizes {
  int64_t batch, size, columns;
  bool lower;
  bool transposed;  ///< solves with the transpose of the triangle
  bool unit;        ///< the diagonal is not read, and counts as 1
};

/// x = a⁻¹ x.
void solve_triangular(const float* a, float* x, const SolveSizes& sizes);
void solve_triangular(const double* a, double* x, const SolveSizes& sizes);

}  // namespace multihead::kernels
