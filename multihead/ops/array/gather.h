// Elements by tensors of indices. Indices are i64 or i32; negative ones count from the end.
//
// Dtypes    any; gradients flow through floating ones
// Gradient  x: sums over the places where an element went, in their order
// Throws    ShapeError, DtypeError (indices), ValueError (an index out of range)
#pragma once

#include <vector>

#include "multihead/core/tensor/tensor.h"

namespace multihead {

/// x[…, indices, …]: the axis is replaced by the axes of `indices`.
Tensor take(const Tensor& x, const Tensor& indices, int axis);
/// y[…, j, …] = x[…, indices[…, j, …], …] along the axis; `indices` has x's rank and, elsewhere, sizes that
/// broadcast with x's.
Tensor take_along_axis(const Tensor& x, const Tensor& indices, int axis);
/// x[indices[0], indices[1], …] as NumPy indexes: an undefined tensor takes its axis whole, the others broadcast
/// together. Their axes replace the indexed ones, or come first if those are not neighbours.
Tensor index(const Tensor& x, const std::vector<Tensor>& indices);
/// The places of the true elements of a bool tensor: one i64 tensor per axis, in row-major order. No gradient.
std::vector<Tensor> nonzero(const Tensor& mask);

}  // namespace multihead
