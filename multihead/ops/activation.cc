#include "multihead/ops/activation.h"

#include "multihead/autograd/tape.h"
#include "multihead/kernels/elementwise/activation.h"
#include "multihead/ops/dispatch-inl.h"
#include "multihead/ops/narrow-inl.h"

namespace multihead {
namespace {

using detail::dense;
using detail::dispatch_elements;
using detail::GradientOf;

Tensor empty_gradient(const Tensor& x) {
  return Tensor::empty(x.shape(), detail::arithmetic_dtype(x.dtype()));
}

// y = f(gate) · up. d_gate and d_up are tensors of their own, or halves of one with the strides of gate and
// up.
Tensor gated_forward(const Tensor& gate, const Tensor& up, Activation activation,
                     const kernels::GatedRows& rows) {
  const Tensor y = Tensor::empty(gate.shape(), gate.dtype());
  dispatch_elements(gate.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::gated(activation, gate.data<T>(), up.data<T>(), y.data<T>(), rows);
  });
  return y;
}

struct GatedTensors {
  Tensor gate, up, d_gate, d_up;
};
void gated_backward(const GatedTensors& t, const Tensor& d, Activation activation,
                    const kernels::GatedRows& rows) {
  const Tensor dy = dense(d);
  dispatch_elements(t.gate.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using G = GradientOf<T>;
    const kernels::GatedGradients<G> gradients{dy.data<G>(), t.d_gate.data<G>(), t.d_up.data<G>()};
    kernels::gated_backward(activation, t.gate.data<T>(), t.up.data<T>(), gradients, rows);
  });
}

}  // namespace

Tensor activate(const Tensor& input, Activation activation) {
  if (input.dtype() == Dtype::f16) return cast(activate(detail::widened(input), activation), Dtype::f16);
  detail::check_real_or_bf16("activate", "x", input);
  const Tensor x = dense(input);
  const Tensor y = empty_like(x);
  dispatch_elements(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::activate(activation, x.data<T>(), y.data<T>(), x.numel());
  });
  return record({input}, y, [kept = detail::Kept(input, x), activation](Tensor dy) mutable -> Gradients {
    const Tensor x = kept.take();
    const detail::ReusedGradient d = detail::reusable(std::move(dy));
    dispatch_elements(x.dtype(), [&](auto zero) {
      using T = decltype(zero);
      using G = GradientOf<T>;
      kernels::activate_backward(activation, x.data<T>(), d.from.data<G>(), d.to.data<G>(), x.numel());
    });
    return {d.to};
  });
}

Tensor gated(const Tensor& gate, const Tensor& up, Activation activation) {
  if (detail::must_widen(gate, up)) {
    return cast(gated(detail::widened(gate), detail::widened(up), activation),
                detail::common_dtype(gate, up));
  }
  detail::check_real_or_bf16("gated", "gate", gate);
  detail::check_same_dtype("gated", "up", up, "gate", gate);
  MH_CHECK(gate.shape() == up.shape(), ShapeError, "gated: up must be ", gate.shape(), " like gate, got ",
           up.shape());
  const Tensor g = dense(gate), u = dense(up);
  const kernels::GatedRows rows{1, g.numel(), g.numel()};
  return record({gate, up}, gated_forward(g, u, activation, rows),
                [kept_gate = detail::Kept(gate, g), kept_up = detail::Kept(up, u), activation,
                 rows](const Tensor& dy) mutable -> Gradients {
                  const Tensor g = kept_gate.take(), u = kept_up.take();
                  const GatedTensors all{g, u, empty_gradient(g), empty_gradient(u)};
                  gated_backward(all, dy, activation, rows);
                  return {all.d_gate, all.d_up};
                });
}

Tensor glu(const Tensor& input, Activation activation) {
  if (input.dtype() == Dtype::f16) return cast(glu(detail::widened(input), activation), Dtype::f16);
  detail::check_real_or_bf16("glu", "x", input);
  MH_CHECK(input.rank() > 0 && input.size(-1) % 2 == 0, ShapeError,
           "glu: the last axis must be even (gate, then up), got ", input.shape());
  const Tensor x = dense(input);
  const int64_t width = x.size(-1), half = width / 2;
  const kernels::GatedRows rows{half > 0 ? x.numel() / width : 0, half, width};
  Shape shape = x.shape();
  shape[-1] = half;
  const auto part = [shape, half](const Tensor& t, int64_t which) {
    return t.as_strided(shape, t.strides(), which * half);
  };
  return record(
      {input}, gated_forward(part(x, 0), part(x, 1), activation, rows),
      [kept = detail::Kept(input, x), part, activation, rows](const Tensor& dy) mutable -> Gradients {
        const Tensor x = kept.take();
        const Tensor dx = empty_gradient(x);
        gated_backward({part(x, 0), part(x, 1), part(dx, 0), part(dx, 1)}, dy, activation, rows);
        return {dx};
      });
}

}  // namespace multihead
