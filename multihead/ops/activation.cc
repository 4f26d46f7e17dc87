#include "multihead/ops/activation.h"

#include "multihead/autograd/tape.h"
#include "multihead/kernels/elementwise/activation.h"
#include "multihead/ops/dispatch-inl.h"
#include "multihead/ops/narrow-inl.h"

namespace multihead {
namespace {

using detail::dense;
using detail::with_data;

// y = f(gate) · up. d_gate and d_up are tensors of their own, or halves of one with the strides of gate and
// up.
Tensor gated_forward(const Tensor& gate, const Tensor& up, Activation activation,
                     const kernels::GatedRows& rows) {
  const Tensor y = Tensor::empty(gate.shape(), gate.dtype());
  with_data([&](auto* g, auto* u, auto* to) { kernels::gated(activation, g, u, to, rows); }, gate, up, y);
  return y;
}

struct GatedTensors {
  Tensor gate, up, d_gate, d_up;
};
void gated_backward(const GatedTensors& t, const Tensor& d, Activation activation,
                    const kernels::GatedRows& rows) {
  const Tensor dy = dense(d);
  with_data(
      [&](auto* gate, auto* up, auto* from, auto* d_gate, auto* d_up) {
        kernels::gated_backward(activation, gate, up, {from, d_gate, d_up}, rows);
      },
      t.gate, t.up, dy, t.d_gate, t.d_up);
}

}  // namespace

Tensor activate(const Tensor& input, Activation activation) {
  if (detail::is_narrow(input)) return cast(activate(detail::widened(input), activation), input.dtype());
  detail::check_real("activate", "x", input);
  const Tensor x = dense(input);
  const Tensor y = empty_like(x);
  with_data([&](auto* from, auto* to) { kernels::activate(activation, from, to, x.numel()); }, x, y);
  return record({input}, y, [kept = detail::Kept(input, x), activation](Tensor dy) mutable -> Gradients {
    const Tensor x = kept.take();
    const detail::ReusedGradient d = detail::reusable(std::move(dy));
    with_data([&](auto* at, auto* from,
                  auto* to) { kernels::activate_backward(activation, at, from, to, x.numel()); },
              x, d.from, d.to);
    return {d.to};
  });
}

Tensor gated(const Tensor& gate, const Tensor& up, Activation activation) {
  if (detail::is_narrow(gate) || detail::is_narrow(up)) {
    return cast(gated(detail::widened(gate), detail::widened(up), activation),
                detail::common_dtype(gate, up));
  }
  detail::check_real("gated", "gate", gate);
  detail::check_same_dtype("gated", "up", up, gate);
  MH_CHECK(gate.shape() == up.shape(), ShapeError, "gated: up must be ", gate.shape(), " like gate, got ",
           up.shape());
  const Tensor g = dense(gate), u = dense(up);
  const kernels::GatedRows rows{1, g.numel(), g.numel()};
  return record({gate, up}, gated_forward(g, u, activation, rows),
                [kept_gate = detail::Kept(gate, g), kept_up = detail::Kept(up, u), activation,
                 rows](const Tensor& dy) mutable -> Gradients {
                  const Tensor g = kept_gate.take(), u = kept_up.take();
                  const GatedTensors all{g, u, empty_like(g), empty_like(u)};
                  gated_backward(all, dy, activation, rows);
                  return {all.d_gate, all.d_up};
                });
}

Tensor glu(const Tensor& input, Activation activation) {
  if (detail::is_narrow(input)) return cast(glu(detail::widened(input), activation), input.dtype());
  detail::check_real("glu", "x", input);
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
        const Tensor dx = empty_like(x);
        gated_backward({part(x, 0), part(x, 1), part(dx, 0), part(dx, 1)}, dy, activation, rows);
        return {dx};
      });
}

}  // namespace multihead
