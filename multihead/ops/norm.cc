#include "multihead/ops/norm.h"

#include "multihead/autograd/autocast.h"
#include "multihead/autograd/tape.h"
#include "multihead/kernels/reduce/norm.h"
#include "multihead/ops/dispatch-inl.h"
#include "multihead/ops/narrow-inl.h"

namespace multihead {
namespace {

using detail::data_or_null;
using detail::dense;
using detail::dispatch_real;
using detail::is_narrow;
using detail::widened;

struct Norm {
  const char* who;
  bool layer;  // else RMS
  double eps;
};

// A bf16 x that joins an f32 residual is read as it is.
bool joins_f32(const Tensor& x, const Tensor& residual) {
  return x.dtype() == Dtype::bf16 && residual.defined() && residual.dtype() == Dtype::f32;
}

// The dtype in which x, alone or with a residual that it joins, is computed.
Dtype computed_dtype(const Tensor& x) { return x.dtype() == Dtype::bf16 ? Dtype::f32 : x.dtype(); }

void check_affine(const Norm& norm, const char* argument, const Tensor& parameter, const Tensor& x) {
  if (!parameter.defined()) return;
  MH_CHECK(parameter.dtype() == computed_dtype(x), DtypeError, norm.who, ": x is ", x.dtype(), " but ",
           argument, " is ", parameter.dtype(), ": convert x to ", parameter.dtype(), " or ", argument,
           " to ", computed_dtype(x));
  MH_CHECK(parameter.shape() == Shape({x.size(-1)}), ShapeError, norm.who, ": ", argument, " must be [",
           x.size(-1), "] to match x ", x.shape(), ", got ", parameter.shape());
}

void check(const Norm& norm, const Tensor& x, const Tensor& residual, const Tensor& weight,
           const Tensor& bias) {
  detail::check_real_or_bf16(norm.who, "x", x);
  MH_CHECK(x.rank() > 0, ShapeError, norm.who, ": x must have at least one axis");
  MH_CHECK(norm.eps >= 0, ValueError, norm.who, ": eps must be >= 0, got ", norm.eps);
  check_affine(norm, "weight", weight, x);
  check_affine(norm, "bias", bias, x);
  if (!residual.defined()) return;
  if (!joins_f32(x, residual)) detail::check_same_dtype(norm.who, "residual", residual, "x", x);
  MH_CHECK(residual.shape() == x.shape(), ShapeError, norm.who, ": residual must be ", x.shape(),
           " like x, got ", residual.shape());
}

// Kept for the backward. x is what was normalised, or (is_normalized) under Autocast, in half the memory,
// what came of it (before weight and bias) in bf16, as precise as what the products read.
struct Saved {
  Tensor x, weight, mean, inv_std;
  bool has_weight_gradient, has_bias_gradient, is_normalized;
  int64_t rows() const { return inv_std.numel(); }
};

BFloat16* data_if_bf16(const Tensor& x) { return x.dtype() == Dtype::bf16 ? x.data<BFloat16>() : nullptr; }

struct NormGradients {
  Tensor dx, d_weight, d_bias;
};

// d_sum (what reaches the sum beside the norm) may be undefined.
NormGradients backward(const Saved& s, Tensor d_normed, const Tensor& d_sum) {
  const detail::ReusedGradient d = detail::reusable(std::move(d_normed));
  const Dtype dtype = d.to.dtype();
  const int64_t size = s.x.size(-1);
  NormGradients out{d.to, {}, {}};
  if (s.has_weight_gradient) out.d_weight = Tensor::empty({size}, dtype);
  if (s.has_bias_gradient) out.d_bias = Tensor::empty({size}, dtype);
  const Tensor scratch = Tensor::empty({kernels::norm_backward_scratch(s.rows(), size)}, dtype);
  const Tensor extra = d_sum.defined() ? dense(d_sum) : Tensor();
  dispatch_real(dtype, [&](auto zero) {
    using T = decltype(zero);
    kernels::norm_backward(kernels::NormGradArgs<T>{
        .rows = s.rows(),
        .size = size,
        .x = s.x.dtype() == dtype ? s.x.data<T>() : nullptr,
        .weight = data_or_null<T>(s.weight),
        .mean = data_or_null<T>(s.mean),
        .inv_std = s.inv_std.data<T>(),
        .dy = d.from.data<T>(),
        .d_sum = data_or_null<T>(extra),
        .dx = out.dx.data<T>(),
        .d_weight = data_or_null<T>(out.d_weight),
        .d_bias = data_or_null<T>(out.d_bias),
        .scratch = scratch.data<T>(),
        .x16 = s.is_normalized ? nullptr : data_if_bf16(s.x),
        .normalized16 = s.is_normalized ? data_if_bf16(s.x) : nullptr,
    });
  });
  return out;
}

struct Forward {
  Tensor sum, normed;
  Saved saved;
};

Forward forward(const Norm& norm, const Tensor& input, const Tensor& residual, const Tensor& weight,
                const Tensor& bias) {
  check(norm, input, residual, weight, bias);
  const Tensor x = dense(input);
  const int64_t size = x.size(-1), rows = size > 0 ? x.numel() / size : 0;
  const Tensor other = residual.defined() ? dense(residual) : Tensor();
  const Tensor w = weight.defined() ? dense(weight) : Tensor(), b = bias.defined() ? dense(bias) : Tensor();
  const Dtype dtype = computed_dtype(x);
  const Tensor sum = residual.defined() ? Tensor::empty(x.shape(), dtype) : x;
  const Tensor y = empty_like(sum);
  const Tensor mean = norm.layer ? Tensor::empty({rows}, dtype) : Tensor();
  const Tensor inv_std = Tensor::empty({rows}, dtype);
  const bool halves =
      Autocast::active() && sum.dtype() == Dtype::f32 && is_recording({x, residual, weight, bias});
  const Tensor normalized = halves ? Tensor::empty(x.shape(), Dtype::bf16) : Tensor();
  dispatch_real(dtype, [&](auto zero) {
    using T = decltype(zero);
    kernels::norm(kernels::NormArgs<T>{
        .rows = rows,
        .size = size,
        .eps = norm.eps,
        .x = x.dtype() == dtype ? x.data<T>() : nullptr,
        .residual = data_or_null<T>(other),
        .sum = residual.defined() ? sum.data<T>() : nullptr,
        .weight = data_or_null<T>(w),
        .bias = data_or_null<T>(b),
        .y = y.dtype() == dtype ? y.data<T>() : nullptr,
        .mean = data_or_null<T>(mean),
        .inv_std = inv_std.data<T>(),
        .x16 = data_if_bf16(x),
        .y16 = data_if_bf16(y),
        .normalized16 = data_or_null<BFloat16>(normalized),
    });
  });
  const bool d_weight = weight.defined() && weight.requires_grad(),
             d_bias = bias.defined() && bias.requires_grad();
  return {sum, y, {halves ? normalized : sum.detach(), w, mean, inv_std, d_weight, d_bias, halves}};
}

// Consumers keep the way to a large result instead of the result: one more pass over x in the backward, which
// keeps x anyway.
constexpr int64_t kRebuildElements = 1 << 18;

void offer_rebuild(const Tensor& normed, const Norm& norm, const Saved& saved, const Tensor& bias) {
  if (!normed.requires_grad() || normed.numel() < kRebuildElements) return;
  normed.gradient_slot()->rebuild = [norm, saved, bias = bias.defined() ? dense(bias) : Tensor()] {
    if (!saved.is_normalized) return forward(norm, saved.x, {}, saved.weight, bias).normed;
    const Tensor y = Tensor::empty(saved.x.shape());
    kernels::norm_affine({.rows = saved.rows(),
                          .size = y.size(-1),
                          .weight = data_or_null<float>(saved.weight),
                          .bias = data_or_null<float>(bias),
                          .y = y.data<float>(),
                          .normalized16 = saved.x.data<BFloat16>()});
    return y;
  };
}

Tensor norm_op(const Norm& norm, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const Dtype dtype = detail::statistics_dtype(x.dtype());
  if (is_narrow(x) && dtype != Dtype::bf16) return cast(norm_op(norm, widened(x), weight, bias), dtype);
  if (is_narrow(weight) || is_narrow(bias)) return norm_op(norm, x, widened(weight), widened(bias));
  const Forward f = forward(norm, x, {}, weight, bias);
  Tensor y = record({x, weight, bias}, f.normed, [saved = f.saved](Tensor dy) -> Gradients {
    NormGradients d = backward(saved, std::move(dy), {});
    return {d.dx, d.d_weight, d.d_bias};
  });
  offer_rebuild(y, norm, f.saved, bias);
  return y;
}

AddNorm add_norm_op(const Norm& norm, const Tensor& x, const Tensor& residual, const Tensor& weight,
                    const Tensor& bias) {
  MH_CHECK(residual.defined(), ValueError, norm.who, ": residual is undefined");
  const bool reads = !is_narrow(x) || joins_f32(x, residual);
  if (!reads || is_narrow(residual) || is_narrow(weight) || is_narrow(bias)) {
    const AddNorm y = add_norm_op(norm, widened(x), widened(residual), widened(weight), widened(bias));
    const Dtype dtype = detail::common_dtype(x, residual);
    return {cast(y.sum, dtype), cast(y.normed, detail::statistics_dtype(dtype))};
  }
  const Forward f = forward(norm, x, residual, weight, bias);
  std::vector<Tensor> out = record_many({x, residual, weight, bias}, {f.sum, f.normed},
                                        [saved = f.saved](std::vector<Tensor> d) -> Gradients {
                                          if (!d[1].defined()) return {d[0], d[0], {}, {}};
                                          NormGradients g = backward(saved, std::move(d[1]), d[0]);
                                          return {g.dx, g.dx, g.d_weight, g.d_bias};
                                        });
  offer_rebuild(out[1], norm, f.saved, bias);
  return {out[0], out[1]};
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return norm_op({"layer_norm", true, eps}, x, weight, bias);
}
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  return norm_op({"rms_norm", false, eps}, x, weight, {});
}
AddNorm add_layer_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                       double eps) {
  return add_norm_op({"add_layer_norm", true, eps}, x, residual, weight, bias);
}
AddNorm add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps) {
  return add_norm_op({"add_rms_norm", false, eps}, x, residual, weight, {});
}

}  // namespace multihead
