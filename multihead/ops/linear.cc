#include "multihead/ops/linear.h"

#include <algorithm>

#include "multihead/autograd/autocast.h"
#include "multihead/autograd/tape.h"
#include "multihead/kernels/elementwise/activation.h"
#include "multihead/kernels/reduce/sum.h"
#include "multihead/ops/dispatch-inl.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/narrow-inl.h"

namespace multihead {
namespace {

using detail::check_same_dtype;
using detail::dense;
using detail::dispatch_elements;
using detail::GradientOf;
using detail::is_narrow;
using detail::matrix_of;
using detail::with_data;
using kernels::Transpose;

// --- matmul
// ----------------------------------------------------------------------------------------------------

// A stack of matrices that gemm can read in place.
struct Operand {
  Tensor tensor;
  int64_t ld;
  Transpose transpose;
};

Operand operand(const Tensor& x) {
  const int64_t rows = x.size(-2), columns = x.size(-1);
  const int64_t row_step = x.strides()[-2], column_step = x.strides()[-1];
  if ((column_step == 1 || columns <= 1) && (row_step >= columns || rows <= 1)) {
    return {x.detach(), std::max<int64_t>(rows <= 1 ? columns : row_step, 1), Transpose::no};
  }
  if ((row_step == 1 || rows <= 1) && column_step >= rows) return {x.detach(), column_step, Transpose::yes};
  return {dense(x), std::max<int64_t>(columns, 1), Transpose::no};
}

// Batch axes of two operands, neighbours merged where both allow it.
struct BatchAxes {
  std::vector<int64_t> sizes, a, b;

  BatchAxes(const Shape& batch, const Tensor& x, const Tensor& y) {
    for (int i = 0; i < batch.rank(); ++i) {
      if (batch[i] == 1) continue;
      const int64_t step_a = step(batch, x, i), step_b = step(batch, y, i);
      if (!sizes.empty() && a.back() == step_a * batch[i] && b.back() == step_b * batch[i]) {
        sizes.back() *= batch[i];
        a.back() = step_a;
        b.back() = step_b;
      } else {
        sizes.push_back(batch[i]);
        a.push_back(step_a);
        b.push_back(step_b);
      }
    }
  }

