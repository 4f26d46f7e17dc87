#include "multihead/ops/elementwise.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "multihead/autograd/tape.h"
#include "multihead/kernels/elementwise/elementwise.h"
#include "multihead/kernels/reduce/sum.h"
#include "multihead/ops/binary-inl.h"
#include "multihead/ops/dispatch-inl.h"
#include "multihead/ops/narrow-inl.h"
#include "multihead/ops/sum-inl.h"

namespace multihead {
namespace {

using detail::check_real;
using detail::check_same_dtype;
using detail::dense;
using detail::is_narrow;
using detail::must_widen;
using detail::widened;
using detail::with_data;
using kernels::Binary;
using kernels::Unary;

// x's strides as seen from the broadcast shape: 0 along repeated axes.
Shape broadcast_strides(const Tensor& x, const Shape& shape) {
  Shape strides = Shape::filled(shape.rank(), 0);
  const int extra = shape.rank() - x.rank();
  for (int i = 0; i < x.rank(); ++i) strides[i + extra] = x.size(i) == 1 ? 0 : x.strides()[i];
  return strides;
}

// x, or a copy if its rows are not runs: then copying in squares costs less than fetching a cache line per
// element.
Tensor in_runs(const Tensor& x) {
  for (int axis = x.rank() - 1; axis >= 0; --axis) {
    if (x.size(axis) != 1) return x.strides()[axis] > 1 ? dense(x) : x;
  }
  return x;
}

// Whether the rows are not runs, but those of another axis are.
bool has_other_runs(const Tensor& x) {
  bool is_row = true;
  for (int axis = x.rank() - 1; axis >= 0; --axis) {
    if (x.size(axis) == 1) continue;
    if (x.strides()[axis] <= 1 && is_row) return false;
    if (x.strides()[axis] == 1) return true;
    is_row = false;
  }
  return false;
}

Tensor apply(Binary op, const Tensor& left, const Tensor& right);

// For operands that lie alike: computed in the order in which they lie, then copied once, as rows.
Tensor apply_as_stored(Binary op, const Tensor& left, const Tensor& right) {
  const Shape shape = left.shape(), steps = left.strides();
  std::vector<int> order(static_cast<size_t>(shape.rank()));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](int axis) { return steps[axis]; });
  const auto ordered = [&](const Shape& of) {
    Shape result;
    for (const int axis : order) result.push_back(of[axis]);
    return result;
  };
  const Shape stored = ordered(shape), stored_steps = ordered(steps);
  const Tensor y = apply(op, left.as_strided(stored, stored_steps), right.as_strided(stored, stored_steps));
  Shape back = shape;
  for (size_t i = 0; i < order.size(); ++i) back[order[i]] = y.strides()[static_cast<int>(i)];
  return y.as_strided(shape, back).contiguous();
}

Tensor apply(Binary op, const Tensor& left, const Tensor& right) {
  if (left.shape() == right.shape() && left.strides() == right.strides() && has_other_runs(left)) {
    return apply_as_stored(op, left, right);
  }
  const Shape shape = broadcast_shapes(left.shape(), right.shape());
  const Tensor a = in_runs(left), b = in_runs(right);
  Tensor y = Tensor::empty(shape, a.dtype());
  const kernels::BroadcastLayout layout{shape, broadcast_strides(a, shape), broadcast_strides(b, shape)};
  detail::dispatch_elements(a.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::binary(op, a.data<T>(), b.data<T>(), y.data<T>(), layout);
  });
  return y;
}

using BinaryOp = Tensor (*)(const Tensor&, const Tensor&);
Tensor on_widened(BinaryOp op, const Tensor& a, const Tensor& b) {
  return cast(op(widened(a), widened(b)), detail::common_dtype(a, b));
}

Tensor apply(Unary op, const char* who, const Tensor& input) {
  if (is_narrow(input)) return cast(apply(op, who, widened(input)), input.dtype());
  check_real(who, "x", input);
  const Tensor x = dense(input);
  const Tensor y = empty_like(x);
  with_data([&](auto* from, auto* to) { kernels::unary(op, from, to, x.numel()); }, x, y);
  detail::Kept kept = kernels::is_from_result(op) ? detail::Kept({}, y.detach()) : detail::Kept(input, x);
  return record({input}, y, [op, kept = std::move(kept)](Tensor dy) mutable -> Gradients {
    const Tensor saved = kept.take();
    const detail::ReusedGradient d = detail::reusable(std::move(dy));
    with_data(
        [&](auto* at, auto* from, auto* to) { kernels::unary_backward(op, at, from, to, d.to.numel()); },
        saved, d.from, d.to);
    return {d.to};
  });
}

