#include "multihead/ops/reduce.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/kernels/reduce/extreme.h"
#include "multihead/ops/dispatch-inl.h"
#include "multihead/ops/narrow-inl.h"
#include "multihead/ops/shape.h"
#include "multihead/ops/sum-inl.h"

namespace multihead {
namespace {

using detail::dense;
using detail::is_narrow;
using detail::widened;

// The axes of a reduction: x's shape with them kept as 1 and removed, and an order that puts them last.
struct ReducedAxes {
  std::vector<int> axes, order;  // of x: reduced, ascending; all, reduced last
  Shape kept, removed;
  int64_t count = 1;  // elements that become one
};

ReducedAxes reduced_axes(const char* who, const Tensor& x, std::span<const int> given) {
  ReducedAxes r;
  r.kept = x.shape();
  for (const int axis : given) r.axes.push_back(x.shape().normalize(axis));
  for (int i = 0; given.empty() && i < x.rank(); ++i) r.axes.push_back(i);
  std::sort(r.axes.begin(), r.axes.end());
  MH_CHECK(std::adjacent_find(r.axes.begin(), r.axes.end()) == r.axes.end(), ShapeError, who, ": an axis of ",
           x.shape(), " is named twice");
  for (int i = 0; i < x.rank(); ++i) {
    if (std::binary_search(r.axes.begin(), r.axes.end(), i)) continue;
    r.order.push_back(i);
    r.removed.push_back(x.size(i));
  }
  for (const int axis : r.axes) {
    r.order.push_back(axis);
    r.kept[axis] = 1;
    r.count *= x.size(axis);
  }
  return r;
}

// A view whose axis i is axes[i] of x, without gradient.
Tensor reordered(const Tensor& x, const std::vector<int>& axes) {
  Shape shape, strides;
  for (const int axis : axes) {
    shape.push_back(x.size(axis));
    strides.push_back(x.strides()[axis]);
  }
  return x.as_strided(shape, strides);
}

// x with the reduced axes last, in row-major memory of its own or x's: rows of `count` elements.
Tensor reduced_rows(const Tensor& x, const ReducedAxes& r) { return dense(reordered(x, r.order)); }

// f(T{}) for a dtype whose elements have an order.
template <class F>
void dispatch_ordered(const char* who, const Tensor& x, F&& f) {
  if (x.dtype() == Dtype::i64) return f(int64_t{});
  if (x.dtype() == Dtype::i32) return f(int32_t{});
  detail::check_real(who, "x", x);
  detail::dispatch_real(x.dtype(), f);
}

Tensor places_of(const char* who, const Tensor& rows, const Shape& shape, int64_t count, bool largest) {
  MH_CHECK(count > 0, ShapeError, who, ": there must be an element to find, got ", rows.shape());
  const Tensor places = Tensor::empty(shape, Dtype::i64);
  dispatch_ordered(who, rows, [&](auto zero) {
    using T = decltype(zero);
    kernels::extreme_places(rows.data<T>(), places.data<int64_t>(), places.numel(), count, largest);
  });
  return places;
}

template <class T>
void take_places(const Tensor& rows, const Tensor& places, int64_t count, const Tensor& y) {
  const T* from = rows.data<T>();
  for (int64_t r = 0; r < y.numel(); ++r) y.data<T>()[r] = from[r * count + places.data<int64_t>()[r]];
}

// dy where a row's element equals its extreme, shared by those that do; NaN equals NaN here.
Tensor shared_gradient(const Tensor& rows, const Tensor& y, const Tensor& dy, int64_t count) {
  const Tensor dx = Tensor::zeros(rows.shape(), rows.dtype());
  detail::with_data(
      [&](auto* x, auto* extremes, auto* d, auto* to) {
        for (int64_t r = 0; r < y.numel(); ++r, x += count, to += count) {
          const auto is_extreme = [&](auto value) {
            return value == extremes[r] || (std::isnan(value) && std::isnan(extremes[r]));
          };
          const auto equal = std::count_if(x, x + count, is_extreme);
          for (int64_t i = 0; i < count; ++i) {
            if (is_extreme(x[i])) to[i] = d[r] / static_cast<std::remove_cvref_t<decltype(*d)>>(equal);
          }
        }
      },
      rows, y, dy, dx);
  return dx;
}

Tensor extreme_over(const char* who, const Tensor& input, std::span<const int> axes, bool keep_axes,
                    bool largest) {
  if (is_narrow(input))
    return cast(extreme_over(who, widened(input), axes, keep_axes, largest), input.dtype());
  const ReducedAxes r = reduced_axes(who, input, axes);
  const Tensor rows = reduced_rows(input, r);
  const Tensor places = places_of(who, rows, keep_axes ? r.kept : r.removed, r.count, largest);
  const Tensor y = Tensor::empty(places.shape(), rows.dtype());
  dispatch_ordered(who, rows, [&](auto zero) { take_places<decltype(zero)>(rows, places, r.count, y); });
  return record({input}, y,
                [rows, y = y.detach(), count = r.count, order = r.order](const Tensor& dy) -> Gradients {
                  std::vector<int> inverse(order.size());
                  for (size_t i = 0; i < order.size(); ++i)
                    inverse[static_cast<size_t>(order[i])] = static_cast<int>(i);
                  return {reordered(shared_gradient(rows, y, dense(dy), count), inverse)};
                });
}

// In f32 if x is narrow.
Tensor sum_over(const ReducedAxes& r, const Tensor& x, bool keep_axes) {
  Tensor y = r.axes.empty() ? widened(x) : x;
  for (auto axis = r.axes.rbegin(); axis != r.axes.rend(); ++axis) y = detail::wide_sum(y, *axis, true);
  return keep_axes ? y : reshape(y, r.removed);
}

Tensor extreme_place_of(const char* who, const Tensor& input, int axis, bool keep_axis, bool largest) {
  const Tensor x = is_narrow(input) ? input.to(Dtype::f32) : input;
  const ReducedAxes r = reduced_axes(who, x, std::span<const int>(&axis, 1));
  return places_of(who, reduced_rows(x, r), keep_axis ? r.kept : r.removed, r.count, largest);
}

}  // namespace

Tensor sum(const Tensor& x, std::span<const int> axes, bool keep_axes) {
  return cast(sum_over(reduced_axes("sum", x, axes), x, keep_axes), x.dtype());
}

Tensor mean(const Tensor& x, std::span<const int> axes, bool keep_axes) {
  const ReducedAxes r = reduced_axes("mean", x, axes);
  const double factor = r.count > 0 ? 1 / static_cast<double>(r.count) : 0;
  return cast(scale(sum_over(r, x, keep_axes), factor), x.dtype());
}

Tensor max(const Tensor& x, std::span<const int> axes, bool keep_axes) {
  return extreme_over("max", x, axes, keep_axes, true);
}
Tensor min(const Tensor& x, std::span<const int> axes, bool keep_axes) {
  return extreme_over("min", x, axes, keep_axes, false);
}
Tensor argmax(const Tensor& x, int axis, bool keep_axis) {
  return extreme_place_of("argmax", x, axis, keep_axis, true);
}
Tensor argmin(const Tensor& x, int axis, bool keep_axis) {
  return extreme_place_of("argmin", x, axis, keep_axis, false);
}

}  // namespace multihead
