#include "multihead/ops/shape.h"

#include <algorithm>

#include "multihead/autograd/tape.h"
#include "multihead/core/tensor/copy-inl.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/elementwise/element_loops.h"
#include "multihead/ops/dispatch-inl.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/narrow-inl.h"

namespace multihead {
namespace {

// Here, because every op comes by: from a static library only what is named is linked.
[[maybe_unused]] const bool kFastLoops = kernels::install_element_loops();

// Axes that lie one after the other in memory, as one.
struct Run {
  int64_t size, stride;
};

std::vector<Run> runs_of(const Tensor& x) {
  std::vector<Run> runs;
  for (int i = 0; i < x.rank(); ++i) {
    if (x.size(i) == 1) continue;
    if (!runs.empty() && runs.back().stride == x.strides()[i] * x.size(i)) {
      runs.back() = {runs.back().size * x.size(i), x.strides()[i]};
    } else {
      runs.push_back({x.size(i), x.strides()[i]});
    }
  }
  return runs;
}

// Whether `shape` is a view of x, and its strides: every run must be a product of consecutive new axes.
bool view_strides(const Tensor& x, const Shape& shape, Shape& strides) {
  strides = Shape::filled(shape.rank(), 1);
  std::vector<Run> runs = runs_of(x);
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    if (shape[axis] == 1) continue;
    if (runs.empty() || runs.back().size % shape[axis] != 0) return false;
    strides[axis] = runs.back().stride;
    runs.back().stride *= shape[axis];
    runs.back().size /= shape[axis];
    if (runs.back().size == 1) runs.pop_back();
  }
  return runs.empty();
}

Shape resolve(const Tensor& x, const Shape& shape) {
  Shape result = shape;
  int unknown = -1;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == -1) {
      MH_CHECK(unknown < 0, ShapeError, "reshape: at most one size may be -1, got ", shape);
      unknown = i;
    } else {
      MH_CHECK(shape[i] >= 0, ShapeError, "reshape: negative size in ", shape);
    }
  }
  if (unknown >= 0) {
    result[unknown] = 1;
    const int64_t known = result.numel();
    MH_CHECK(known > 0 && x.numel() % known == 0, ShapeError, "reshape: cannot shape ", x.shape(), " as ",
             shape);
    result[unknown] = x.numel() / known;
  }
  MH_CHECK(result.numel() == x.numel(), ShapeError, "reshape: cannot shape ", x.shape(), " (", x.numel(),
           " elements) as ", shape);
  return result;
}

}  // namespace

detail::Kept::Kept(const Tensor& input, Tensor elements) {
  if (input.requires_grad() && input.gradient_slot()->rebuild) {
    rebuild_ = input.gradient_slot()->rebuild;
  } else {
    elements_ = std::move(elements);
  }
}

Tensor detail::Kept::take() { return rebuild_ ? rebuild_() : std::move(elements_); }

detail::ReusedGradient detail::reusable(Tensor gradient) {
  if (!gradient.is_contiguous()) gradient = gradient.clone();
  const Tensor to = gradient.is_unique() ? gradient : empty_like(gradient);
  return {gradient, to};
}

Tensor reshape(const Tensor& x, const Shape& shape) {
  const Shape target = resolve(x, shape);
  Tensor y;
  if (Shape strides; x.is_contiguous()) {
    y = x.as_strided(target, contiguous_strides(target));
  } else if (view_strides(x, target, strides)) {
    y = x.as_strided(target, strides);
  } else {
    y = detail::dense(x).as_strided(target, contiguous_strides(target));
  }
  return record({x}, y, [shape = x.shape()](const Tensor& dy) -> Gradients { return {reshape(dy, shape)}; });
}

Tensor transpose(const Tensor& x, int a, int b) {
  Shape shape = x.shape(), strides = x.strides();
  a = shape.normalize(a);
  b = shape.normalize(b);
  std::swap(shape[a], shape[b]);
  std::swap(strides[a], strides[b]);
  return record({x}, x.as_strided(shape, strides),
                [a, b](const Tensor& dy) -> Gradients { return {transpose(dy, a, b)}; });
}

