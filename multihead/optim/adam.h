// Adam (Kingma & Ba 2015) and AdamW (Loshchilov & Hutter 2019), one pass over memory per parameter.
#pragma once

#include "multihead/optim/optimizer.h"

namespace multihead::optim {

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;    ///< added to the gradient (L2)
  bool decay_vectors = true;  ///< false: no decay of biases and norms (fewer than two axes)
  /// Adds eps to √v before the bias correction instead of after it: "eps hat" of the paper's section 2, as in
  /// labml.ai's Adam.
  bool eps_hat = false;
};

/// m = β1 m + (1-β1) g, v = β2 v + (1-β2) g², w -= lr · m̂ / (√v̂ + eps). As torch.optim.Adam, with one
/// step count for all parameters.
///
/// Dtypes    f32, f64
/// Throws    ValueError for options outside their domain
class Adam : public Optimizer {
 public:
  explicit Adam(ParameterList parameters, const AdamOptions& options = {});

 protected:
  void update(const Update& update) override;

 private:
  AdamOptions options_;
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  bool decay_vectors = true;  ///< false: no decay of biases and norms (fewer than two axes)
  bool eps_hat = false;       ///< see AdamOptions
};

/// Adam with decoupled weight decay: weights shrink by lr · weight_decay in each step. As torch.optim.AdamW, with one
/// step count for all parameters.
class AdamW : public Optimizer {
 public:
  explicit AdamW(ParameterList parameters, const AdamWOptions& options = {});

 protected:
  void update(const Update& update) override;

 private:
  AdamWOptions options_;
};

}  // namespace multihead::optim
