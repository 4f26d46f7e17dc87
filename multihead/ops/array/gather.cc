#include "multihead/ops/array/gather.h"

#include <algorithm>

#include "multihead/autograd/tape.h"
#include "multihead/kernels/array/gather.h"
#include "multihead/ops/dispatch-inl.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/narrow-inl.h"

namespace multihead {
namespace {

using kernels::GatherSizes;

// Row-major i64 indices in [0, size).
Tensor checked_indices(const char* who, const Tensor& given, int64_t size) {
  MH_CHECK(given.dtype() == Dtype::i64 || given.dtype() == Dtype::i32, DtypeError, who,
           ": indices must be i64 or i32, got ", given.dtype());
  const Tensor indices = given.to(Dtype::i64).clone();
  for (int64_t& i : indices.span<int64_t>()) {
    MH_CHECK(i >= -size && i < size, ValueError, who, ": index ", i, " is out of range for size ", size);
    if (i < 0) i += size;
  }
  return indices;
}

int64_t elements(const Shape& shape, int begin, int end) {
  int64_t count = 1;
  for (int i = begin; i < end; ++i) count *= shape[i];
  return count;
}

GatherSizes sizes_of(const Shape& shape, int axis, int64_t count) {
  return {elements(shape, 0, axis), shape[axis], count, elements(shape, axis + 1, shape.rank())};
}

using GatherFunction = void (*)(const void*, const int64_t*, void*, const GatherSizes&, size_t);

// The backward adds to zeros in f32 or f64.
template <class Backward>
Tensor gathered(const Tensor& x, const Tensor& indices, const Shape& result, const GatherSizes& sizes,
                GatherFunction forward, Backward backward) {
  const Tensor from = detail::dense(x), y = Tensor::empty(result, x.dtype());
  forward(from.raw(), indices.data<int64_t>(), y.raw(), sizes, size_of(x.dtype()));
  if (!is_floating(x.dtype())) return y;
  return record({x}, y, [=, shape = x.shape()](const Tensor& d) -> Gradients {
    const Tensor dy = detail::dense(d), dx = Tensor::zeros(shape, dy.dtype());
    detail::with_data([&](auto* from, auto* to) { backward(from, indices.data<int64_t>(), to, sizes); }, dy,
                      dx);
    return {dx};
  });
}

Shape joined(const Shape& shape, int axis, int axes, const Shape& between) {
  Shape result;
  for (int i = 0; i < axis; ++i) result.push_back(shape[i]);
  for (const int64_t size : between) result.push_back(size);
  for (int i = axis + axes; i < shape.rank(); ++i) result.push_back(shape[i]);
  return result;
}

// The indexed axes of x, brought to the front if they are not neighbours; x and `axes` follow.
Tensor neighbours(const Tensor& x, std::vector<int>& axes) {
  if (axes.back() - axes.front() + 1 == static_cast<int>(axes.size())) return x;
  Tensor y = x;
  for (size_t i = 0; i < axes.size(); ++i) {
    // Moved step by step, so that the axes between keep their order.
    for (int at = axes[i]; at > static_cast<int>(i); --at) y = transpose(y, at, at - 1);
    axes[i] = static_cast<int>(i);
  }
  return y;
}

}  // namespace

Tensor take(const Tensor& x, const Tensor& indices, int axis) {
  axis = x.shape().normalize(axis);
  const Tensor plain = checked_indices("take", indices, x.size(axis));
  return gathered(x, plain, joined(x.shape(), axis, 1, plain.shape()),
                  sizes_of(x.shape(), axis, plain.numel()), kernels::take,
                  [](const auto&... all) { kernels::take_backward(all...); });
}

Tensor take_along_axis(const Tensor& x, const Tensor& indices, int axis) {
  axis = x.shape().normalize(axis);
  MH_CHECK(indices.rank() == x.rank(), ShapeError, "take_along_axis: indices must have the rank of x ",
           x.shape(), ", got ", indices.shape());
  Shape whole = x.shape(), result = x.shape();
  for (int i = 0; i < x.rank(); ++i) {
    if (i == axis) continue;
    MH_CHECK(x.size(i) == indices.size(i) || x.size(i) == 1 || indices.size(i) == 1, ShapeError,
             "take_along_axis: x ", x.shape(), " and indices ", indices.shape(),
             " do not broadcast outside axis ", axis);
    whole[i] = result[i] = x.size(i) == 1 ? indices.size(i) : x.size(i);
  }
  result[axis] = indices.size(axis);
  const Tensor plain = checked_indices("take_along_axis", expand(indices, result), x.size(axis));
  return gathered(expand(x, whole), plain, result, sizes_of(whole, axis, result[axis]), kernels::take_along,
                  [](const auto&... all) { kernels::take_along_backward(all...); });
}

Tensor index(const Tensor& x, const std::vector<Tensor>& indices) {
  MH_CHECK(static_cast<int>(indices.size()) <= x.rank(), ShapeError, "index: too many indices, ",
           indices.size(), ", for ", x.shape());
  std::vector<int> axes;
  std::vector<Tensor> plain;
  Shape shape;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (!indices[i].defined()) continue;
    axes.push_back(static_cast<int>(i));
    plain.push_back(checked_indices("index", indices[i], x.size(axes.back())));
    shape = broadcast_shapes(shape, plain.back().shape());
  }
  if (axes.empty()) return x;
  Tensor from = neighbours(x, axes);
  const int first = axes.front(), count = static_cast<int>(axes.size());
  const Tensor flat = Tensor::zeros(shape, Dtype::i64);
  int64_t merged = 1;
  for (int i = 0; i < count; ++i) {
    merged *= from.size(first + i);
    const Tensor at = detail::dense(expand(plain[static_cast<size_t>(i)], shape));
    for (int64_t j = 0; j < flat.numel(); ++j) {
      int64_t& place = flat.data<int64_t>()[j];
      place = place * from.size(first + i) + at.data<int64_t>()[j];
    }
  }
  from = reshape(from, joined(from.shape(), first, count, {merged}));
  return take(from, flat, first);
}

std::vector<Tensor> nonzero(const Tensor& given) {
  MH_CHECK(given.dtype() == Dtype::boolean, DtypeError, "nonzero: mask must be bool, got ", given.dtype());
  const Tensor mask = detail::dense(given);
  const std::span<const bool> flags = mask.span<bool>();
  const int64_t count = std::count(flags.begin(), flags.end(), true);
  std::vector<Tensor> places;
  for (int axis = 0; axis < mask.rank(); ++axis) {
    const int64_t inner = elements(mask.shape(), axis + 1, mask.rank());
    places.push_back(Tensor::empty({count}, Dtype::i64));
    int64_t* next = places.back().data<int64_t>();
    for (int64_t i = 0; i < mask.numel(); ++i) {
      if (flags[static_cast<size_t>(i)]) *next++ = i / inner % mask.size(axis);
    }
  }
  return places;
}

}  // namespace multihead
