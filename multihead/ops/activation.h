// Activation functions and their gated forms.
//
// Shapes    any; the result is contiguous
// Dtypes    f32, f64; bf16, f16: as f32, rounded once; one of them with f32 gives f32
// Gradient  all tensor arguments, recomputed from the input
// Throws    DtypeError, ShapeError
#pragma once

#include "multihead/core/tensor/tensor.h"
#include "multihead/core/text/enum_words.h"
#include "multihead/kernels/matmul/gemm.h"

namespace multihead {

namespace kernels {
constexpr auto enum_words(Activation) {
  return std::to_array<std::string_view>({"none", "relu", "gelu", "gelu_tanh", "silu"});
}
}  // namespace kernels
using kernels::Activation;

Tensor activate(const Tensor& x, Activation activation);
inline Tensor relu(const Tensor& x) { return activate(x, Activation::relu); }
/// x · Φ(x), Φ the normal distribution function.
inline Tensor gelu(const Tensor& x) { return activate(x, Activation::gelu); }
/// x · ½(1 + tanh(√(2/π)(x + 0.044715 x³))).
inline Tensor gelu_tanh(const Tensor& x) { return activate(x, Activation::gelu_tanh); }
/// x · sigmoid(x).
inline Tensor silu(const Tensor& x) { return activate(x, Activation::silu); }

/// activation(gate) · up, both of one shape: SwiGLU with silu, GEGLU with gelu, ReGLU with relu.
/// Source: Shazeer 2020, "GLU variants improve Transformer".
Tensor gated(const Tensor& gate, const Tensor& up, Activation activation);
/// The same on one projection [..., 2F] -> [..., F]: the gate is the first half of the last axis.
Tensor glu(const Tensor& x, Activation activation);

}  // namespace multihead
