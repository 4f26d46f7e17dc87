// The part of packed_linear.h in 16 bits: bf16 and f16.
#pragma once

#include <cstdint>

#include "multihead/core/dtype.h"
#include "multihead/kernels/matmul/packed_linear.h"

namespace multihead::kernels::half {

/// A packed weight is panels of 64 outputs, the last one as narrow as a multiple of 16 may be, and a panel
/// is, the same bytes on every machine, of bf16 [ceil(in / 2)][outputs][2], neighbours along k side by side,
/// of f16 [in rounded up to an even number][outputs]; zeros behind the ends.
int64_t packed_bytes(int64_t out, int64_t in);
void pack(WeightDtype dtype, const float* weight, int64_t stride, int64_t out, int64_t in, void* packed);
/// Of f16 that is stored so.
void pack(const StoredWeight& weight, int64_t out, int64_t in, void* packed);
void unpack_row(WeightDtype dtype, const void* packed, int64_t row, int64_t out, int64_t in, float* to);
void multiply(const PackedLinearArgs& args);

}  // namespace multihead::kernels::half
