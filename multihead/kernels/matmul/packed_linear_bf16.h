// The part of packed_linear.h in bf16.
#pragma once

#include <cstdint>

#include "multihead/kernels/matmul/packed_linear.h"

namespace multihead::kernels::bf16 {

/// A packed weight is panels of 64 outputs, the last one as narrow as a multiple of 16 may be, and a panel
/// is, the same bytes on every machine, [ceil(in / 2)][outputs][2]: neighbours along k side by side, zeros
/// behind the ends.
int64_t packed_bytes(int64_t out, int64_t in);
void pack(const float* weight, int64_t stride, int64_t out, int64_t in, void* packed);
void unpack_row(const void* packed, int64_t row, int64_t out, int64_t in, float* to);
void multiply(const PackedLinearArgs& args);

}  // namespace multihead::kernels::bf16