  static int64_t step(const Shape& batch, const Tensor& x, int axis) {
    const int own = axis - (batch.rank() + 2 - x.rank());
    return own < 0 || x.size(own) == 1 ? 0 : x.strides()[own];
  }
};

void run_batches(kernels::MixedGemmArgs args, const BatchAxes& axes, int64_t count) {
  const size_t last = axes.sizes.size() - 1;
  // Matrices that share b and follow each other in a are one tall matrix.
  if (axes.sizes.size() == 1 && axes.b[0] == 0 && args.ta == Transpose::no &&
      axes.a[0] == args.m * args.lda) {
    args.m *= axes.sizes[0];
    kernels::gemm_mixed(args);
    return;
  }
  const int64_t inner = axes.sizes.empty() ? 1 : axes.sizes[last];
  const kernels::GemmBatch batch{inner, axes.sizes.empty() ? 0 : axes.a[last],
                                 axes.sizes.empty() ? 0 : axes.b[last], args.m * args.n};
  for (int64_t outer = 0; outer < count / inner; ++outer) {
    kernels::MixedGemmArgs one = args;
    int64_t rest = outer;
    for (size_t axis = last; axis-- > 0 && !axes.sizes.empty();) {
      one.a = one.a + rest % axes.sizes[axis] * axes.a[axis];
      one.b = one.b + rest % axes.sizes[axis] * axes.b[axis];
      rest /= axes.sizes[axis];
    }
    one.c = one.c + outer * inner * args.m * args.n;
    kernels::gemm_batched(one, batch);
  }
}

Tensor multiply(const Tensor& x, const Tensor& y) {
  const Operand a = operand(x), b = operand(y);
  Shape batch_x = x.shape().erased(-1).erased(-1), batch_y = y.shape().erased(-1).erased(-1);
  Shape shape = broadcast_shapes(batch_x, batch_y);
  const BatchAxes axes(shape, a.tensor, b.tensor);
  const int64_t count = shape.numel();
  shape.push_back(x.size(-2));
  shape.push_back(y.size(-1));
  // A gradient of f32 times an operand of bf16 is a gradient.
  const Tensor c = Tensor::empty(shape, x.dtype() == y.dtype() ? x.dtype() : Dtype::f32);
  if (c.numel() == 0) return c;
  run_batches({.a = matrix_of(a.tensor),
               .lda = a.ld,
               .ta = a.transpose,
               .b = matrix_of(b.tensor),
               .ldb = b.ld,
               .tb = b.transpose,
               .c = matrix_of(c),
               .ldc = c.size(-1),
               .m = x.size(-2),
               .n = y.size(-1),
               .k = x.size(-1)},
              axes, count);
  return c;
}

Tensor flipped(const Tensor& x) {
  Shape shape = x.shape(), strides = x.strides();
  std::swap(shape[-1], shape[-2]);
  std::swap(strides[-1], strides[-2]);
  return x.as_strided(shape, strides);
}

// d_b = aᵀ · dy. A single b under a batch is one product over all rows, not a sum of products.
Tensor right_gradient(const Tensor& a, const Tensor& dy, const Tensor& b) {
  if (b.rank() == 2 && a.rank() > 2) {
    const int64_t rows = a.shape().erased(-1).numel();
    return multiply(flipped(reshape(a, {rows, a.size(-1)})), reshape(dy, {rows, dy.size(-1)}));
  }
  return sum_to(multiply(flipped(a), dy), b.shape());
}

// --- linear
// ----------------------------------------------------------------------------------------------------

// x as a matrix of rows with contiguous elements.
Tensor as_rows(const Tensor& x, int64_t columns) {
  const int64_t rows = columns > 0 ? x.numel() / columns : x.shape().erased(-1).numel();
  const Tensor flat = reshape(x.detach(), {rows, columns});
  return flat.strides()[1] == 1 && flat.strides()[0] >= columns ? flat : dense(flat);
}

// `joins`: bias or residual, which may be f32 beside bf16.
void check_joins(const char* argument, const Tensor& joins, const Tensor& x) {
  if (x.dtype() == Dtype::bf16 && joins.dtype() == Dtype::f32) return;
  check_same_dtype("linear", argument, joins, "x", x);
}

void check_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& residual) {
  detail::check_real_or_bf16("linear", "x", x);
  check_same_dtype("linear", "weight", weight, "x", x);
  MH_CHECK(weight.rank() == 2, ShapeError, "linear: weight must be [out, in], got ", weight.shape());
  MH_CHECK(x.rank() > 0 && x.size(-1) == weight.size(1), ShapeError, "linear: x must be [..., ",
           weight.size(1), "] to match weight ", weight.shape(), ", got ", x.shape());
  if (bias.defined()) {
    check_joins("bias", bias, x);
    MH_CHECK(bias.shape() == Shape({weight.size(0)}), ShapeError, "linear: bias must be [", weight.size(0),
             "] to match weight ", weight.shape(), ", got ", bias.shape());
  }
  if (residual.defined()) {
    Shape expected = x.shape();
    expected[-1] = weight.size(0);
    check_joins("residual", residual, x);
    MH_CHECK(residual.shape() == expected, ShapeError, "linear: residual must be ", expected,
             " like the result, got ", residual.shape());
  }
}

struct LinearSaved {
  detail::Kept x;                 // [..., in], if anything needs it
  Tensor weight, pre_activation;  // [out, in], [rows, out]
  Activation activation, input_activation;
  bool need_x, need_weight, need_bias, need_residual;
  Shape x_shape;
};

// Row-major elements of at least 32 bits: the tensor's own, or a copy.
Tensor wide(Tensor x) {
  if (is_narrow(x)) return x.to(Dtype::f32);
  return x;
}

// f(x) in f32 (f64); takes the memory of x if nothing else holds it.
Tensor activated(const Tensor& x, Activation activation) {
  const Dtype dtype = detail::arithmetic_dtype(x.dtype());
  const Tensor y = x.is_unique() && x.dtype() == dtype ? x : Tensor::empty(x.shape(), dtype);
  dispatch_elements(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::activate(activation, x.data<T>(), y.data<GradientOf<T>>(), y.numel());
  });
  return y;
}

