// y = x · weightᵀ + bias.
#pragma once

#include <cstdint>

#include "multihead/core/tensor/rng.h"
#include "multihead/core/tensor/tensor.h"
#include "multihead/nn/module.h"
#include "multihead/nn/packed_linear.h"
#include "multihead/ops/linear.h"

namespace multihead::nn {

struct LinearOptions {
  bool bias = true;
};

/// Shapes: x [..., in_features] -> [..., out_features]; weight [out_features, in_features].
/// Initialised as in PyTorch: uniform in ±1/sqrt(in_features).
class Linear {
 public:
  Linear() = default;
  Linear(int64_t in_features, int64_t out_features, Rng& rng, const LinearOptions& options = {});

  Tensor operator()(const Tensor& x, const multihead::LinearOptions& fused = {}) const {
    return packed.defined() ? packed(x, bias, fused) : linear(x, weight, bias, fused);
  }
  /// Dtype of x and the result.
  Dtype dtype() const { return packed.defined() ? Dtype::f32 : weight.dtype(); }
  int64_t in_features() const { return packed.defined() ? packed.in_features() : weight.size(1); }
  int64_t out_features() const { return packed.defined() ? packed.out_features() : weight.size(0); }

  void visit(Visitor& visitor) {
    visitor("weight", weight, packed);
    visitor("bias", bias);
  }

  Tensor weight;
  Tensor bias;          ///< undefined if there is none
  PackedLinear packed;  ///< if defined, used in place of `weight`, which is then undefined
};

/// A trainable tensor, filled from its own stream.
Tensor uniform_parameter(const Shape& shape, double bound, Rng& rng);
Tensor normal_parameter(const Shape& shape, double std, Rng& rng);
Tensor constant_parameter(const Shape& shape, double value);

}  // namespace multihead::nn
