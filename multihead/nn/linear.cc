#include "multihead/nn/linear.h"

#include <cmath>

#include "multihead/core/error.h"

namespace multihead::nn {

Tensor uniform_parameter(const Shape& shape, double bound, Rng& rng) {
  Tensor parameter = Tensor::empty(shape);
  fill_uniform(parameter, -bound, bound, rng.next());
  return parameter.set_requires_grad();
}

Tensor normal_parameter(const Shape& shape, double std, Rng& rng) {
  Tensor parameter = Tensor::empty(shape);
  fill_normal(parameter, 0, std, rng.next());
  return parameter.set_requires_grad();
}

Tensor constant_parameter(const Shape& shape, double value) {
  return Tensor::full(shape, value).set_requires_grad();
}

Linear::Linear(int64_t in_features, int64_t out_features, Rng& rng, const LinearOptions& options) {
  MH_CHECK(in_features > 0 && out_features > 0, ValueError, "Linear: features must be positive, got ",
           in_features, " -> ", out_features);
  const double bound = 1 / std::sqrt(static_cast<double>(in_features));
  weight = uniform_parameter({out_features, in_features}, bound, rng);
  if (options.bias) bias = uniform_parameter({out_features}, bound, rng);
}

}  // namespace multihead::nn
