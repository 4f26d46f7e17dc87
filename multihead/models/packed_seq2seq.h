// A Seq2Seq with weights packed for translation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "multihead/core/busy.h"
#include "multihead/models/seq2seq.h"
#include "multihead/nn/packed_linear.h"

namespace multihead::models {

using nn::PackedLinear;
using nn::WeightDtype;

/// The cache of a beam search. Row r is a hypothesis: a list of tokens, each a pointer to its keys and values
/// of all layers. Hypotheses share common prefixes, so reordering a beam copies only pointers.
class PackedState {
 public:
  int64_t rows() const { return static_cast<int64_t>(source_.size()); }
  int64_t length() const { return length_; }
  /// Row i becomes what row parents[i] was. Rows of one source should stay adjacent, for speed.
  void select(std::span<const int64_t> parents);
  /// Memory of keys and values, the encoder's included.
  size_t bytes() const;

 private:
  friend class PackedSeq2Seq;
  using Token = const float*;

  Tensor memory_;  // [B, Ts, M]: keys and values of the encoder's output, layer after layer
  std::vector<std::vector<Token>> source_tokens_;  // per source
  std::vector<Tensor> steps_;                      // [rows, S] each: those of the tokens so far
  std::vector<std::vector<Token>> history_;        // per row
  std::vector<int64_t> source_;                    // per row
  int64_t length_ = 0;
  BusyFlag in_use_;  // as in nn::DecodeState
};

/// The fast path of translation: the logits of Seq2Seq::step() up to rounding.
///
/// With int8 weights every product quantises its inputs per row (kernels/packed_linear.h); everything between
/// the products, the embeddings and the state are f32.
/// Nothing is recorded; the weights are copied, so later changes of the model have no effect.
/// Bits: a row does not depend on its neighbours, the number of threads or, with FMA, the instruction set.
class PackedSeq2Seq {
 public:
  explicit PackedSeq2Seq(const Seq2Seq& model, WeightDtype weight_dtype = WeightDtype::f32);

  const Seq2SeqConfig& config() const { return config_; }
  WeightDtype weight_dtype() const { return weight_dtype_; }

  /// Encodes the sources and computes their keys and values; one row per source.
  /// Throws ValueError (longer than max_positions).
  PackedState start(std::span<const std::vector<int32_t>> sources) const;
  /// Logits [rows, V] of the token that follows tokens[r] in row r; the state advances.
  /// Throws ShapeError, ValueError (a token outside the vocabulary, more than max_positions tokens).
  Tensor step(std::span<const int32_t> tokens, PackedState& state) const;

  size_t bytes() const;

 private:
  struct Norm {
    Tensor weight, bias;
  };
  struct Attention {
    int64_t heads = 0, head_dim = 0;
    bool interleaved = false;  // heads of queries, keys and values: see kernels/attention/token_attention.h
    int64_t at = 0;            // where a token's keys stand, values behind them
    float scale = 1;
    PackedLinear in, out;  // in: queries, keys and values, of cross-attention the queries
    int64_t size() const { return heads * head_dim; }
  };
  struct Layer {
    Attention self, cross;
    PackedLinear fc1, fc2;
    Norm norms[3];
  };
  struct Rows;

  Attention attention_of(const nn::MultiHeadAttention& from, bool decodes, bool keys) const;
  Layer layer_of(const nn::TransformerLayer& from, bool decodes) const;
  Tensor encode(std::span<const std::vector<int32_t>> sources, int64_t length) const;
  Tensor learned_positions(const nn::Embedding& table) const;
  Tensor positions(const Tensor& table, int64_t begin, int64_t count) const;
  void embed(const Tensor& table, int32_t token, const float* position, float* to) const;
  void normalize(const Norm& norm, const float* x, float* y, int64_t rows) const;
  template <class Function>
  void sublayer(const Norm& norm, Rows& r, Function function) const;
  void feed_forward(const Layer& layer, const float* x, Rows& r) const;
  void attend_tokens(const Attention& attention, Rows& r, int64_t query_stride, int64_t row, int64_t rows,
                     const std::vector<PackedState::Token>& tokens, const Tensor& bias) const;
  Tensor step_bias(int64_t length) const;
  void attend_self(const Attention& self, PackedState& state, const float* x, Rows& r) const;
  void attend_source(const Attention& cross, const PackedState& state, const float* x, Rows& r) const;

  Seq2SeqConfig config_;
  WeightDtype weight_dtype_;
  Tensor source_table_, target_table_;
  Tensor source_positions_, target_positions_;  // learned: all; sinusoidal: the first ones; none: undefined
  std::vector<Layer> encoder_, decoder_;
  PackedLinear memory_;       // keys and values of every decoder layer
  int64_t step_size_ = 0;     // of a token's own keys and values
  bool interleaves_ = false;  // some attention does
  PackedLinear output_;
  Norm source_norm_, target_norm_;    // of the embeddings
  Norm encoder_norm_, decoder_norm_;  // of the last layers' outputs
  Tensor encoder_bias_;               // [heads, 2·relative_distance + 1]
  Tensor decoder_bias_;               // [2·relative_distance + 1, heads]
};

}  // namespace multihead::models
