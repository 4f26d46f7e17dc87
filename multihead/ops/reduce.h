// Reductions over axes, which are removed or kept with size 1. No axes: over all of them.
//
// Dtypes    f32, f64; bf16, f16: as f32, rounded once; max, min, argmax and argmin also i64 and i32
// Throws    ShapeError (an axis that x lacks or that is named twice; max and the like of no elements)
#pragma once

#include <initializer_list>
#include <span>

#include "multihead/core/tensor/tensor.h"
#include "multihead/ops/elementwise.h"

namespace multihead {

Tensor sum(const Tensor& x, std::span<const int> axes, bool keep_axes = false);
/// sum / count; 0 where there is nothing to sum.
Tensor mean(const Tensor& x, std::span<const int> axes, bool keep_axes = false);
/// NaN where one of the elements is. Gradient: to the largest (smallest) element, shared equally by equal
/// ones.
Tensor max(const Tensor& x, std::span<const int> axes, bool keep_axes = false);
Tensor min(const Tensor& x, std::span<const int> axes, bool keep_axes = false);

/// i64: where along the axis the first largest (smallest) element is, the first NaN if there is one. No
/// gradient.
Tensor argmax(const Tensor& x, int axis, bool keep_axis = false);
Tensor argmin(const Tensor& x, int axis, bool keep_axis = false);

#define MH_REDUCE(name)                                                                          \
  inline Tensor name(const Tensor& x, std::initializer_list<int> axes, bool keep_axes = false) { \
    return name(x, std::span<const int>(axes.begin(), axes.size()), keep_axes);                  \
  }
MH_REDUCE(sum)
MH_REDUCE(mean)
MH_REDUCE(max)
MH_REDUCE(min)
#undef MH_REDUCE
inline Tensor mean(const Tensor& x, int axis, bool keep_axis = false) { return mean(x, {axis}, keep_axis); }
inline Tensor max(const Tensor& x, int axis, bool keep_axis = false) { return max(x, {axis}, keep_axis); }
inline Tensor min(const Tensor& x, int axis, bool keep_axis = false) { return min(x, {axis}, keep_axis); }
inline Tensor max(const Tensor& x) { return max(x, std::span<const int>()); }
inline Tensor min(const Tensor& x) { return min(x, std::span<const int>()); }

}  // namespace multihead
