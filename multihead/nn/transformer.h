// Transformer layers: one class for encoder, decoder and decoder-only language models.
#pragma once

#include <optional>

#include "multihead/nn/attention.h"
#include "multihead/nn/feed_forward.h"
#include "multihead/nn/norm.h"

namespace multihead::nn {

struct TransformerLayerOptions {
  MultiHeadAttentionOptions attention = {};
  FeedForwardOptions feed_forward = {};
  NormOptions norm = {};
  bool norm_first = false;       ///< x + f(norm(x)) (pre-norm); else norm(x + f(x)) (post-norm)
  bool cross_attention = false;  ///< decoder layer: attends to an encoder's output
  double dropout_p = 0;          ///< on each sub-layer's output, before the residual addition
};

/// Options of a layer's call; see AttentionCall.
struct LayerCall {
  AttentionCall attention = {};        ///< self-attention
  CacheUpdate update = {};             ///< decode: the cache of this layer
  Tensor memory = {};                  ///< [B, Ts, embed_dim], for cross-attention …
  const KvCache* projected = nullptr;  ///< … or its keys and values
  AttentionCall cross = {};
  Rng* rng = nullptr;
};

/// Shapes    x [B, T, embed_dim] -> the same
/// Weights   named as in torch.nn.TransformerEncoderLayer / DecoderLayer: self_attn, multihead_attn, linear1,
///           linear2, norm1, norm2, norm3
class TransformerLayer {
 public:
  TransformerLayer() = default;
  TransformerLayer(const TransformerLayerOptions& options, Rng& rng);

  Tensor operator()(const Tensor& x, const LayerCall& call = {}) const;

  void visit(Visitor& visitor);

  MultiHeadAttention self_attn, multihead_attn;
  FeedForward feed_forward;
  Norm norm1, norm2, norm3;

 private:
  Tensor attend_self(const Tensor& x, const LayerCall& call) const;
  Tensor attend_memory(const Tensor& x, const LayerCall& call) const;
  Tensor pre_norm(const Tensor& x, const LayerCall& call) const;
  Tensor post_norm(const Tensor& x, const LayerCall& call) const;
  const Norm& last_norm() const { return options_.cross_attention ? norm3 : norm2; }

  TransformerLayerOptions options_;
};

}  // namespace multihead::nn
