// Views, pieces and copies of tensors, any dtype unless stated. Gradients flow through floating dtypes.
//
// Throws    ShapeError
#pragma once

#include <concepts>
#include <span>
#include <vector>

#include "multihead/core/tensor/tensor.h"

namespace multihead {

/// The same elements in row-major order under another shape; one size may be -1. A view if the strides
/// allow it, else a copy.
Tensor reshape(const Tensor& x, const Shape& shape);
/// View with two axes swapped.
Tensor transpose(const Tensor& x, int a, int b);
/// View whose axis i is axes[i] of x.
Tensor permute(const Tensor& x, std::span<const int> axes);
inline Tensor permute(const Tensor& x, std::initializer_list<int> axes) {
  return permute(x, std::span<const int>(axes.begin(), axes.size()));
}
/// View of x[…, begin:end, …]; 0 <= begin <= end <= size.
Tensor slice(const Tensor& x, int axis, int64_t begin, int64_t end);
/// Views of consecutive pieces; their sizes sum to the axis. The backward writes one gradient.
std::vector<Tensor> split(const Tensor& x, std::span<const int64_t> sizes, int axis);
inline std::vector<Tensor> split(const Tensor& x, std::initializer_list<int64_t> sizes, int axis) {
  return split(x, std::span<const int64_t>(sizes.begin(), sizes.size()), axis);
}
/// Copy of the parts, concatenated; shapes equal except along `axis`.
Tensor concat(std::span<const Tensor> parts, int axis);
template <std::ranges::contiguous_range Parts, std::integral Axis>
requires std::same_as<std::ranges::range_value_t<Parts>, Tensor> Tensor concat(const Parts& parts,
                                                                               Axis axis) {
  return concat(std::span<const Tensor>(std::ranges::data(parts), std::ranges::size(parts)),
                static_cast<int>(axis));
}
/// Write concat({a, b}, axis).
void concat(const Tensor& a, const Tensor& b) = delete;
inline Tensor concat(std::initializer_list<Tensor> parts, int axis) {
  return concat(std::span<const Tensor>(parts.begin(), parts.size()), axis);
}
/// View with axes of size 1 (or missing in front) repeated up to `shape`. Gradient: summed.
Tensor expand(const Tensor& x, const Shape& shape);
/// x itself if row-major, else a row-major copy.
Tensor contiguous(const Tensor& x);
/// x itself if it has the dtype, else a converted copy. Between floating dtypes the gradient is converted
/// back, to f32 if x has 16 bits.
Tensor cast(const Tensor& x, Dtype dtype);

}  // namespace multihead
