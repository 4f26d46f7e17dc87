// Triangular systems.
#pragma once

#include "multihead/core/tensor/tensor.h"

namespace multihead {

struct TriangleOptions {
  bool lower = true;        ///< which triangle of `a` is read
  bool transposed = false;  ///< solves with its transpose
  bool unit = false;        ///< the diagonal counts as 1 and is not read
};

/// x with a x = b, where a triangle of `a` is read and the rest counts as 0.
///
/// Shapes    a [..., n, n], b [..., n, m] -> [..., n, m]; the axes before broadcast
/// Dtypes    f32, f64; bf16, f16: as f32
/// Gradient  b: a⁻ᵀ dx; a: the triangle of -(a⁻ᵀ dx) xᵀ
/// Throws    ShapeError, DtypeError
Tensor solve_triangular(const Tensor& a, const Tensor& b, const TriangleOptions& options = {});

}  // namespace multihead
