// A linear layer packed for inference.
#pragma once

#include <cstddef>
#include <cstdint>

#include "multihead/core/tensor.h"
#include "multihead/kernels/matmul/packed_linear.h"
#include "multihead/ops/activation.h"

namespace multihead::models {

using kernels::WeightDtype;

/// A weight matrix packed for inference.
class PackedLinear {
 public:
  PackedLinear() = default;
  /// Rows [begin, end) of weight [out, in] and bias [out] (or undefined).
  /// Throws ValueError (int8 and a row longer than kernels::kLongestInt8Sum).
  PackedLinear(const Tensor& weight, const Tensor& bias, int64_t begin, int64_t end, WeightDtype dtype);

  struct Call {
    int64_t rows = 0;
    int64_t stride = 0;  ///< of y; 0: out_features
    Activation activation = Activation::none;
    const float* residual = nullptr;  ///< rows `stride` apart; may not be y
  };
  /// y = activation(x · weightᵀ + bias) + residual.
  void operator()(const float* x, float* y, const Call& call) const;

  int64_t in_features() const { return in_; }
  int64_t out_features() const { return out_; }
  size_t bytes() const { return packed_.bytes(); }

 private:
  Tensor packed_, bias_;  // packed_ is i32: bytes in units of 4
  int64_t out_ = 0, in_ = 0;
  WeightDtype dtype_ = WeightDtype::f32;
};

}  // namespace multihead::models
