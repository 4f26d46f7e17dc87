// Running sums along the middle axis of [outer, count, inner].
#pragma once

#include <cstdint>

namespace multihead::kernels {

struct ScanSizes {
  int64_t outer, count, inner;
  bool reverse;  ///< from the last to the first
};

/// y[o, j, i] = sum of x[o, 0..j, i], or of x[o, j.., i], summed in f64; y may be x.
void cumsum(const float* x, float* y, const ScanSizes& sizes);
void cumsum(const double* x, double* y, const ScanSizes& sizes);

}  // namespace multihead::kernels
