// Transformer layers: one class for encoder, decoder and decoder-only language models.
#pragma once

#include <optional>
#include <string>

#include "multihead/core/text/enum_words.h"
#include "multihead/nn/attention.h"
#include "multihead/nn/attention/latent_attention.h"
#include "multihead/nn/feed_forward.h"
#include "multihead/nn/norm.h"

namespace multihead::nn {

/// Arrangement of a layer's sub-layers f (attention) and g (feed-forward) around the stream x; n are norms.
enum class Block {
  sequential,       ///< one after the other: y = x + f(n(x)), then y + g(n(y)), or both with post-norm
  parallel,         ///< x + f(n1(x)) + g(n2(x)) (GPT-NeoX)
  parallel_shared,  ///< x + f(n1(x)) + g(n1(x)) (GPT-J, Phi)
  sandwich,         ///< y = x + n(f(n(x))), then y + n(g(n(y))) (Gemma 2)
  output_norms,     ///< y = x + n(f(x)), then y + n(g(y)) (OLMo 2)
  attention_only,   ///< x + f(n(x)) without a feed-forward network (Elhage et al. 2021)
};
constexpr auto enum_words(Block) {
  return std::to_array<std::string_view>(
      {"sequential", "parallel", "parallel_shared", "sandwich", "output_norms", "attention_only"});
}

struct TransformerLayerOptions {
  MultiHeadAttentionOptions attention = {};
  FeedForwardOptions feed_forward = {};
  ExpertsOptions experts = {};  ///< in place of the feed-forward network, with its sizes and activation
  NormOptions norm = {};
  bool norm_first = false;          ///< x + f(norm(x)) (pre-norm); else norm(x + f(x)) (post-norm)
  Block block = Block::sequential;  ///< the others need norm_first and have no cross_attention
  bool cross_attention = false;     ///< decoder layer: attends to an encoder's output
  double dropout_p = 0;             ///< on each sub-layer's output, before the residual addition
  double residual_factor = 1;       ///< of each sub-layer's output, which it multiplies (Granite)
  std::string own_attention = {};   ///< the name of a registered one, in place of self_attn
  LatentOptions latent = {};        ///< with a dim: latent attention in place of self_attn
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
///           linear2, norm1, norm2, norm3; of a sandwich also post_norm1, post_norm2, of output_norms these alone
class TransformerLayer {
 public:
  TransformerLayer() = default;
  TransformerLayer(const TransformerLayerOptions& options, Rng& rng);

  Tensor operator()(const Tensor& x, const LayerCall& call = {}) const;

  const TransformerLayerOptions& options() const { return options_; }
  bool has_feed_forward() const { return options_.block != Block::attention_only; }
  bool has_post_norms() const {
    return options_.block == Block::sandwich || options_.block == Block::output_norms;
  }
  void visit(Visitor& visitor);

  MultiHeadAttention self_attn, multihead_attn;
  OwnAttentionPart own_attn;  ///< latent or own: if defined, in place of self_attn, and under its name
  FeedForward feed_forward;
  Experts experts;  ///< if defined, in place of feed_forward
  Norm norm1, norm2, norm3;
  Norm post_norm1, post_norm2;  ///< sandwich and output_norms: after attention and feed-forward

 private:
  struct Modules;
  bool has_norm1() const { return options_.block != Block::output_norms; }
  bool has_norm2() const {
    return has_feed_forward() && has_norm1() && options_.block != Block::parallel_shared;
  }

  TransformerLayerOptions options_;
};

}  // namespace multihead::nn
