// The position-wise feed-forward layer of a Transformer.
#pragma once

#include "multihead/nn/linear.h"
#include "multihead/ops/activation.h"

namespace multihead::nn {

struct FeedForwardOptions {
  int64_t embed_dim = 0;
  int64_t hidden_dim = 0;
  Activation activation = Activation::gelu;
  bool gated = false;  ///< fc2(activation(gate) · up): SwiGLU with silu, GEGLU with gelu (Shazeer 2020)
  bool bias = true;
  bool in_bias = true;   ///< of fc1, where `bias` is true (GTE has none)
  double dropout_p = 0;  ///< after the activation
};

/// out = fc2(activation(fc1(x))). Shapes: x [..., embed_dim] -> the same.
/// Weights: fc1 [hidden_dim, embed_dim] (gated: [2·hidden_dim, embed_dim], the gate's rows first),
/// fc2 [embed_dim, hidden_dim].
class FeedForward {
 public:
  FeedForward() = default;
  FeedForward(const FeedForwardOptions& options, Rng& rng);

  /// `residual` (optional, shape of x) is added to the result. Points (points.h): mlp_pre, mlp_pre_linear,
  /// mlp_post.
  Tensor operator()(const Tensor& x, Rng* rng = nullptr, const Tensor& residual = {}) const;

  void visit(Visitor& visitor) {
    visitor("fc1", fc1);
    visitor("fc2", fc2);
  }

  Linear fc1, fc2;

 private:
  Tensor hidden_at_points(const Tensor& x) const;

  FeedForwardOptions options_;
};

struct ExpertsOptions {
  int64_t count = 0;  ///< 0: none
  int64_t used = 0;   ///< by a token
};

/// out = Σ p_e · activation(x · in_eᵀ) · out_e + bias over the `used` experts e with the largest p, p = softmax
/// (router(x)), which are not scaled to a sum of 1 (Shazeer et al. 2017). A token has the same bits in any
/// company.
///
/// Shapes    x [..., embed_dim] -> the same
/// Weights   router [count, embed_dim], in and out [count·hidden_dim, embed_dim], bias [embed_dim]
/// Gradient  x and all weights
class Experts {
 public:
  Experts() = default;
  Experts(const ExpertsOptions& options, int64_t embed_dim, int64_t hidden_dim, Activation activation,
          Rng& rng);

  Tensor operator()(const Tensor& x) const;

  bool defined() const { return in.defined(); }
  void visit(Visitor& visitor) {
    visitor("router", router);
    visitor("in", in);
    visitor("out", out);
    visitor("bias", bias);
  }

  Linear router;
  Tensor in, out, bias;

 private:
  ExpertsOptions options_;
  Activation activation_ = Activation::none;
};

}  // namespace multihead::nn
