// Products with packed weights on tiles. Internal: packed_linear() comes here.
#pragma once

#include "multihead/kernels/amx/amx-inl.h"
#include "multihead/kernels/quantized/packed_linear.h"

namespace multihead::kernels {

/// packed_linear() of a weight packed as bf16: the bits of gemm_on_tiles().
void packed_linear_on_tiles(const PackedLinearArgs& args, TileUnit unit);

/// The same of int8: the bits of every other way.
void packed_int8_on_tiles(const PackedLinearArgs& args, TileUnit unit);

/// The same of groups.
void packed_groups_on_tiles(const PackedLinearArgs& args, TileUnit unit);

}  // namespace multihead::kernels
