// A few new tokens through Transformer layers with a cache: the kernel calls of the modules without the modules.
//
// For one token of a small model checks, tensors, views and masks take longer than the arithmetic between two
// products. The pass has none of them. It is not a second model: it reads the modules and the call that each
// would be given, runs their sub-layers in their arrangement, calls the same kernels and so has the same bits.
// Calls that it declines go through the modules.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "multihead/nn/transformer.h"

namespace multihead::nn {

/// A hypothesis of a decoder: each token a pointer to its keys and values of all layers, which hypotheses
/// with a common past share.
using TokenList = std::vector<const float*>;

/// The lists that a decoder's layer attends to, not a cache. The projections before both attentions and
/// after them have their heads interleaved where kernels::token_attention_interleaves() says so; those of
/// cross-attention give queries alone (q_proj).
struct ListCall {
  std::span<const TokenList> own;  ///< of each row, the new token included
  float* added = nullptr;          ///< [rows][added_width]: keys and values of the new tokens, to be written
  int64_t added_width = 0;
  std::span<const TokenList> source;   ///< of each source
  std::span<const int64_t> source_of;  ///< of each row; neighbours of one source share a pass over it
  int64_t own_at = 0, source_at = 0;   ///< where this layer's keys begin; its values follow
  const float* bias = nullptr;         ///< of the scores of self-attention, [tokens][heads]
};

class TokenPass {
 public:
  /// From kMostRows rows (new tokens of all sequences) on, matrix products dominate.
  static constexpr int64_t kMostRows = 32;

  /// Takes x [B, T, E] for caches whose row b holds held[b] tokens and gets counts[b] of the T. Refers to both.
  TokenPass(const Tensor& x, std::span<const int64_t> held, std::span<const int64_t> counts);

  /// Why x cannot pass on this thread now; empty if it can.
  static std::string declined(const Tensor& x);
  /// Why the pass does not have this layer with its call; empty if it has.
  std::string declined(const TransformerLayer& layer, const LayerCall& call) const;
  /// Runs the next layer, which must not be declined; as in append(), shared cache memory is copied first.
  void run(const TransformerLayer& layer, const LayerCall& call);
  /// Runs the next layer of a decoder that attends to lists; T is 1, and held and counts are not used.
  void run(const TransformerLayer& layer, const ListCall& call);
  void run(const Norm& norm);
  /// Returns the stream [B, T, E].
  Tensor result() const;

 private:
  struct Runner;
  struct Matrix {
    const Tensor& weight;
    const PackedLinear& packed;
    const Tensor& bias;
  };
  using Rows = Tensor;  // memory of rows_ rows that all layers share

  float* get(Rows& rows, int64_t width);
  float* other_stream(const float* x) { return get(streams_[x == get(streams_[0], width_) ? 1 : 0], width_); }
  float* spare(const float* x);
  float* normalize(const Norm& norm, const float* x, const float* residual = nullptr, float* sum = nullptr);
  void normalize_heads(const Norm& norm, float* heads, int64_t count, int64_t stride);
  void multiply(const Matrix& m, const float* x, float* y, Activation activation = Activation::none,
                const float* residual = nullptr) const;
  void rotate_and_append(const MultiHeadAttentionOptions& o, const LayerCall& call, float* heads) const;
  void attend_to_cache(const MultiHeadAttentionOptions& o, const LayerCall& call, const float* heads,
                       float* out);
  void attend_to_lists(const MultiHeadAttentionOptions& o, const ListCall& call, bool cross,
                       const float* heads, float* out);

  Tensor input_;
  std::span<const int64_t> held_, counts_;
  std::vector<int64_t> totals_;  // tokens of each row when these have come
  int64_t batch_, tokens_, rows_, width_;
  const float* x_;  // the stream
  Rows streams_[2], normed_, branch_, heads_, attended_, raw_, hidden_, moments_;
  std::vector<BFloat16> narrow_;  // queries and results of a cache in bf16
  std::vector<float> scores_;     // of lists
};

}  // namespace multihead::nn