// Operands of the gradients of linear(f(input), …): f(input), and f'(input) if dx is wanted.
struct ActivatedInput {
  Tensor value, slope;
};

// The values, of the type that the forward product read, take the memory of the input if nothing else holds
// it.
ActivatedInput activated_input(LinearSaved& s) {
  Tensor x = s.x.take();
  if (!x.defined()) return {};
  x = as_rows(x, s.weight.size(1));
  if (s.input_activation == Activation::none) return {x, Tensor()};
  const Tensor value = x.is_unique() ? x : empty_like(x);
  const Tensor slope = s.need_x ? Tensor::empty(x.shape(), detail::arithmetic_dtype(x.dtype())) : Tensor();
  dispatch_elements(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if (slope.defined()) {
      kernels::activate_with_slope(s.input_activation, x.data<T>(), value.data<T>(),
                                   slope.data<GradientOf<T>>(), x.numel());
    } else {
      kernels::activate(s.input_activation, x.data<T>(), value.data<T>(), x.numel());
    }
  });
  return {value, slope};
}

Gradients linear_backward(LinearSaved& s, Tensor dy) {
  const int64_t in = s.weight.size(1), out = s.weight.size(0), rows = s.x_shape.erased(-1).numel();
  const Tensor residual = s.need_residual ? dy : Tensor();
  Tensor dz = dense(dy);
  if (s.activation != Activation::none) {
    dy = Tensor();
    const detail::ReusedGradient d = detail::reusable(std::move(dz));
    dz = d.to;
    dispatch_elements(s.pre_activation.dtype(), [&](auto zero) {
      using T = decltype(zero);
      using G = GradientOf<T>;
      kernels::activate_backward(s.activation, s.pre_activation.data<T>(), d.from.data<G>(), d.to.data<G>(),
                                 dz.numel());
    });
  }
  Tensor dx, d_weight, d_bias;
  ActivatedInput input = activated_input(s);
  if (s.need_weight) {
    d_weight = Tensor::empty({out, in}, dz.dtype());
    kernels::gemm_mixed({.a = matrix_of(dz),
                         .lda = out,
                         .ta = Transpose::yes,
                         .b = matrix_of(input.value),
                         .ldb = input.value.strides()[0],
                         .c = matrix_of(d_weight),
                         .ldc = in,
                         .m = out,
                         .n = in,
                         .k = rows});
    input.value = Tensor();
  }
  if (s.need_x) {
    dx = Tensor::empty(s.x_shape, dz.dtype());
    kernels::gemm_mixed({.a = matrix_of(dz),
                         .lda = out,
                         .b = matrix_of(s.weight),
                         .ldb = s.weight.strides()[0],
                         .c = matrix_of(dx),
                         .ldc = in,
                         .m = rows,
                         .n = in,
                         .k = out,
                         .factor = matrix_of(input.slope)});
  }
  if (s.need_bias) {
    d_bias = Tensor::empty({out}, dz.dtype());
    with_data([&](auto* from, auto* to) { kernels::sum_axis(from, to, {1, rows, out}); }, dz, d_bias);
  }
  return {dx, d_weight, d_bias, residual};
}

// With the axes that they lack, which the result has to lose.
Tensor matmul_of_vectors(const Tensor& a, const Tensor& b) {
  MH_CHECK(a.rank() > 0 && b.rank() > 0, ShapeError, "matmul: a and b must have axes, got ", a.shape(),
           " and ", b.shape());
  const Tensor y =
      matmul(a.rank() == 1 ? reshape(a, {1, a.size(0)}) : a, b.rank() == 1 ? reshape(b, {b.size(0), 1}) : b);
  Shape shape = y.shape();
  if (b.rank() == 1) shape = shape.erased(shape.rank() - 1);
  if (a.rank() == 1) shape = shape.erased(shape.rank() - (b.rank() == 1 ? 1 : 2));
  return reshape(y, shape);
}

}  // namespace

