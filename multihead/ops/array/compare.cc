#include "multihead/ops/array/compare.h"

#include <cmath>

#include "multihead/autograd/tape.h"
#include "multihead/kernels/array/compare.h"
#include "multihead/kernels/elementwise/elementwise.h"
#include "multihead/ops/binary-inl.h"
#include "multihead/ops/dispatch-inl.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/narrow-inl.h"

namespace multihead {
namespace {

using detail::widened;
using kernels::Comparison;

Tensor compared(const char* who, Comparison op, const Tensor& left, const Tensor& right) {
  detail::check_same_dtype(who, "b", right, "a", left);
  const Tensor a = widened(left.detach()), b = widened(right.detach());
  Shape shape;
  try {
    shape = broadcast_shapes(a.shape(), b.shape());
  } catch (const ShapeError&) {
    throw ShapeError(concat(who, ": a ", a.shape(), " and b ", b.shape(), " do not broadcast"));
  }
  const Tensor x = detail::dense(expand(a, shape)), z = detail::dense(expand(b, shape));
  const Tensor y = Tensor::empty(shape, Dtype::boolean);
  dispatch(a.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if constexpr (!std::is_same_v<T, BFloat16> && !std::is_same_v<T, Float16>) {
      kernels::compare(op, x.data<T>(), z.data<T>(), y.data<bool>(), y.numel());
    }
  });
  return y;
}

Tensor constant_like(const Tensor& x, double value) { return Tensor::full({}, value, x.dtype()); }

// d where a is chosen, half of it where both are alike.
Tensor share_of(const Tensor& d, const Tensor& chosen, const Tensor& alike) {
  return where(chosen, d, where(alike, scale(d, 0.5), constant_like(d, 0)));
}

using BinaryFunction = Tensor (*)(const Tensor&, const Tensor&);

// The larger by `before` = less, the smaller by greater.
Tensor extreme(const char* who, kernels::Binary op, BinaryFunction before, const Tensor& a, const Tensor& b) {
  const Tensor y = detail::binary(who, op, a, b);
  return record({a, b}, y, [before, a = a.detach(), b = b.detach()](const Tensor& d) -> Gradients {
    const Tensor alike = equal(a, b);
    return {sum_to(share_of(d, before(b, a), alike), a.shape()),
            sum_to(share_of(d, before(a, b), alike), b.shape())};
  });
}

Tensor on_wide(BinaryFunction op, const Tensor& a, const Tensor& b) {
  return cast(op(widened(a), widened(b)), detail::common_dtype(a, b));
}
bool is_any_narrow(const Tensor& a, const Tensor& b) { return detail::is_narrow(a) || detail::is_narrow(b); }

}  // namespace

Tensor equal(const Tensor& a, const Tensor& b) { return compared("equal", Comparison::equal, a, b); }
Tensor not_equal(const Tensor& a, const Tensor& b) {
  return compared("not_equal", Comparison::not_equal, a, b);
}
Tensor less(const Tensor& a, const Tensor& b) { return compared("less", Comparison::less, a, b); }
Tensor less_equal(const Tensor& a, const Tensor& b) {
  return compared("less_equal", Comparison::less_equal, a, b);
}
Tensor greater(const Tensor& a, const Tensor& b) { return compared("greater", Comparison::greater, a, b); }
Tensor greater_equal(const Tensor& a, const Tensor& b) {
  return compared("greater_equal", Comparison::greater_equal, a, b);
}

Tensor maximum(const Tensor& a, const Tensor& b) {
  if (is_any_narrow(a, b)) return on_wide(maximum, a, b);
  return extreme("maximum", kernels::Binary::maximum, less, a, b);
}
Tensor minimum(const Tensor& a, const Tensor& b) {
  if (is_any_narrow(a, b)) return on_wide(minimum, a, b);
  return extreme("minimum", kernels::Binary::minimum, greater, a, b);
}

Tensor clamp(const Tensor& x, double low, double high) {
  MH_CHECK(low <= high, ValueError, "clamp: expected low <= high, got ", low, " and ", high);
  if (detail::is_narrow(x)) return cast(clamp(widened(x), low, high), x.dtype());
  detail::check_real("clamp", "x", x);
  const Tensor least = constant_like(x, low), most = constant_like(x, high), plain = x.detach();
  const Tensor y = detail::binary("clamp", kernels::Binary::minimum,
                                  detail::binary("clamp", kernels::Binary::maximum, plain, least), most);
  return record({x}, y, [plain, least, most](const Tensor& d) -> Gradients {
    const Tensor zero = constant_like(d, 0);
    return {where(less_equal(least, plain), where(less_equal(plain, most), d, zero), zero)};
  });
}

Tensor pow(const Tensor& a, const Tensor& b) {
  if (is_any_narrow(a, b)) return on_wide(pow, a, b);
  const Tensor y = detail::binary("pow", kernels::Binary::pow, a, b);
  const bool need_a = a.requires_grad(), need_b = b.requires_grad();
  return record({a, b}, y, [=, a = a.detach(), b = b.detach(), y = y.detach()](const Tensor& d) -> Gradients {
    const Tensor zero = constant_like(d, 0);
    Tensor da, db;
    if (need_a) da = where(equal(b, zero), zero, mul(d, mul(b, pow(a, add_scalar(b, -1)))));
    if (need_b) {
      const Tensor flat = mul(equal(a, zero).to(d.dtype()), greater_equal(b, zero).to(d.dtype()));
      db = where(greater(flat, zero), zero, mul(d, mul(y, log(a))));
    }
    return {need_a ? sum_to(da, a.shape()) : da, need_b ? sum_to(db, b.shape()) : db};
  });
}

Tensor pow(const Tensor& x, double exponent) {
  if (exponent == 2) return square(x);
  if (exponent == 1) return add_scalar(x, 0);
  return pow(x, Tensor::full({}, exponent, x.dtype()));
}

}  // namespace multihead
