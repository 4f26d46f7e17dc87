// Dropout with a mask that is a function of (stream, element index).
#pragma once

#include <cmath>
#include <cstdint>

#include "multihead/core/dtype.h"
#include "multihead/core/tensor/rng.h"

namespace multihead::kernels {

/// Elements are dropped whose 16 random bits are below this: p to the nearest 2^-16.
inline uint32_t dropout_threshold(double p) { return static_cast<uint32_t>(std::lround(p * 65536)); }

/// Whether element i is kept. Every Philox block serves eight elements, 16 apart from each other, so that
/// sixteen lanes can draw sixteen blocks at once: element 128 g + 16 j + l has half-word j of block 16 g + l.
inline bool dropout_keeps(const RandomStream& stream, double p, int64_t i) {
  const auto element = static_cast<uint64_t>(i);
  const uint64_t half = element % 128 / 16;
  const uint32_t word = stream.block(element / 128 * 16 + element % 16)[half / 2];
  return (half % 2 == 0 ? word & 0xFFFF : word >> 16) >= dropout_threshold(p);
}

struct DropoutMask {
  RandomStream stream;
  double p = 0;
  int64_t first = 0;  ///< number of the first element, a multiple of 128
};

/// y[i] = keeps(first + i) ? x[i] / (1 - p) : 0, plus residual[i] if not null. y may be x or residual.
void dropout(const float* x, const float* residual, float* y, int64_t count, const DropoutMask& mask);
void dropout(const double* x, const double* residual, double* y, int64_t count, const DropoutMask& mask);
void dropout(const BFloat16* x, const float* residual, float* y, int64_t count, const DropoutMask& mask);
/// The same in f32, rounded. Without a residual.
void dropout(const BFloat16* x, BFloat16* y, int64_t count, const DropoutMask& mask);

}  // namespace multihead::kernels
