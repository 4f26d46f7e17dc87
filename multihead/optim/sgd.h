// Stochastic gradient descent with momentum.
#pragma once

#include "multihead/optim/optimizer.h"

namespace multihead::optim {

struct SgdOptions {
  double lr = 1e-2;
  double momentum = 0;
  double weight_decay = 0;    ///< added to the gradient (L2)
  bool decay_vectors = true;  ///< false: no decay of biases and norms (fewer than two axes)
  bool nesterov = false;
};

/// b = momentum · b + g, w -= lr · b (nesterov: lr · (g + momentum · b)). As torch.optim.SGD.
///
/// Dtypes    f32, f64
/// Throws    ValueError for options outside their domain
class SGD : public Optimizer {
 public:
  explicit SGD(ParameterList parameters, const SgdOptions& options = {});

 protected:
  void update(const Update& update) override;

 private:
  SgdOptions options_;
};

}  // namespace multihead::optim
