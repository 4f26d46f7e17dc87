// Multi-head attention: project, attend per head, concatenate, project (Vaswani et al. 2017, §3.2.2).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "multihead/nn/decode/state.h"
#include "multihead/nn/norm.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/ops/rotary.h"

namespace multihead::nn {

struct MultiHeadAttentionOptions {
  int64_t embed_dim = 0;  ///< features of the output, and of the inputs unless given below
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;    ///< 0: num_heads; fewer: heads share keys and values (Ainslie et al. 2023)
  int64_t head_dim = 0;        ///< 0: embed_dim / num_heads, which must then be an integer
  int64_t value_head_dim = 0;  ///< 0: head_dim
  int64_t query_dim = 0, key_dim = 0, value_dim = 0;  ///< features of the inputs; 0: embed_dim
  bool query_bias = true, key_bias = true, value_bias = true, out_bias = true;
  std::optional<double> scale = {};  ///< default 1/sqrt(head_dim)
  double dropout_p = 0;              ///< of the attention weights
  /// RMS norm over head_dim on the queries and keys of every head, before rotation (Qwen 3).
  bool qk_norm = false;
  double qk_norm_eps = 1e-6;
  bool qk_norm_joint = false;  ///< the norms are over all heads together (OLMo 2)
  /// Appends a zero key and value that every query may attend to (PyTorch's add_zero_attn).
  bool zero_attn = false;
  NormKind qk_norm_kind = NormKind::rms;  ///< rms or rms_from_one (Gemma 3)
};

/// Options of a call: those of attention() except dropout_p and layout, which belong to the module, as does
/// scale unless given; plus options that only a module has.
struct AttentionCall : AttentionOptions {
  const RotaryTable* rotary = nullptr;  ///< rotates queries and keys
  ScoreMod score_mod = {};              ///< a user-defined score function
  Tensor residual = {};                 ///< added to the output
  /// Self-attention of sequences concatenated in a batch of 1, as in attention_ragged().
  Tensor cu_seqlens = {};
  /// Vectors [2·longest + 1, embed_dim] of query position - key position = -longest … longest, for disentangled
  /// attention: projected by the weights of the queries and of the keys. With cu_seqlens only.
  Tensor distances = {};
};

/// Appends to a cache during decoding: row b holds `held[b]` tokens and receives counts[b] more.
struct CacheUpdate {
  KvCache* cache = nullptr;
  std::span<const int64_t> held = {};
  std::span<const int64_t> counts = {};
  int64_t window = 0;  ///< sliding window in keys, the token itself included; 0: all
};

namespace detail {
/// The mask of new tokens in cached decoding: causal or a window, of the valid keys, and `more`.
Mask mask_of(const CacheUpdate& update, const Mask& more);
}  // namespace detail

/// out = concat(head_1 … head_H)·W_oᵀ, head_h = softmax(scale·q_h k_hᵀ + mask) v_h.
///
/// Shapes    query [B, Tq, query_dim], key [B, Tk, key_dim], value [B, Tk, value_dim] -> [B, Tq, embed_dim]
/// Weights   as in PyTorch: in_proj_weight (rows: queries, keys, values) and in_proj_bias where the inputs
///           have the same size and the same bias flags, else q_proj, k_proj, v_proj; out_proj; with qk_norm
///           q_norm and k_norm
/// Gradient  all inputs and weights
/// Throws    ValueError (constructor: sizes that do not divide; dropout_p or layout of a call), ShapeError
class MultiHeadAttention {
 public:
  MultiHeadAttention() = default;
  MultiHeadAttention(const MultiHeadAttentionOptions& options, Rng& rng);

  Tensor operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                    const AttentionCall& call) const;
  Tensor operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                    const AttentionOptions& options = {}) const {
    return (*this)(query, key, value, AttentionCall{options});
  }

  /// Self-attention of new tokens x [B, T, embed_dim] to the cached ones and, causally, to themselves. Row b
  /// has counts[b] new tokens; outputs past them are undefined. Nothing is recorded. A cache with a different
  /// dtype than x (bf16 under f32) is read in its own dtype.
  Tensor decode(const Tensor& x, const CacheUpdate& update, const AttentionCall& call) const;
  Tensor decode(const Tensor& x, const CacheUpdate& update, const AttentionOptions& options = {}) const {
    return decode(x, update, AttentionCall{options});
  }

  /// Keys and values [B, Hkv, T, D] of a memory, for repeated attention.
  KvCache project_memory(const Tensor& key, const Tensor& value) const;
  /// Attention to a projected memory, each row of which may serve several consecutive rows of queries.
  Tensor attend(const Tensor& query, const KvCache& memory, const AttentionCall& call) const;
  Tensor attend(const Tensor& query, const KvCache& memory, const AttentionOptions& options = {}) const {
    return attend(query, memory, AttentionCall{options});
  }

  const MultiHeadAttentionOptions& options() const { return options_; }
  void visit(Visitor& visitor);

  Tensor in_proj_weight, in_proj_bias;  ///< joint form
  PackedLinear in_proj_packed;          ///< if defined, in place of in_proj_weight
  Linear q_proj, k_proj, v_proj;        ///< separate form
  Linear out_proj;
  Norm q_norm, k_norm;  ///< with qk_norm; [head_dim], with qk_norm_joint [heads · head_dim]

 private:
  struct Projected {
    Tensor query, key, value;  // [B, T, heads, D]
  };
  Projected project(const Tensor& query, const Tensor& key, const Tensor& value,
                    const RotaryTable* rotary) const;
  Tensor project_queries(const Tensor& query) const;
  Tensor normalized(const Norm& norm, const Tensor& heads, std::string_view name) const;
  Projected project_keys_and_values(const Tensor& key, const Tensor& value) const;
  bool is_joint() const { return in_proj_weight.defined() || in_proj_packed.defined(); }
  /// True if one product computes all projections.
  bool heads_are_joint() const { return is_joint() && options_.head_dim == options_.value_head_dim; }
  Tensor project_all(const Tensor& x) const;
  Tensor project_rows(const Tensor& x, int64_t begin, int64_t end) const;
  AttentionOptions attention_options(const AttentionCall& call) const;
  Tensor output(const Tensor& heads, const Tensor& residual) const;
  Tensor attend_heads(const Projected& heads, const AttentionCall& call) const;
  Tensor attend_ragged(const Projected& heads, const AttentionCall& call) const;
  Tensor attend_disentangled(const Projected& heads, AttentionCall call) const;
  Tensor attend_cached(const Projected& heads, const AttentionCall& call) const;
  int64_t query_rows() const { return options_.num_heads * options_.head_dim; }
  int64_t key_rows() const { return options_.num_kv_heads * options_.head_dim; }
  int64_t value_rows() const { return options_.num_kv_heads * options_.value_head_dim; }

  MultiHeadAttentionOptions options_;
};

}  // namespace multihead::nn
