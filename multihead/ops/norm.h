// Layer and RMS normalisation over the last axis, alone or fused with the preceding residual sum.
//
// Shapes    x [..., D], weight [D] or undefined (ones), bias [D] or undefined (zeros) -> [..., D]
// Dtypes    f32, f64; bf16, f16: as f32, rounded once, f32 under Autocast
// Gradient  x, residual, weight, bias
// Memory    two (layer) or one (RMS) numbers per row beyond inputs and outputs
// Throws    ShapeError, DtypeError, ValueError (eps < 0)
#pragma once

#include "multihead/core/tensor/tensor.h"

namespace multihead {

/// (x - mean) / sqrt(var + eps) · weight + bias, var the mean squared deviation (Ba et al. 2016).
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);
/// x / sqrt(mean(x²) + eps) · weight (Zhang & Sennrich 2019).
Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, double eps = 1e-6);

struct AddNorm {
  Tensor sum;     ///< x + residual
  Tensor normed;  ///< norm(x + residual)
};
/// Both in one pass, one backward.
AddNorm add_layer_norm(const Tensor& x, const Tensor& residual, const Tensor& weight = {},
                       const Tensor& bias = {}, double eps = 1e-5);
AddNorm add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight = {}, double eps = 1e-6);

}  // namespace multihead
