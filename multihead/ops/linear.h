// Matrix products.
#pragma once

#include "multihead/core/tensor/tensor.h"
#include "multihead/ops/activation.h"

namespace multihead {

/// a · b over the last two axes; the axes before them broadcast.
///
/// Shapes    a [..., m, k], b [..., k, n] -> [..., m, n]; a vector is a row on the left, a column on the right, whose
///           axis the result lacks: [k], [..., k, n] -> [..., n]; [..., m, k], [k] -> [..., m]; [k], [k] -> []
/// Dtypes    f32, f64; bf16, summed in f32 by kernels::gemm_mixed; f16, widened to f32. Autocast applies
/// Strides   a matrix whose rows or columns are contiguous is read in place, others are copied
/// Gradient  a, b
/// Throws    ShapeError, DtypeError
Tensor matmul(const Tensor& a, const Tensor& b);

struct LinearOptions {
  Activation activation = Activation::none;
  Tensor residual = {};  ///< [..., out], added after the activation
  /// Applied to x, and recomputed in the backward instead of stored: takes one tensor where `activation` of
  /// the previous layer takes two.
  Activation input_activation = Activation::none;
};

/// activation(f(x) · weightᵀ + bias) + residual, f = input_activation; in one pass over the result.
///
/// Shapes    x [..., in], weight [out, in], bias [out] or undefined -> [..., out]
/// Dtypes    f32, f64; bf16, f16: as f32, rounded once; beside bf16, an f32 bias or residual (then f32).
///           Autocast applies
/// Gradient  x, weight, bias, residual; only those required are computed
/// Memory    with an activation under a tape, also the [..., out] it is applied to
/// Throws    ShapeError, DtypeError
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const LinearOptions& options = {});

}  // namespace multihead