Tensor affine(const char* who, const Tensor& input, double factor, double offset) {
  if (is_narrow(input)) return cast(affine(who, widened(input), factor, offset), input.dtype());
  check_real(who, "x", input);
  const Tensor x = dense(input);
  const Tensor y = empty_like(x);
  with_data([&](auto* from, auto* to) { kernels::affine(from, to, x.numel(), factor, offset); }, x, y);
  return record({input}, y, [factor, who](const Tensor& dy) -> Gradients {
    return {factor == 1 ? dy : affine(who, dy, factor, 0)};
  });
}

Tensor sum_axis_of(const Tensor& x, const Shape& result, const kernels::AxisSum& sizes) {
  if (x.dtype() == Dtype::bf16) {
    const Tensor y = Tensor::empty(result, Dtype::f32);
    kernels::sum_axis(x.data<BFloat16>(), y.data<float>(), sizes);
    return y;
  }
  const Tensor y = Tensor::empty(result, x.dtype());
  with_data([&](auto* from, auto* to) { kernels::sum_axis(from, to, sizes); }, x, y);
  return y;
}

int64_t product(const Shape& shape, int begin, int end) {
  int64_t count = 1;
  for (int i = begin; i < end; ++i) count *= shape[i];
  return count;
}

Tensor total(const char* who, const Tensor& input, double factor) {
  if (input.dtype() == Dtype::f16) return cast(total(who, widened(input), factor), input.dtype());
  const bool bf16 = input.dtype() == Dtype::bf16;
  if (!bf16) check_real(who, "x", input);
  const Tensor x = dense(input);
  double value = 0;
  if (bf16) {
    value = kernels::sum(x.data<BFloat16>(), x.numel());
  } else {
    with_data([&](auto* from) { value = kernels::sum(from, x.numel()); }, x);
  }
  const Tensor y = record({input}, Tensor::full({}, value * factor, bf16 ? Dtype::f32 : x.dtype()),
                          [shape = x.shape(), factor](const Tensor& dy) -> Gradients {
                            return {expand(Tensor::full({}, dy.item() * factor, dy.dtype()), shape)};
                          });
  return cast(y, input.dtype());
}

}  // namespace

Tensor detail::binary(const char* who, Binary op, const Tensor& a, const Tensor& b) {
  check_real_or_bf16(who, "a", a);
  check_same_dtype(who, "b", b, "a", a);
  try {
    return apply(op, a, b);
  } catch (const ShapeError&) {
    throw ShapeError(concat(who, ": a ", a.shape(), " and b ", b.shape(), " do not broadcast"));
  }
}

Tensor add(const Tensor& a, const Tensor& b) {
  if (must_widen(a, b)) return on_widened(add, a, b);
  return record({a, b}, detail::binary("add", Binary::add, a, b),
                [sa = a.shape(), sb = b.shape()](const Tensor& dy) -> Gradients {
                  return {sum_to(dy, sa), sum_to(dy, sb)};
                });
}

Tensor sub(const Tensor& a, const Tensor& b) {
  if (must_widen(a, b)) return on_widened(sub, a, b);
  return record({a, b}, detail::binary("sub", Binary::sub, a, b),
                [sa = a.shape(), sb = b.shape(), need_b = b.requires_grad()](const Tensor& dy) -> Gradients {
                  return {sum_to(dy, sa), need_b ? neg(sum_to(dy, sb)) : Tensor()};
                });
}

Tensor mul(const Tensor& a, const Tensor& b) {
  if (must_widen(a, b)) return on_widened(mul, a, b);
  const Tensor y = detail::binary("mul", Binary::mul, a, b);
  const bool need_a = a.requires_grad(), need_b = b.requires_grad();
  return record({a, b}, y, [a = a.detach(), b = b.detach(), need_a, need_b](const Tensor& dy) -> Gradients {
    return {need_a ? sum_to(apply(Binary::mul, dy, widened(b)), a.shape()) : Tensor(),
            need_b ? sum_to(apply(Binary::mul, dy, widened(a)), b.shape()) : Tensor()};
  });
}

Tensor div(const Tensor& a, const Tensor& b) {
  if (is_narrow(a) || is_narrow(b)) return on_widened(div, a, b);  // whose gradient takes y
  const Tensor y = detail::binary("div", Binary::div, a, b);
  const bool need_b = b.requires_grad();
  return record(
      {a, b}, y, [sa = a.shape(), b = b.detach(), y = y.detach(), need_b](const Tensor& dy) -> Gradients {
        const Tensor da = apply(Binary::div, dy, b);  // db = -da · y
        return {sum_to(da, sa), need_b ? neg(sum_to(apply(Binary::mul, da, y), b.shape())) : Tensor()};
      });
}

