// The activation of an encoder's pooler. Internal to models.
#pragma once

#include "multihead/models/encoder.h"
#include "multihead/ops/activation.h"
#include "multihead/ops/elementwise.h"

namespace multihead::models::detail {

inline Tensor activate_pooled(const Tensor& x, PoolerActivation activation) {
  switch (activation) {
    case PoolerActivation::tanh:
      return tanh(x);
    case PoolerActivation::relu:
      return relu(x);
    default:
      return gelu(x);
  }
}

}  // namespace multihead::models::detail
