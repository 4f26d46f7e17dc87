// f32 matrix products on bf16 tiles. Internal: gemm() comes here where float32_matmul_precision() asks for
// it.
#pragma once

#include "multihead/kernels/matmul/amx-inl.h"
#include "multihead/kernels/matmul/gemm.h"

namespace multihead::kernels {

/// c = op(a)·op(b) [+ c] with the parts and products of `precision` (not `highest`); no epilogue.
///
/// Bits depend on the element's own row of a and column of b and on k alone, not on threads.
void gemm_on_tiles(const GemmArgs<float>& args, MatmulPrecision precision, TileUnit unit);

/// Whether a product is large enough for tiles to pay.
bool tiles_pay(const GemmArgs<float>& args);

}  // namespace multihead::kernels