Tensor permute(const Tensor& x, std::span<const int> axes) {
  MH_CHECK(static_cast<int>(axes.size()) == x.rank(), ShapeError, "permute: expected ", x.rank(),
           " axes for shape ", x.shape(), ", got ", axes.size());
  Shape shape, strides, inverse = Shape::filled(x.rank(), -1);
  for (const int axis : axes) {
    MH_CHECK(-x.rank() <= axis && axis < x.rank(), ShapeError, "permute: axis ", axis, " of shape ",
             x.shape());
    const int from = x.shape().normalize(axis);
    MH_CHECK(inverse[from] < 0, ShapeError, "permute: axis ", axis, " is named twice");
    inverse[from] = shape.rank();
    shape.push_back(x.size(from));
    strides.push_back(x.strides()[from]);
  }
  return record({x}, x.as_strided(shape, strides), [inverse](const Tensor& dy) -> Gradients {
    Shape sizes, steps;
    for (const int64_t axis : inverse) {
      sizes.push_back(dy.size(static_cast<int>(axis)));
      steps.push_back(dy.strides()[static_cast<int>(axis)]);
    }
    return {dy.as_strided(sizes, steps)};
  });
}

Tensor slice(const Tensor& x, int axis, int64_t begin, int64_t end) {
  axis = x.shape().normalize(axis);
  MH_CHECK(0 <= begin && begin <= end && end <= x.size(axis), ShapeError,
           "slice: expected 0 <= begin <= end <= ", x.size(axis), " on axis ", axis, " of ", x.shape(),
           ", got [", begin, ", ", end, ")");
  Shape shape = x.shape();
  shape[axis] = end - begin;
  const Tensor y = x.as_strided(shape, x.strides(), begin * x.strides()[axis]);
  return record({x}, y, [full = x.shape(), axis, begin](const Tensor& dy) -> Gradients {
    const Tensor dx = Tensor::zeros(full, dy.dtype());
    const Tensor part = dx.as_strided(dy.shape(), dx.strides(), begin * dx.strides()[axis]);
    part.copy_from(dy);
    return {dx};
  });
}

std::vector<Tensor> split(const Tensor& x, std::span<const int64_t> sizes, int axis) {
  axis = x.shape().normalize(axis);
  std::vector<Tensor> pieces;
  int64_t at = 0;
  for (const int64_t size : sizes) {
    MH_CHECK(size >= 0 && size <= x.size(axis) - at, ShapeError, "split: the sizes exceed axis ", axis,
             " of ", x.shape());
    Shape shape = x.shape();
    shape[axis] = size;
    pieces.push_back(x.as_strided(shape, x.strides(), at * x.strides()[axis]));
    at += size;
  }
  MH_CHECK(at == x.size(axis), ShapeError, "split: the sizes must add up to ", x.size(axis), " (axis ", axis,
           " of ", x.shape(), "), got ", at);
  const std::vector<int64_t> kept(sizes.begin(), sizes.end());
  return record_many(
      {x}, std::move(pieces),
      [shape = x.shape(), kept, axis, dtype = x.dtype()](const std::vector<Tensor>& dy) -> Gradients {
        const bool all = std::all_of(dy.begin(), dy.end(), [](const Tensor& d) { return d.defined(); });
        const Tensor dx = all ? Tensor::empty(shape, dtype) : Tensor::zeros(shape, dtype);
        int64_t at = 0;
        for (size_t i = 0; i < kept.size(); at += kept[i++]) {
          if (!dy[i].defined()) continue;
          dx.as_strided(dy[i].shape(), dx.strides(), at * dx.strides()[axis]).copy_from(dy[i]);
        }
        return {dx};
      });
}

