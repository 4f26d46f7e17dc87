#include "multihead/nn/linear.h"

#include <cmath>

#include "multihead/core/error.h"
#include "multihead/nn/unfilled-inl.h"

namespace multihead::nn {

namespace {

template <class Fill>
Tensor parameter(const Shape& shape, Fill&& fill) {
  Tensor tensor = Tensor::empty(shape);
  if (!UnfilledParameters::active()) fill(tensor);
  return tensor.set_requires_grad();
}

}  // namespace

Tensor uniform_parameter(const Shape& shape, double bound, Rng& rng) {
  return parameter(shape, [&](const Tensor& x) { fill_uniform(x, -bound, bound, rng.next()); });
}

Tensor normal_parameter(const Shape& shape, double std, Rng& rng) {
  return parameter(shape, [&](const Tensor& x) { fill_normal(x, 0, std, rng.next()); });
}

Tensor constant_parameter(const Shape& shape, double value) {
  return parameter(shape, [&](const Tensor& x) { x.fill(value); });
}

Linear::Linear(int64_t in_features, int64_t out_features, Rng& rng, const LinearOptions& options) {
  MH_CHECK(in_features > 0 && out_features > 0, ValueError, "Linear: features must be positive, got ",
           in_features, " -> ", out_features);
  const double bound = 1 / std::sqrt(static_cast<double>(in_features));
  weight = uniform_parameter({out_features, in_features}, bound, rng);
  if (options.bias) bias = uniform_parameter({out_features}, bound, rng);
}

}  // namespace multihead::nn
