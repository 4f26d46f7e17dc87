// A Seq2Seq with weights packed for translation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "multihead/core/threads/busy.h"
#include "multihead/models/seq2seq.h"
#include "multihead/nn/decode/token_pass.h"
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
  /// Replaces row i by the former row parents[i]. Rows of one source should stay adjacent, for speed.
  void select(std::span<const int64_t> parents);
  /// Memory of keys and values, the encoder's included.
  size_t bytes() const;

 private:
  friend class PackedSeq2Seq;

  Tensor memory_;  // [B, Ts, M]: keys and values of the encoder's output, layer after layer
  std::vector<nn::TokenList> source_tokens_;  // per source
  std::vector<Tensor> steps_;                 // [rows, S] each: those of the tokens so far
  std::vector<nn::TokenList> history_;        // per row
  std::vector<int64_t> source_;               // per row
  int64_t length_ = 0;
  BusyFlag in_use_;  // as in nn::DecodeState
};

/// A copy of a model for translation: its matrices are packed, and a step of its decoder is a pass
/// (nn/decode/token_pass.h) that attends to lists of tokens. The logits of Seq2Seq::step() up to rounding.
///
/// With int8 weights every product quantises its inputs per row (kernels/quantized/packed_linear.h); everything between
/// the products, the embeddings and the state are f32.
/// Nothing is recorded; the weights are copied, so later changes of the model have no effect.
/// Bits: a row does not depend on its neighbours, the number of threads or, with FMA, the instruction set.
class PackedSeq2Seq {
 public:
  explicit PackedSeq2Seq(const Seq2Seq& model, WeightDtype weight_dtype = WeightDtype::f32);

  const Seq2SeqConfig& config() const { return model_.config(); }
  WeightDtype weight_dtype() const { return weight_dtype_; }

  /// Encodes the sources and computes their keys and values; one row per source.
  /// Throws ValueError (longer than max_positions).
  PackedState start(std::span<const std::vector<int32_t>> sources) const;
  /// Logits [rows, V] of the token that follows tokens[r] in row r; the state advances.
  /// Throws ShapeError, ValueError (a token outside the vocabulary, more than max_positions tokens).
  Tensor step(std::span<const int32_t> tokens, PackedState& state) const;

  size_t bytes() const;

 private:
  void take_heads();
  Tensor embed(std::span<const int32_t> tokens, int64_t position) const;
  Tensor step_bias(int64_t length) const;

  Seq2Seq model_;  // what the decoder's attentions have is as in nn::ListCall
  WeightDtype weight_dtype_;
  Tensor positions_;     // of the target: learned: all; sinusoidal: the first ones; none: undefined
  Tensor decoder_bias_;  // [2·relative_distance + 1, heads]
  PackedLinear memory_;  // keys and values of every decoder layer
  Tensor memory_bias_;
  int64_t step_size_ = 0;  // of a token's own keys and values
  PackedLinear output_;
};

}  // namespace multihead::models
