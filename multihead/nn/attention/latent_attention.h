// Multi-head latent attention: keys and values are projected up from one narrow vector a token, which is all that
// cached decoding keeps: DeepSeek-V2 (https://arxiv.org/abs/2405.04434), section 2.1.
#pragma once

#include "multihead/nn/norm.h"
#include "multihead/nn/own_attention.h"

namespace multihead::nn {

struct LatentOptions {
  int64_t dim = 0;         ///< of the latent that keys and values come from (kv_lora_rank)
  int64_t query_dim = 0;   ///< of the queries' latent (q_lora_rank); 0: they are projected from x
  int64_t rotary_dim = 0;  ///< the last of each head's queries; all heads share one rotated key
};

/// The weights of its matrices.
int64_t matrix_weights(const MultiHeadAttentionOptions& options, const LatentOptions& latent);

/// out_proj(softmax(scale · [q, rot(q')]·[k, rot(k')]ᵀ) · v), where [k, v] = kv_up(c), c = norm(latent of x) and k'
/// is shared by all heads. Scores and outputs are computed on c itself, q and v taking kv_up's halves
/// (section 2.1.2), with and without a cache: a token has the same bits in both.
///
/// Shapes    x [B, T, embed_dim] -> the same
/// Cache     a token's c and rotated key, dim + rotary_dim numbers
/// Options   embed_dim, num_heads, head_dim (of queries), value_head_dim, key_bias (of the projections down),
///           out_bias; the other projections have no bias
/// Weights   q_down, q_norm (with query_dim), q_proj, kv_down, kv_norm, kv_up, out_proj; RMS norms of eps 1e-6
/// Throws    ValueError unless the call has rotary positions
class LatentAttention : public OwnAttention {
 public:
  LatentAttention(const MultiHeadAttentionOptions& options, const LatentOptions& latent, Rng& rng);

  Tensor operator()(const Tensor& x, OwnAttentionCall& call) const override;
  void visit(Visitor& visitor) override;
  std::shared_ptr<OwnAttention> clone() const override { return std::make_shared<LatentAttention>(*this); }
  std::vector<OwnCacheSpec> caches() const override;

  Linear q_down, q_proj, kv_down, kv_up, out_proj;
  Norm q_norm, kv_norm;

 private:
  int64_t plain_dim() const { return head_dim_ - latent_.rotary_dim; }

  int64_t heads_, head_dim_, value_dim_;
  LatentOptions latent_;
};

}  // namespace multihead::nn
