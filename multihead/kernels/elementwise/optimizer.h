// One optimiser step over one parameter: every array is read and written once.
#pragma once

#include <cstdint>

namespace multihead::kernels {

struct AdamArgs {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled =
      true;  ///< AdamW: the parameter shrinks by lr · weight_decay; else the decay joins the gradient
  /// Where eps goes: false adds it to the bias-corrected √v̂ (Kingma & Ba 2015, algorithm 1); true to √v
  /// before the correction (their last formula of section 2, "eps hat").
  bool eps_hat = false;
  int64_t step = 1;       ///< counted from 1
  double grad_scale = 1;  ///< multiplies the gradient (clipping, loss scaling)
};

template <class T>
struct AdamState {
  T* param;
  const T* grad;
  T* m;
  T* v;
  int64_t count;
};

/// m = β1 m + (1-β1) g, v = β2 v + (1-β2) g², param -= lr · m̂ / (√v̂ + eps). In f32, moments end below 2^-100.
void adam_step(const AdamState<float>& state, const AdamArgs& args);
void adam_step(const AdamState<double>& state, const AdamArgs& args);

struct SgdArgs {
  double lr = 1e-2;
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool first = false;  ///< the buffer holds nothing yet: it becomes the gradient
  double grad_scale = 1;
};

template <class T>
struct SgdState {
  T* param;
  const T* grad;
  T* buffer;  ///< null without momentum
  int64_t count;
};

/// buffer = momentum · buffer + g, param -= lr · buffer (nesterov: lr · (g + momentum · buffer)), g with
/// decay. In f32, the buffer ends below 2^-100.
void sgd_step(const SgdState<float>& state, const SgdArgs& args);
void sgd_step(const SgdState<double>& state, const SgdArgs& args);

/// Σ x² in f64, in an order that depends on `count` alone. Not finite if an element is not.
double sum_of_squares(const float* x, int64_t count);
double sum_of_squares(const double* x, int64_t count);

}  // namespace multihead::kernels
