// An encoder-decoder Transformer for translation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "multihead/models/language_model.h"
#include "multihead/nn/encoder_decoder.h"
#include "multihead/nn/positions.h"

namespace multihead::models {

/// A superset of the encoder-decoder in the texts of docs/tutorials/texts.md and of the families of Hugging
/// Face that families.cc lists.
struct Seq2SeqConfig {
  int64_t source_vocab_size = 0;
  int64_t target_vocab_size = 0;  ///< 0: source_vocab_size
  int64_t max_positions = 512;    ///< longest source and longest target, in tokens
  int64_t encoder_layers = 4;
  int64_t decoder_layers = 4;
  int64_t num_heads = 4;
  int64_t embed_dim = 256;
  int64_t head_dim = 0;                                              ///< 0: embed_dim / num_heads
  int64_t ffn_dim = 0;                                               ///< 0: 4·embed_dim
  PrunedHeads encoder_pruned_heads = {}, decoder_pruned_heads = {};  ///< of self-attention
  PrunedHeads cross_pruned_heads = {};

  Positions positions = Positions::sinusoidal;  ///< sinusoidal, learned or none
  nn::SinusoidLayout sinusoid_layout = nn::SinusoidLayout::halves;
  int64_t position_offset = 0;      ///< of the first token: learned, its row in the table (BART)
  int64_t relative_buckets = 0;     ///< of distances, each with a bias of self-attention (T5); 0: none
  int64_t relative_distance = 128;  ///< from which on all are in the last bucket
  nn::NormKind norm = nn::NormKind::layer;
  double norm_eps = 1e-5;
  bool norm_first = false;
  bool final_norm = false;  ///< after the last layers, for pre-norm models
  Activation activation = Activation::silu;
  bool gated = false;            ///< feed-forward layers: fc2(activation(gate) · up)
  bool bias = true;              ///< of every projection
  bool output_bias = true;       ///< of the logits
  bool share_embeddings = true;  ///< one embedding and vocabulary for source and target
  bool tie_output = true;        ///< the output layer shares the target embedding
  bool scale_embeddings = true;  ///< embeddings · sqrt(embed_dim)
  bool embedding_norm = false;   ///< a norm after the positions, one per stack
  bool scale_scores = true;      ///< scores / sqrt(head_dim)
  bool scale_output = false;     ///< features / sqrt(embed_dim) before the output layer

  double dropout_p = 0.1;
  double attention_dropout_p = 0;
  double ffn_dropout_p = 0;
  double init_std = 0.02;  ///< of the embeddings; projections are Xavier

  int64_t pad_id = 0;            ///< pads rows of a batch; never attended to
  int64_t eos_id = 0;            ///< ends a sentence
  int64_t decoder_start_id = 0;  ///< the decoder's first input

  bool operator==(const Seq2SeqConfig&) const = default;
};

/// Resolves fields that are 0; throws ValueError naming the first invalid one.
Seq2SeqConfig resolved(Seq2SeqConfig config);
/// Number of matrix weights: all but biases and norms.
int64_t matrix_weights(const Seq2SeqConfig& config);
/// Features of one head.
int64_t head_dim(const Seq2SeqConfig& config);

/// Padded sentences.
struct TokenBatch {
  Tensor tokens = {};                 ///< [B, T] i64 or i32
  std::vector<int64_t> lengths = {};  ///< valid tokens per row; empty: all T
};

/// Options of a decoding step.
struct Seq2SeqStep {
  std::vector<int64_t> counts = {};                        ///< new tokens per row; empty: all
  std::vector<AttentionCapture>* capture = nullptr;        ///< self-attention per layer
  std::vector<AttentionCapture>* cross_capture = nullptr;  ///< cross-attention per layer
};

/// logits = output(decoder(target, encoder(source))). Source padding is never attended to.
/// Throws ShapeError, ValueError (token outside the vocabulary, longer than max_positions).
class Seq2Seq {
 public:
  Seq2Seq() = default;
  Seq2Seq(const Seq2SeqConfig& config, Rng& rng);

  /// Shapes: source [B, Ts], target [B, Tt] (the decoder's input: decoder_start_id first) -> [B, Tt, V].
  Tensor operator()(const TokenBatch& source, const TokenBatch& target, Rng* rng = nullptr) const;
  /// Mean cross-entropy in nats of `labels` [B, Tt]; labels -100 are ignored.
  Tensor loss(const TokenBatch& source, const TokenBatch& target, const Tensor& labels, Rng* rng = nullptr,
              double label_smoothing = 0) const;

  /// [B, Ts, embed_dim]
  Tensor encode(const TokenBatch& source, Rng* rng = nullptr,
                std::vector<AttentionCapture>* capture = nullptr) const;

  /// Encodes the source and computes its keys and values once, for `capacity` target tokens.
  /// `dtype` of the state: the model's, or bf16 for half the memory.
  nn::DecodeState start(const TokenBatch& source, int64_t capacity, std::optional<Dtype> dtype = {}) const;
  /// Logits [B, T, V] of the next tokens [B, T]; the state advances.
  Tensor step(const Tensor& tokens, nn::DecodeState& state, const Seq2SeqStep& call = {}) const;

  const Seq2SeqConfig& config() const { return config_; }
  void visit(nn::Visitor& visitor);

  nn::Embedding source_embedding, target_embedding;  ///< one table if shared
  nn::Embedding source_positions, target_positions;  ///< learned positions only
  nn::RelativeBias encoder_bias, decoder_bias;       ///< of self-attention in all layers
  nn::Norm source_norm, target_norm;                 ///< of the embeddings
  nn::Transformer transformer;
  Tensor output_weight, output_bias;

 private:
  Tensor embed(bool source, const Tensor& tokens, const std::vector<int64_t>& starts, Rng* rng) const;
  Tensor logits(const Tensor& features) const;
  void initialize(Rng& rng);

  Seq2SeqConfig config_;
};

}  // namespace multihead::models
