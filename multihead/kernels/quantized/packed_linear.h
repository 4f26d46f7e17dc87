// Linear layers whose weights were laid out once, for inference.
#pragma once

#include <cstdint>

#include "multihead/core/blocks.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/matmul/gemm.h"
#include "multihead/kernels/quantized/format.h"

namespace multihead::kernels {

/// Bytes that a packed weight [out, in] takes, a multiple of 64.
int64_t packed_weight_bytes(WeightDtype dtype, int64_t out, int64_t in);
/// Copies weight [out, in], rows `stride` apart, into the order in which packed_linear() reads it. In f32 the
/// order depends on the instruction set, else it is the same on every machine. `packed` is aligned to 64
/// bytes; with int8 `in` is at most kLongestInt8Sum.
void pack_weight(WeightDtype dtype, const float* weight, int64_t stride, int64_t out, int64_t in,
                 void* packed);

/// A weight [out, in] as files store it.
struct StoredWeight {
  /// Writes rows [begin, begin + count) to `to`. Called by several threads at once.
  FunctionRef<void(int64_t begin, int64_t count, uint8_t* to)> read;
  const BlockFormat& format;
};
/// Packs it as packed_dtype_of(format); -8 · scale, Q4_0's minimum, is rounded where f16 ends. Values past `in`
/// are ignored.
void pack_stored(const StoredWeight& weight, int64_t out, int64_t in, void* packed);
/// Output `row` of a packed weight [out, in] in f32: to[in]. For formats with has_rows(), all but int8.
void unpack_weight_row(WeightDtype dtype, const void* packed, int64_t row, int64_t out, int64_t in,
                       float* to);

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
/// f32 has the bits of gemm(), f16 those of gemm() of the widened weight, bf16 those of gemm_mixed() of a
/// bf16 weight. The others have, without an activation or with relu, the same bits on every instruction set,
/// and a row the same bits alone and among others. There a NaN or an infinity in a row of x makes the row's
/// products NaN, one in a row of the weight its output's; and a row of x (in groups: a group of it) whose
/// largest element is below 2^-119 counts as zeros.
void packed_linear(const PackedLinearArgs& args);

}  // namespace multihead::kernels
