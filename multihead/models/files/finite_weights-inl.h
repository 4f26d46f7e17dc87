// Weights that are no numbers are refused where they are read, so that no verb makes an output of them.
// Internal to models.
#pragma once

#include <string>

#include "multihead/core/tensor/tensor.h"
#include "multihead/nn/packed_linear.h"

namespace multihead::models::detail {

/// Throws FormatError "<file>: tensor "x" holds NaN or Inf" if a floating tensor does.
void check_finite(const std::string& file, const std::string& name, const Tensor& tensor);
/// By the sum of every row.
bool is_finite(const nn::PackedLinear& packed);
/// The same of packed weights.
void check_finite(const std::string& file, const std::string& name, const nn::PackedLinear& packed);

}  // namespace multihead::models::detail