Tensor matmul(const Tensor& left, const Tensor& right) {
  if (left.rank() < 2 || right.rank() < 2) return matmul_of_vectors(left, right);
  const Tensor a = detail::for_product(left), b = detail::for_product(right);
  if (a.dtype() == Dtype::f16) {
    check_same_dtype("matmul", "b", b, "a", a);
    const Autocast off(Dtype::f32);
    return cast(matmul(detail::widened(a), detail::widened(b)), a.dtype());
  }
  detail::check_real_or_bf16("matmul", "a", a);
  check_same_dtype("matmul", "b", b, "a", a);
  MH_CHECK(a.size(-1) == b.size(-2), ShapeError, "matmul: a ", a.shape(), " and b ", b.shape(),
           " differ in the inner size: ", a.size(-1), " and ", b.size(-2));
  const bool need_a = a.requires_grad(), need_b = b.requires_grad();
  return record({a, b}, multiply(a, b),
                [a = a.detach(), b = b.detach(), need_a, need_b](const Tensor& dy) -> Gradients {
                  return {need_a ? sum_to(multiply(dy, flipped(b)), a.shape()) : Tensor(),
                          need_b ? right_gradient(a, dy, b) : Tensor()};
                });
}

Tensor linear(const Tensor& input, const Tensor& matrix, const Tensor& bias, const LinearOptions& options) {
  const Tensor &residual = options.residual, x = detail::for_product(input),
               weight = detail::for_product(matrix);
  if (x.dtype() == Dtype::f16) {
    LinearOptions wide_options = options;
    wide_options.residual = detail::widened(residual);
    const Autocast off(Dtype::f32);
    return cast(linear(detail::widened(x), detail::widened(weight), detail::widened(bias), wide_options),
                x.dtype());
  }
  check_linear(x, weight, bias, residual);
  const Activation activation = options.activation;
  const bool recording = is_recording({x, weight, bias, residual});
  const Tensor rows = as_rows(x, weight.size(1)), w = as_rows(weight, weight.size(1));
  const bool activates = options.input_activation != Activation::none;
  const Tensor in = activates ? activated(dense(rows), options.input_activation) : rows;
  const int64_t out = weight.size(0);
  Shape shape = x.shape();
  shape[-1] = out;
  const Tensor y = Tensor::empty(shape, residual.defined() ? residual.dtype() : x.dtype());
  // The derivative of relu can be read off its result.
  const bool from_y = activation == Activation::relu && !residual.defined();
  Tensor pre;
  if (recording && activation != Activation::none) pre = from_y ? y.detach() : empty_like(y);
  const Tensor b = bias.defined() ? dense(wide(bias)) : Tensor(),
               r = residual.defined() ? dense(residual) : Tensor();
  kernels::gemm_mixed({.a = matrix_of(in),
                       .lda = in.strides()[0],
                       .b = matrix_of(w),
                       .ldb = w.strides()[0],
                       .tb = Transpose::yes,
                       .c = matrix_of(y),
                       .ldc = out,
                       .m = rows.size(0),
                       .n = out,
                       .k = weight.size(1),
                       .bias = matrix_of(b),
                       .pre_activation = from_y ? kernels::GemmMatrix() : matrix_of(pre),
                       .activation = activation,
                       .residual = matrix_of(r)});
  if (!recording) return y;
  LinearSaved saved{weight.requires_grad() || activates ? detail::Kept(x, rows) : detail::Kept(),
                    w,
                    pre,
                    activation,
                    options.input_activation,
                    x.requires_grad(),
                    weight.requires_grad(),
                    bias.defined() && bias.requires_grad(),
                    residual.defined() && residual.requires_grad(),
                    x.shape()};
  return record({x, weight, bias, residual}, y, [saved = std::move(saved)](Tensor dy) mutable {
    return linear_backward(saved, std::move(dy));
  });
}

}  // namespace multihead
