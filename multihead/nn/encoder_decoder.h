// Stacks of layers: encoder, decoder, and both (Vaswani et al. 2017, figure 1).
#pragma once

#include <optional>
#include <vector>

#include "multihead/nn/decode/state.h"
#include "multihead/nn/transformer.h"

namespace multihead::nn {

struct StackOptions {
  TransformerLayerOptions layer = {};
  int64_t num_layers = 6;
  bool final_norm = false;  ///< a norm after the last layer, for pre-norm stacks
};

/// Options of a stack's call.
struct StackCall {
  Mask mask = {};         ///< self-attention
  Mask memory_mask = {};  ///< cross-attention, e.g. lengths(source_lengths)
  Rng* rng = nullptr;     ///< dropout is active if and only if given
  const RotaryTable* rotary = nullptr;
  Tensor alibi_slopes = {};
  Tensor relative_bias = {};
  EmptyRow empty_row = EmptyRow::zero;
  std::vector<AttentionCapture>* capture = nullptr;        ///< self-attention, one per layer
  std::vector<AttentionCapture>* cross_capture = nullptr;  ///< cross-attention, one per layer
  DecodeState* state = nullptr;      ///< decoder: attends to the state and appends to it
  std::vector<int64_t> counts = {};  ///< with a state: new tokens per row (default: all)
};

/// x -> layers -> [norm]. Shapes: x [B, T, embed_dim] -> the same. Layers are initialised independently.
/// Weights: layers.N.… and norm, as in torch.nn.TransformerEncoder.
class TransformerEncoder {
 public:
  TransformerEncoder() = default;
  TransformerEncoder(const StackOptions& options, Rng& rng);
  Tensor operator()(const Tensor& x, const StackCall& call = {}) const;
  void visit(Visitor& visitor);

  std::vector<TransformerLayer> layers;
  Norm norm;

 private:
  bool final_norm_ = false;
};

/// Causal self-attention, cross-attention to a memory, feed-forward; [norm] at the end.
/// Shapes: x [B, T, embed_dim], memory [B, Ts, embed_dim] -> [B, T, embed_dim].
/// Weights: as in torch.nn.TransformerDecoder.
class TransformerDecoder {
 public:
  TransformerDecoder() = default;
  TransformerDecoder(const StackOptions& options, Rng& rng);

  /// causal() is always part of the mask. With a state from start(), `memory` may be undefined.
  Tensor operator()(const Tensor& x, const Tensor& memory, const StackCall& call = {}) const;

  /// A state for `capacity` target tokens per row with its cross-attention keys and values computed
  /// once, here. `memory_lengths`: valid tokens of each row of the memory (empty: all). `dtype`: of the
  /// state, the memory's unless given.
  DecodeState start(const Tensor& memory, const std::vector<int64_t>& memory_lengths, int64_t capacity,
                    std::optional<Dtype> dtype = {}) const;

  void visit(Visitor& visitor);

  std::vector<TransformerLayer> layers;
  Norm norm;

 private:
  bool final_norm_ = false;
};

/// decoder(target, encoder(source)). Weights: encoder.… and decoder.…, as in torch.nn.Transformer.
class Transformer {
 public:
  Transformer() = default;
  Transformer(const StackOptions& encoder_options, const StackOptions& decoder_options, Rng& rng)
      : encoder(encoder_options, rng), decoder(decoder_options, rng) {}

  Tensor operator()(const Tensor& source, const Tensor& target, const StackCall& encoder_call = {},
                    const StackCall& decoder_call = {}) const {
    return decoder(target, encoder(source, encoder_call), decoder_call);
  }
  void visit(Visitor& visitor) {
    visitor("encoder", encoder);
    visitor("decoder", decoder);
  }

  TransformerEncoder encoder;
  TransformerDecoder decoder;
};

}  // namespace multihead::nn
