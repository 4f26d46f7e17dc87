// Linear layers whose weights were laid out once, for inference.
#pragma once

#include <cstdint>

#include "multihead/kernels/gemm.h"

namespace multihead::kernels {

/// Floats that a packed weight [out, in] takes.
int64_t packed_weight_size(int64_t out, int64_t in);
/// Copies weight [out, in], rows `stride` apart, into the order in which packed_linear() reads it. The order
/// belongs to this process: it depends on the instruction set.
void pack_weight(const float* weight, int64_t stride, int64_t out, int64_t in, float* packed);

struct PackedLinearArgs {
  const float* x = nullptr;  ///< [rows, in], rows ldx apart
  int64_t ldx = 0;
  const float* packed = nullptr;
  float* y = nullptr;  ///< [rows, out], rows ldy apart
  int64_t ldy = 0;
  int64_t rows = 0, out = 0, in = 0;
  const float* bias = nullptr;  ///< [out]
  Activation activation = Activation::none;
  const float* residual = nullptr;  ///< [rows, out], rows ldy apart; may not be y
};

/// y = activation(x · weightᵀ + bias) + residual, with the bits of gemm().
void packed_linear(const PackedLinearArgs& args);

}  // namespace multihead::kernels
