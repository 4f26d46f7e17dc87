#include "multihead/ops/softmax.h"

#include "multihead/autograd/tape.h"
#include "multihead/kernels/reduce/softmax.h"
#include "multihead/ops/dispatch-inl.h"
#include "multihead/ops/narrow-inl.h"

namespace multihead {
namespace {

using detail::dense;
using detail::with_data;

kernels::Rows rows_of(const Tensor& x) {
  const int64_t size = x.size(-1);
  return {size > 0 ? x.numel() / size : 0, size};
}

// Another axis than the last goes there and back.
Tensor with_axis_last(const char* who, const Tensor& x, int axis, Tensor (*op)(const Tensor&)) {
  detail::check_real_or_bf16(who, "x", x);
  MH_CHECK(x.rank() > 0, ShapeError, who, ": x must have at least one axis");
  axis = x.shape().normalize(axis);
  return axis == x.rank() - 1 ? op(x) : transpose(op(transpose(x, axis, -1)), axis, -1);
}

// Gradients of a bf16 softmax come from what was rounded.
Tensor softmax_rows(const Tensor& input) {
  const Tensor x = dense(input);
  const Tensor y = empty_like(x);
  Tensor exact = y.detach();
  if (x.dtype() == Dtype::bf16) {
    exact = is_recording({input}) ? Tensor::empty(x.shape()) : Tensor();
    kernels::softmax(x.data<BFloat16>(), y.data<BFloat16>(), detail::data_or_null<float>(exact), rows_of(x));
  } else {
    with_data([&](auto* from, auto* to) { kernels::softmax(from, to, rows_of(x)); }, x, y);
  }
  return record({input}, y, [exact](Tensor dy) -> Gradients {
    const detail::ReusedGradient d = detail::reusable(std::move(dy));
    with_data([&](auto* p, auto* from, auto* to) { kernels::softmax_backward(p, from, to, rows_of(exact)); },
              exact, d.from, d.to);
    return {d.to};
  });
}

Tensor log_softmax_rows(const Tensor& input) {
  const Tensor x = dense(input);
  const Tensor y = empty_like(x);
  with_data([&](auto* from, auto* to) { kernels::log_softmax(from, to, rows_of(x)); }, x, y);
  return record({input}, y, [y = y.detach()](Tensor dy) -> Gradients {
    const detail::ReusedGradient d = detail::reusable(std::move(dy));
    with_data([&](auto* p, auto* from, auto* to) { kernels::log_softmax_backward(p, from, to, rows_of(y)); },
              y, d.from, d.to);
    return {d.to};
  });
}

}  // namespace

Tensor softmax(const Tensor& x, int axis) {
  const Dtype dtype = detail::statistics_dtype(x.dtype());
  if (detail::is_narrow(x) && dtype != Dtype::bf16) return cast(softmax(detail::widened(x), axis), dtype);
  return with_axis_last("softmax", x, axis, softmax_rows);
}
Tensor log_softmax(const Tensor& x, int axis) {
  if (detail::is_narrow(x)) {
    return cast(log_softmax(detail::widened(x), axis), detail::statistics_dtype(x.dtype()));
  }
  return with_axis_last("log_softmax", x, axis, log_softmax_rows);
}

}  // namespace multihead
