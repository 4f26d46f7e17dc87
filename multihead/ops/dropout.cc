#include "multihead/ops/dropout.h"

#include "multihead/autograd/tape.h"
#include "multihead/kernels/elementwise/activation.h"
#include "multihead/kernels/elementwise/dropout.h"
#include "multihead/ops/dispatch-inl.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/narrow-inl.h"

namespace multihead {
namespace {

using kernels::DropoutMask;

void check(const char* who, const Tensor& x, double p) {
  detail::check_real(who, "x", x);
  MH_CHECK(p >= 0 && p <= 1, ValueError, who, ": p must be in [0, 1], got ", p);
}

void run(const Tensor& x, const Tensor& residual, const Tensor& y, const DropoutMask& mask) {
  detail::dispatch_real(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::dropout(x.data<T>(), detail::data_or_null<T>(residual), y.data<T>(), x.numel(), mask);
  });
}

Tensor masked(const Tensor& dy, const DropoutMask& mask) {
  const Tensor dx = Tensor::empty(dy.shape(), dy.dtype());
  run(detail::dense(dy), {}, dx, mask);
  return dx;
}

void activate_into(Activation activation, const Tensor& x, const Tensor& y) {
  detail::dispatch_real(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::activate(activation, x.data<T>(), y.data<T>(), x.numel());
  });
}

}  // namespace

Tensor dropout(const Tensor& input, double p, Rng* rng) {
  if (detail::is_narrow(input)) return cast(dropout(detail::widened(input), p, rng), input.dtype());
  check("dropout", input, p);
  if (rng == nullptr || p == 0) return input;
  const DropoutMask mask{rng->next(), p};
  const Tensor y = Tensor::empty(input.shape(), input.dtype());
  run(detail::dense(input), {}, y, mask);
  return record({input}, y, [mask](const Tensor& dy) -> Gradients { return {masked(dy, mask)}; });
}

Tensor activate_dropout(const Tensor& input, Activation activation, double p, Rng* rng) {
  if (detail::is_narrow(input)) {
    return cast(activate_dropout(detail::widened(input), activation, p, rng), input.dtype());
  }
  check("activate_dropout", input, p);
  if (rng == nullptr || p == 0) return activate(input, activation);
  const DropoutMask mask{rng->next(), p};
  const Tensor x = detail::dense(input), y = Tensor::empty(input.shape(), input.dtype());
  activate_into(activation, x, y);
  run(y, {}, y, mask);
  // A dropped or negative element of relu is 0 in y, and its gradient is 0 as well.
  const bool from_y = activation == Activation::relu;
  detail::Kept kept = from_y ? detail::Kept({}, y.detach()) : detail::Kept(input, x);
  return record(
      {input}, y, [kept = std::move(kept), activation, mask](const Tensor& dy) mutable -> Gradients {
        const Tensor saved = kept.take();
        const Tensor dx = masked(dy, mask);
        detail::dispatch_real(dx.dtype(), [&](auto zero) {
          using T = decltype(zero);
          kernels::activate_backward(activation, saved.data<T>(), dx.data<T>(), dx.data<T>(), dx.numel());
        });
        return {dx};
      });
}

Tensor add_dropout(const Tensor& residual, const Tensor& input, double p, Rng* rng) {
  if (detail::is_narrow(residual) || detail::is_narrow(input)) {
    return cast(add_dropout(detail::widened(residual), detail::widened(input), p, rng),
                detail::common_dtype(residual, input));
  }
  check("add_dropout", input, p);
  detail::check_same_dtype("add_dropout", "residual", residual, input);
  MH_CHECK(residual.shape() == input.shape(), ShapeError, "add_dropout: residual must be ", input.shape(),
           " like x, got ", residual.shape());
  if (rng == nullptr || p == 0) return add(residual, input);
  const DropoutMask mask{rng->next(), p};
  const Tensor y = Tensor::empty(input.shape(), input.dtype());
  run(detail::dense(input), detail::dense(residual), y, mask);
  return record({residual, input}, y, [mask](const Tensor& dy) -> Gradients {
    return {dy, masked(dy, mask)};
  });
}

}  // namespace multihead