namespace {

// Parts in row-major memory are joined row by row, so that y is written in order.
void join_parts(std::span<const Tensor> parts, const Tensor& y, int axis) {
  const bool plain =
      std::all_of(parts.begin(), parts.end(), [](const Tensor& p) { return p.is_contiguous(); });
  int64_t rows = 1, at = 0;
  for (int i = 0; i < axis; ++i) rows *= y.size(i);
  if (!plain || rows <= 1 || y.numel() == 0) {
    for (const Tensor& part : parts) {
      y.as_strided(part.shape(), y.strides(), at * y.strides()[axis]).copy_from(part);
      at += part.size(axis);
    }
    return;
  }
  struct Rows {
    const std::byte* first;
    size_t bytes;  // of a row
  };
  const auto rows_of = [rows](const Tensor& x) {
    return Rows{static_cast<const std::byte*>(x.raw()), x.bytes() / static_cast<size_t>(rows)};
  };
  std::vector<Rows> sources;
  for (const Tensor& part : parts) sources.push_back(rows_of(part));
  auto* const to = static_cast<std::byte*>(y.raw());
  const size_t row_bytes = rows_of(y).bytes;
  constexpr int64_t kTaskBytes = 1 << 17;  // fewer are not worth waking a thread
  const int64_t grain = std::max<int64_t>(1, kTaskBytes / static_cast<int64_t>(row_bytes));
  parallel_ranges(rows, grain, [&](int64_t begin, int64_t end) {
    std::byte* next = to + static_cast<size_t>(begin) * row_bytes;
    for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row) {
      for (const Rows& source : sources) {
        detail::copy_bytes(next, source.first + row * source.bytes, source.bytes);
        next += source.bytes;
      }
    }
  });
}

}  // namespace

Tensor concat(std::span<const Tensor> parts, int axis) {
  MH_CHECK(!parts.empty(), ValueError, "concat: expected at least one tensor");
  const Tensor& first = parts.front();
  axis = first.shape().normalize(axis);
  Shape shape = first.shape();
  shape[axis] = 0;
  std::vector<int64_t> sizes;
  for (const Tensor& part : parts) {
    detail::check_same_dtype("concat", "another", part, "the first part", first);
    MH_CHECK(part.rank() == first.rank() && part.shape().erased(axis) == first.shape().erased(axis),
             ShapeError, "concat: parts must agree outside axis ", axis, ", got ", first.shape(), " and ",
             part.shape());
    sizes.push_back(part.size(axis));
    shape[axis] += part.size(axis);
  }
  Tensor y = Tensor::empty(shape, first.dtype());
  join_parts(parts, y, axis);
  const bool recording =
      std::any_of(parts.begin(), parts.end(), [](const Tensor& p) { return is_recording({p}); });
  if (!recording) return y;
  std::vector<std::shared_ptr<GradientSlot>> slots;
  for (const Tensor& part : parts) slots.push_back(part.gradient_slot());
  Tape::current()->add(std::move(slots), {&y, 1}, [sizes, axis](std::vector<Tensor> d) -> Gradients {
    return split(d[0], sizes, axis);
  });
  return y;
}

Tensor expand(const Tensor& x, const Shape& shape) {
  const int extra = shape.rank() - x.rank();
  MH_CHECK(extra >= 0, ShapeError, "expand: cannot expand ", x.shape(), " to ", shape);
  Shape strides = Shape::filled(shape.rank(), 0);
  for (int i = 0; i < x.rank(); ++i) {
    MH_CHECK(x.size(i) == shape[i + extra] || x.size(i) == 1, ShapeError, "expand: cannot expand ", x.shape(),
             " to ", shape);
    if (x.size(i) == shape[i + extra]) strides[i + extra] = x.strides()[i];
  }
  return record({x}, x.as_strided(shape, strides),
                [from = x.shape()](const Tensor& dy) -> Gradients { return {sum_to(dy, from)}; });
}

Tensor contiguous(const Tensor& x) {
  if (x.is_contiguous()) return x;
  return record({x}, detail::dense(x), [](const Tensor& dy) -> Gradients { return {dy}; });
}

Tensor cast(const Tensor& x, Dtype dtype) {
  if (x.dtype() == dtype) return x;
  const Tensor y = x.to(dtype);
  if (!is_floating(dtype)) return y;
  const Dtype back = detail::arithmetic_dtype(x.dtype());
  const Tensor out = record({x}, y, [back](const Tensor& dy) -> Gradients { return {dy.to(back)}; });
  if (!out.requires_grad()) return out;
  // The backward keeps the narrower of the two, or the way to it.
  if (const auto& rebuild = x.gradient_slot()->rebuild; rebuild) {
    out.gradient_slot()->rebuild = [rebuild, dtype] { return rebuild().to(dtype); };
  } else if (detail::is_narrow(x)) {
    out.gradient_slot()->rebuild = [x = x.detach(), dtype] { return x.to(dtype); };
  }
  return out;
}

}  // namespace multihead
