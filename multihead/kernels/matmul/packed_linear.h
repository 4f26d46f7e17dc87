// Linear layers whose weights were laid out once, for inference.
#pragma once

#include <cstdint>
#include <string_view>

#include "multihead/kernels/matmul/gemm.h"

namespace multihead::kernels {

/// int8: quantised per output, w ≈ scale · q, scale = max|w| / 127, q rounded to nearest, ties to even; the
/// products quantise their inputs per row in the same way, sum integers and multiply by both scales.
enum class WeightDtype { f32, int8 };
std::string_view name(WeightDtype dtype);
/// "f32" or "int8"; throws ValueError otherwise.
WeightDtype parse_weight_dtype(std::string_view text);

/// The longest sum of int8 products that an int32 holds for certain.
inline constexpr int64_t kLongestInt8Sum = 131072;

/// Bytes that a packed weight [out, in] takes, a multiple of 64.
int64_t packed_weight_bytes(WeightDtype dtype, int64_t out, int64_t in);
/// Copies weight [out, in], rows `stride` apart, into the order in which packed_linear() reads it. The order
/// belongs to this process: in f32 it depends on the instruction set. `packed` is aligned to 64 bytes; with
/// int8 `in` is at most kLongestInt8Sum.
void pack_weight(WeightDtype dtype, const float* weight, int64_t stride, int64_t out, int64_t in,
                 void* packed);

struct PackedLinearArgs {
  const float* x = nullptr;  ///< [rows, in], rows ldx apart
  int64_t ldx = 0;
  const void* packed = nullptr;
  WeightDtype dtype = WeightDtype::f32;  ///< of `packed`
  float* y = nullptr;                    ///< [rows, out], rows ldy apart
  int64_t ldy = 0;
  int64_t rows = 0, out = 0, in = 0;
  const float* bias = nullptr;  ///< [out]
  Activation activation = Activation::none;
  const float* residual = nullptr;  ///< [rows, out], rows ldy apart; may not be y
};

/// y = activation(x · weightᵀ + bias) + residual.
///
/// f32 has the bits of gemm(). int8 without an activation, or with relu, has the same bits on every
/// instruction set. There a NaN or an infinity in a row of x makes the row's products NaN, one in a row of
/// the weight its output's; and a row whose largest element is below 2^-119 counts as zeros.
void packed_linear(const PackedLinearArgs& args);

}  // namespace multihead::kernels
