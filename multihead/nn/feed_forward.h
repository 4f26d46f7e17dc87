// The position-wise feed-forward layer of a Transformer.
#pragma once

#include <cstdint>
#include <vector>

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
/// Weights   router [count, embed_dim], in and out [count·hidden_dim, embed_dim], bias [embed_dim]. Matrices to be
///           packed are each expert's: in.0 [hidden_dim, embed_dim] …, out.0 [embed_dim, hidden_dim] …
/// Gradient  x and all weights
class Experts {
 public:
  Experts() = default;
  Experts(const ExpertsOptions& options, int64_t embed_dim, int64_t hidden_dim, Activation activation,
          Rng& rng);

  Tensor operator()(const Tensor& x) const;

  bool defined() const { return bias.defined(); }
  void visit(Visitor& visitor);

  Linear router;
  Tensor in, out, bias;
  /// Each expert's, if they are packed; `in` and `out` are undefined then.
  std::vector<PackedLinear> packed_in, packed_out;

 private:
  void visit_matrices(Visitor& visitor);
  Tensor own_rows(const Tensor& of, int64_t expert) const;
  Tensor computed(const Tensor& x, int64_t expert) const;

  ExpertsOptions options_;
  int64_t hidden_ = 0;
  Activation activation_ = Activation::none;
};

}  // namespace multihead::nn
