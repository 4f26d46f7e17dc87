// Matrix products on bf16 tiles. Internal: gemm() comes here where float32_matmul_precision() asks for it,
// gemm_mixed() with bf16.
#pragma once

#include "multihead/kernels/amx/amx-inl.h"
#include "multihead/kernels/matmul/engine_args.h"

namespace multihead::kernels {

/// A product that is not empty, its f32 operands as sums of `scheme`'s parts. If an operand is bf16, with one
/// part.
///
/// Bits depend on the element's own row of a and column of b and on k alone, not on threads.
void gemm_on_tiles(const EngineArgs& args, PartScheme scheme, TileUnit unit);

/// Whether an f32 product is large enough for tiles to pay, whatever its rows, so that one alone has the same
/// bits.
bool tiles_pay(const GemmArgs<float>& args);

}  // namespace multihead::kernels
