// Arguments of an f32 product, passed from gemm_mixed() to the engine.
#pragma once

#include "multihead/core/dtype.h"
#include "multihead/kernels/matmul/gemm.h"

namespace multihead::kernels {

/// The f32 matrices of a product, or those of bf16 in their places.
struct EngineArgs : GemmArgs<float> {
  const BFloat16* a16 = nullptr;
  const BFloat16* b16 = nullptr;
  BFloat16* c16 = nullptr;
  BFloat16* pre_activation16 = nullptr;
  const BFloat16* residual16 = nullptr;
};

EngineArgs engine_args(const MixedGemmArgs& args);  ///< not f64

/// Rows and columns of C, and where their sums are if not there; a stride of 0 repeats one row.
template <class Real>
struct BlockOf {
  int64_t row = 0, rows = 0, column = 0, columns = 0;
  const Real* sums = nullptr;
  int64_t stride = 0;
};
using Block = BlockOf<float>;

/// The epilogue of a block; the sums of a bf16 C lie beside it.
void finish_block(const EngineArgs& args, const Block& block);

/// f32 multiply-adds on widened operands, on every CPU.
void multiply_widened(const EngineArgs& args);

/// Products of bf16 pairs, summed in f32; an operand of f32 is rounded. Where bf16_dots() holds, and for no
/// empty product.
void multiply_pairs(const EngineArgs& args);

}  // namespace multihead::kernels
