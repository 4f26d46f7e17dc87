// Rotations of pairs of numbers half a head apart.
#pragma once

#include <cstdint>

namespace multihead::kernels {

/// Of each head, x_stride and y_stride apart: y[i] = x[i] · cos[i] - x[i + pairs] · sign · sin[i] and
/// y[i + pairs] = x[i + pairs] · cos[i] + x[i] · sign · sin[i], for i < pairs. y may be x.
struct HalfRotation {
  int64_t heads = 0, pairs = 0;
  int64_t x_stride = 0, y_stride = 0;
  float sign = 1;
};
void rotate_halves(const float* x, float* y, const float* cos, const float* sin,
                   const HalfRotation& rotation);

}  // namespace multihead::kernels
