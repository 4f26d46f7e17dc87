// A few new tokens through Transformer layers with a cache: the kernel calls of the modules, gathered first
// and then run in order.
//
// For one token of a small model checks, tensors, views and masks take longer than the arithmetic between two
// products. The plan has none of them. It is not a second model: it is made from the modules and the call
// that each would be given, calls the same kernels and so has the same bits. What it does not take goes
// through the modules.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/quantized/packed_linear.h"
#include "multihead/kernels/reduce/norm.h"
#include "multihead/nn/transformer.h"

namespace multihead::nn {

/// activation(gate) · up of rows [2·size], the gate first.
struct GateStep {
  Activation activation = Activation::none;
  const float* from = nullptr;
  float* to = nullptr;
  int64_t rows = 0, size = 0;
};

/// to += from
struct AddStep {
  float* to = nullptr;
  const float* from = nullptr;
  int64_t count = 0;
};

/// Rotates queries and keys in place, appends keys and values to the cache and attends to it.
struct AttendStep {
  float* heads = nullptr;  ///< [rows][(num_heads + 2·kv_heads)·head_dim]
  float* out = nullptr;    ///< [rows][num_heads·head_dim]
  KvCache* cache = nullptr;
  const RotaryTable* rotary = nullptr;  ///< null: none
  const float* alibi_slopes = nullptr;
  int64_t num_heads = 0, kv_heads = 0, head_dim = 0;
  int64_t window = 0;
  double scale = 1, softcap = 0;
};

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

/// Attends to lists of tokens; self-attention keeps the keys and values of the new ones first.
struct AttendListStep {
  const float* query = nullptr;  ///< [rows][heads·head_dim]; self-attention: keys and values after each
  float* out = nullptr;
  ListCall call;
  bool cross = false;
  int64_t num_heads = 0, head_dim = 0;
  float scale = 1;
};

using TokenStep = std::variant<kernels::NormArgs<float>, kernels::PackedLinearArgs, kernels::GemmArgs<float>,
                               GateStep, AddStep, AttendStep, AttendListStep>;

class TokenPlan {
 public:
  /// From kMostRows rows (new tokens of all sequences) on, matrix products dominate.
  static constexpr int64_t kMostRows = 32;

  /// Plans x [B, T, E] for caches whose row b holds held[b] tokens and gets counts[b] of the T. The plan refers
  /// to both.
  TokenPlan(const Tensor& x, std::span<const int64_t> held, std::span<const int64_t> counts);

  /// Why no plan can be used on this thread now; empty if one can.
  static std::string declined(const Tensor& x);
  /// Adds the next layer with its call; the plan refers to the call's cache and rotary table.
  /// Returns the reason if it cannot, or an empty string.
  std::string add(const TransformerLayer& layer, const LayerCall& call);
  /// Adds the next layer of a decoder that attends to lists; T is 1, and held and counts are not used.
  void add(const TransformerLayer& layer, const ListCall& call);
  void add(const Norm& norm);
  /// Runs the plan; as in append(), shared cache memory is copied first. Returns [B, T, E].
  Tensor run();

  const std::vector<TokenStep>& steps() const { return steps_; }

 private:
  struct Matrix {
    const Tensor& weight;
    const PackedLinear& packed;
    const Tensor& bias;
  };
  // Rows that the steps write, shared by all layers.
  struct Buffer {
    float* data = nullptr;
    int64_t width = 0;
  };

  // y = function(x) + residual
  using Sublayer = FunctionRef<void(const float* x, float* y, const float* residual)>;

  float* keep(const Tensor& x);
  float* get(Buffer& buffer, int64_t width);
  float* other_stream() { return get(streams_[x_ == streams_[0].data ? 1 : 0], width_); }
  void normalize(const Norm& norm, const float* x, float* y, const float* residual = nullptr,
                 float* sum = nullptr);
  void normalize(const Norm& norm, float* heads, int64_t count, int64_t stride);
  void multiply(const Matrix& m, const float* x, float* y, Activation activation = Activation::none,
                const float* residual = nullptr);
  void attend(const TransformerLayer& layer, const LayerCall& call, const float* x, float* y,
              const float* residual);
  void attend(const MultiHeadAttention& attention, const ListCall& call, bool cross, const float* x, float* y,
              const float* residual);
  void feed_forward(const TransformerLayer& layer, const float* x, float* y, const float* residual);
  void add(const TransformerLayer& layer, Sublayer self, Sublayer cross);
  std::string check(const TransformerLayer& layer, const LayerCall& call) const;
  void run(const kernels::NormArgs<float>& step);
  void run(const kernels::PackedLinearArgs& step);
  void run(const kernels::GemmArgs<float>& step);
  void run(const GateStep& step);
  void run(const AddStep& step);
  void run(const AttendStep& step);
  void run(const AttendListStep& step);

  Tensor input_;
  std::span<const int64_t> held_, counts_;
  std::vector<int64_t> totals_;  // tokens of each row when these have come
  int64_t batch_, tokens_, rows_, width_;
  const float* x_;  // the stream
  Buffer streams_[2], normed_, branch_, heads_, attended_, raw_, hidden_, moments_;
  std::vector<TokenStep> steps_;
  std::vector<Tensor> kept_;      // what the steps point to beside weights
  std::vector<BFloat16> narrow_;  // queries and results of a cache in bf16
  std::vector<float> scores_;     // of lists
};

}  // namespace multihead::nn
