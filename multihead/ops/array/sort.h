// Sorting along an axis. NaN counts as the largest number; equal elements keep their order.
//
// Dtypes    f32, f64, i32, i64; bf16, f16 for those that return elements or places
// Gradient  goes to the elements that were taken
// Throws    ShapeError (no such axis; more elements than it has), DtypeError
#pragma once

#include <vector>

#include "multihead/core/tensor/tensor.h"

namespace multihead {

/// The places, i64, of the elements in order. No gradient.
Tensor argsort(const Tensor& x, int axis = -1, bool descending = false);
Tensor sort(const Tensor& x, int axis = -1, bool descending = false);
/// The `count` largest elements (or smallest), in order, and their places.
std::vector<Tensor> topk(const Tensor& x, int64_t count, int axis = -1, bool largest = true);

}  // namespace multihead
