#include "multihead/nn/norm.h"

#include <cmath>

#include "multihead/core/error.h"
#include "multihead/nn/points-inl.h"
#include "multihead/ops/elementwise.h"

namespace multihead::nn {

using detail::point;

Norm::Norm(int64_t size, const NormOptions& options)
    : weight(constant_parameter({size}, options.kind == NormKind::rms_from_one ? 0 : 1)),
      kind_(options.kind),
      eps_(options.eps) {
  MH_CHECK(eps_ >= 0 && std::isfinite(eps_), ValueError, kind_ == NormKind::layer ? "LayerNorm" : "RMSNorm",
           ": eps must be finite and not negative, got ", eps_);
  if (kind_ == NormKind::layer && options.bias) bias = constant_parameter({size}, 0);
}

Tensor Norm::operator()(const Tensor& x, std::string_view name) const {
  if (!weight.defined()) return x;
  if (detail::looking() && !name.empty()) {
    const detail::PointPath in(name);
    if (detail::wants("scale") || detail::wants("normalized")) {
      const Tensor y = at_points(x);
      // What is only kept changes no bit of the result.
      if (detail::is_edited("scale") || detail::is_edited("normalized")) return y;
    }
  }
  return kind_ == NormKind::layer ? layer_norm(x, weight, bias, eps_) : rms_norm(x, factors(), eps_);
}

AddNorm Norm::add(const Tensor& x, const Tensor& residual, std::string_view name,
                  std::string_view sum_name) const {
  if (detail::looking() && !sum_name.empty()) {
    const Tensor sum = point(sum_name, multihead::add(x, residual));
    return {sum, (*this)(sum, name)};
  }
  if (!weight.defined()) {
    const Tensor sum = multihead::add(x, residual);
    return {sum, sum};
  }
  return kind_ == NormKind::layer ? add_layer_norm(x, residual, weight, bias, eps_)
                                  : add_rms_norm(x, residual, factors(), eps_);
}

// The same by the formula, step by step.
Tensor Norm::at_points(const Tensor& x) const {
  const auto mean = [](const Tensor& t) {
    return multihead::scale(sum(t, -1, true), 1.0 / static_cast<double>(t.size(-1)));
  };
  const Tensor centred = kind_ == NormKind::layer ? sub(x, mean(x)) : x;
  const Tensor scale = point("scale", sqrt(add_scalar(mean(square(centred)), eps_)));
  const Tensor normalized = point("normalized", div(centred, scale));
  const Tensor y = weight.defined() ? mul(normalized, factors()) : normalized;
  return bias.defined() ? multihead::add(y, bias) : y;
}

}  // namespace multihead::nn