Tensor scale(const Tensor& x, double factor) { return affine("scale", x, factor, 0); }
Tensor add_scalar(const Tensor& x, double value) { return affine("add_scalar", x, 1, value); }
#define MH_UNARY(name, ...) \
  Tensor name(const Tensor& x) { return apply(Unary::name, #name, x); }
MH_UNARY_FUNCTIONS(MH_UNARY)
#undef MH_UNARY

Tensor where(const Tensor& mask, const Tensor& a, const Tensor& b) {
  if (is_narrow(a) || is_narrow(b)) {
    return cast(where(mask, widened(a), widened(b)), detail::common_dtype(a, b));
  }
  MH_CHECK(mask.dtype() == Dtype::boolean, DtypeError, "where: mask must be bool, got ", mask.dtype());
  check_real("where", "a", a);
  check_same_dtype("where", "b", b, "a", a);
  const Shape shape = broadcast_shapes(mask.shape(), broadcast_shapes(a.shape(), b.shape()));
  const auto spread = [&](const Tensor& x) {
    return dense(x.as_strided(shape, broadcast_strides(x, shape)));
  };
  const auto choose = [shape](const Tensor& m, const Tensor& x, const Tensor& z) {
    const Tensor y = Tensor::empty(shape, x.defined() ? x.dtype() : z.dtype());
    with_data([&](auto* to, auto* a, auto* b) { kernels::select(m.data<bool>(), a, b, to, y.numel()); }, y, x,
              z);
    return y;
  };
  const Tensor m = spread(mask);
  const bool need_a = a.requires_grad(), need_b = b.requires_grad();
  return record({a, b}, choose(m, spread(a), spread(b)),
                [m, choose, sa = a.shape(), sb = b.shape(), need_a, need_b](const Tensor& d) -> Gradients {
                  const Tensor dy = dense(d);
                  return {need_a ? sum_to(choose(m, dy, {}), sa) : Tensor(),
                          need_b ? sum_to(choose(m, {}, dy), sb) : Tensor()};
                });
}

Tensor sum(const Tensor& x) { return total("sum", x, 1); }
Tensor mean(const Tensor& x) {
  return total("mean", x, x.numel() > 0 ? 1 / static_cast<double>(x.numel()) : 0.0);
}

Tensor sum(const Tensor& x, int axis, bool keep_axis) {
  return cast(detail::wide_sum(x, axis, keep_axis), x.dtype());
}

Tensor detail::wide_sum(const Tensor& input, int axis, bool keep_axis) {
  if (input.dtype() == Dtype::f16) return wide_sum(widened(input), axis, keep_axis);
  if (input.dtype() != Dtype::bf16) check_real("sum", "x", input);
  const Tensor x = dense(input);
  axis = x.shape().normalize(axis);
  Shape kept = x.shape();
  kept[axis] = 1;
  const Shape result = keep_axis ? kept : kept.erased(axis);
  const Tensor y = sum_axis_of(
      x, result, {product(x.shape(), 0, axis), x.size(axis), product(x.shape(), axis + 1, x.rank())});
  return record({input}, y, [shape = x.shape(), kept](const Tensor& dy) -> Gradients {
    return {expand(reshape(dy, kept), shape)};
  });
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  if (is_narrow(x)) return cast(sum_to(widened(x), shape), x.dtype());
  check_real("sum_to", "x", x);
  const int extra = x.rank() - shape.rank();
  MH_CHECK(extra >= 0, ShapeError, "sum_to: cannot sum ", x.shape(), " to ", shape);
  Shape goal = Shape::filled(extra, 1);
  for (const int64_t size : shape) goal.push_back(size);
  Tensor y = dense(x);
  // Neighbouring axes are summed together, from the back.
  for (int end = x.rank(); end > 0;) {
    int begin = end;
    while (begin > 0 && goal[begin - 1] == 1 && x.size(begin - 1) != 1) --begin;
    if (begin == end) {
      MH_CHECK(goal[end - 1] == x.size(end - 1), ShapeError, "sum_to: cannot sum ", x.shape(), " to ", shape);
      --end;
      continue;
    }
    Shape result = y.shape();
    for (int i = begin; i < end; ++i) result[i] = 1;
    y = sum_axis_of(
        y, result,
        {product(y.shape(), 0, begin), product(y.shape(), begin, end), product(y.shape(), end, y.rank())});
    end = begin;
  }
  return record({x}, y.as_strided(shape, contiguous_strides(shape)),
                [from = x.shape()](const Tensor& dy) -> Gradients { return {expand(dy, from)}; });
}

}  // namespace multihead
