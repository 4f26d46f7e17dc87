// What an f32 product computes with: between gemm_mixed() and the engine.
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

/// f32 multiply-adds on widened operands, on every CPU.
void multiply_widened(const EngineArgs& args);

/// Products of bf16 pairs, summed in f32; an operand of f32 is rounded. Where bf16_dots() holds, and for no
/// empty product.
void multiply_pairs(const EngineArgs& args);

}  // namespace multihead::kernels
