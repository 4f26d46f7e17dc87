// Gradients against central differences in f64.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "multihead/core/tensor/tensor.h"

namespace multihead::testing {

struct GradcheckOptions {
  double step = 2e-3;  ///< h; differences at h and h/2 are combined (Richardson), the error falls with h⁴
  double atol = 1e-8;
  double rtol = 1e-7;
  uint64_t seed = 7;  ///< of the weights that make one number of the results
};

struct GradcheckResult {
  bool ok = true;
  double worst = 0;     ///< largest |analytic - numeric|
  std::string message;  ///< the first disagreement
  explicit operator bool() const { return ok; }
};

/// An op as a function of its differentiable f64 inputs. All results take part, weighted with random numbers.
using TensorFunction = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

/// Compares the gradient of every input element. Also checks that inputs a call does not need stay without
/// gradient: for each input alone, the gradient must have the bits it has when all are requested.
GradcheckResult gradcheck(const TensorFunction& f, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options = {});

/// The same for one result.
inline GradcheckResult gradcheck_one(const std::function<Tensor(const std::vector<Tensor>&)>& f,
                                     const std::vector<Tensor>& inputs,
                                     const GradcheckOptions& options = {}) {
  return gradcheck([&](const std::vector<Tensor>& x) { return std::vector<Tensor>{f(x)}; }, inputs, options);
}

}  // namespace multihead::testing
