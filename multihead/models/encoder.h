// BERT-like encoders: tokens -> a vector each (Devlin et al. 2019).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "multihead/models/token_rows.h"
#include "multihead/nn/embedding.h"
#include "multihead/nn/positions.h"
#include "multihead/nn/transformer.h"

namespace multihead::models {

/// The head on the last layer.
enum class EncoderHead {
  none,
  masked_lm,       ///< logits over the vocabulary for every token
  classification,  ///< logits over the labels for every sequence
  tokens,          ///< logits over the labels for every token
};
constexpr auto enum_words(EncoderHead) {
  return std::to_array<std::string_view>({"none", "masked_lm", "classification", "tokens"});
}

/// The kind of labels of a classification head: how its logits become scores.
enum class ProblemType {
  unstated,      ///< as single_label
  single_label,  ///< they exclude each other: softmax; of one label, the logistic function
  multi_label,   ///< each holds or does not: the logistic function of each
  regression,    ///< numbers: the logits themselves
};
constexpr auto enum_words(ProblemType) {
  return std::to_array<std::string_view>({"unstated", "single_label", "multi_label", "regression"});
}

enum class PoolerActivation { tanh, relu, gelu };
constexpr auto enum_words(PoolerActivation) {
  return std::to_array<std::string_view>({"tanh", "relu", "gelu"});
}

/// A superset of the encoders of Hugging Face that families.cc lists.
struct EncoderConfig {
  int64_t vocab_size = 0;
  int64_t context = 512;  ///< longest sequence
  int64_t num_layers = 12;
  int64_t num_heads = 12;
  int64_t embed_dim = 768;
  int64_t head_dim = 0;        ///< 0: embed_dim / num_heads
  int64_t ffn_dim = 0;         ///< 0: 4·embed_dim
  bool shared_layers = false;  ///< one layer's weights in all (ALBERT)
  int64_t word_dim = 0;        ///< size of token embeddings, projected to embed_dim (ELECTRA); 0: embed_dim
  int64_t token_types = 2;     ///< 0: none
  bool alibi = false;  ///< scores less a head's slope times the distance, in place of positions (Jina v2)
  bool learned_positions = true;  ///< a table of them; rotary positions go without
  int64_t position_offset = 0;    ///< rows of the table of positions before the first (RoBERTa: pad_id + 1)
  int64_t pad_id = 0;  ///< with an offset, a padding token in a text has this position, and none counts it
  int64_t relative_buckets = 0;  ///< of distances, each with a bias of the scores (MPNet); 0: none
  int64_t relative_distance =
      128;                       ///< from which on all are in the last bucket, or have the last row's vector
  int64_t distance_span = 0;     ///< half the rows of a table of distances' vectors (DeBERTa); 0: none
  double rotary_base = 0;        ///< of rotary positions in place of learned ones (ModernBERT); 0: learned
  double rotary_factor = 1;      ///< divides rotary positions (GTE)
  int64_t rotary_digits = 0;     ///< binary digits that their frequencies are rounded to (ESM-2); 0: all
  double local_rotary_base = 0;  ///< of the layers with a window; 0: the same
  int64_t window = 0;            ///< tokens on either side that a layer sees; 0: all
  int64_t global_every = 0;      ///< layers 0, n, 2n … see all; 0: none does
  nn::NormKind norm = nn::NormKind::layer;
  /// The embeddings of mask_id are zero and the others .88 over their share of the sequence, as if masked
  /// tokens had been dropped, 12 % of them in training; nothing else drops embeddings (ESM-2).
  bool token_dropout = false;
  int64_t mask_id = 0;  ///< of token_dropout
  bool embedding_norm = true;
  /// Norms precede sub-layers, except for the first attention if there is an embedding_norm; a final norm
  /// follows the last layer.
  bool norm_first = false;
  bool scale_scores = true;   ///< scores / sqrt(head_dim)
  bool gated = false;         ///< feed-forward layers
  bool bias = true;           ///< of the layers, norms and the heads' dense layer …
  bool layer_bias = true;     ///< … but not of the layers' projections if this is false (Nomic BERT) …
  bool ffn_in_bias = true;    ///< … nor of the first of the feed-forward layers if this is (GTE)
  int64_t experts = 0;        ///< feed-forward networks of layers 1, n + 1, 2n + 1 … (Nomic v2); 0: one
  int64_t experts_used = 2;   ///< by each token
  int64_t experts_every = 2;  ///< n
  double norm_eps = 1e-12;
  Activation activation = Activation::gelu;
  bool pooler = true;  ///< a dense layer and an activation on the first token
  PoolerActivation pooler_activation = PoolerActivation::tanh;
  EncoderHead head = EncoderHead::none;
  Activation head_activation = Activation::gelu;  ///< of masked_lm
  /// Labels are predicted after masked_lm's dense layer and norm, not the pooler.
  bool transforms_labels = false;
  bool mean_pooling = false;  ///< classification reads the mean of the tokens, not the first
  int64_t num_labels = 0;     ///< of classification and tokens
  ProblemType problem_type = ProblemType::unstated;  ///< of classification
  double dropout_p = 0;
  double attention_dropout_p = 0;
  double ffn_dropout_p = 0;  ///< inside the feed-forward layers
  double init_std = 0.02;
  std::vector<std::string> labels = {};  ///< their names, if known

  bool operator==(const EncoderConfig&) const = default;
};

/// Resolves fields that are 0; throws ValueError naming the first invalid one.
EncoderConfig resolved(EncoderConfig config);
/// Number of matrix weights: all but biases and norms.
int64_t matrix_weights(const EncoderConfig& config);
/// Features of one head.
int64_t head_dim(const EncoderConfig& config);

namespace detail {
/// x with so many significant binary digits (rotary_digits); 0: x.
double rounded_to(int64_t digits, double x);
}  // namespace detail

/// features = layers(norm(words + positions + types)); every token sees the whole of its own sequence, or
/// the part within a layer's window, and nothing of the others. A sequence has the same bits in any
/// batch.
///
/// Shapes    N tokens of S sequences -> features [N, embed_dim]; logits [N, vocab_size], [S, num_labels] or
///           [N, num_labels] by the head
/// Throws    ShapeError, ValueError (an empty or too long sequence, a token or type outside its table; a call
///           of what the model lacks)
class Encoder {
 public:
  Encoder() = default;
  Encoder(const EncoderConfig& config, Rng& rng);

  /// Dropout is active if and only if `rng` is given.
  Tensor features(const TokenRows& rows, Rng* rng = nullptr) const;
  /// activation(dense(first token of each sequence)): [N, embed_dim] -> [S, embed_dim].
  Tensor pooled(const Tensor& features, const TokenRows& rows) const;
  Tensor logits(const TokenRows& rows, Rng* rng = nullptr) const;
  /// logits() of a masked_lm head at some tokens only: places [n] i64 of them all -> [n, vocab_size].
  Tensor logits_at(const TokenRows& rows, const Tensor& places, Rng* rng = nullptr) const;
  /// The same of features() of any tokens: [n, embed_dim] -> [n, vocab_size].
  Tensor masked_lm_logits(const Tensor& features) const;

  const EncoderConfig& config() const { return config_; }
  void visit(nn::Visitor& visitor);

  /// Replaces the layers' and heads' matrices by packed ones, which are faster, with f32 at the same bits;
  /// the model can then neither be trained nor saved. With 16 bits the token embedding is packed alike, with
  /// fewer as q8; a router of experts stays. Throws ValueError (packed already).
  void pack_weights(nn::WeightDtype dtype = nn::WeightDtype::f32);
  /// The same with the result of make() for each matrix, such as weights that a file holds quantised.
  using MakePacked = FunctionRef<nn::PackedLinear(const std::string& name, const Tensor& weight)>;
  void pack_weights(nn::WeightDtype dtype, MakePacked make);
  /// The argument of pack_weights(), if it was called.
  std::optional<nn::WeightDtype> packed_dtype() const { return packed_dtype_; }

  nn::Embedding token_embedding, position_embedding, type_embedding;
  nn::Norm embedding_norm, final_norm;
  nn::Linear embedding_projection;
  nn::RelativeBias relative_bias;    ///< of all layers
  nn::Embedding distance_embedding;  ///< [2·distance_span, embed_dim], of all layers
  nn::Norm distance_norm;
  std::vector<nn::TransformerLayer> layers;
  nn::Linear pooler;
  nn::Linear head_dense;  ///< of masked_lm and transforms_labels …
  nn::Norm head_norm;
  Tensor head_bias;       ///< … of masked_lm, whose output layer is the token embedding
  nn::Linear classifier;  ///< of classification and tokens

 private:
  Tensor embed(const TokenRows& rows, Rng* rng) const;
  Tensor run_layers(Tensor x, const TokenRows& rows, nn::LayerCall call) const;
  Tensor transformed(const Tensor& features) const;
  Tensor sequence_vectors(const Tensor& features, const TokenRows& rows) const;

  EncoderConfig config_;
  std::optional<nn::WeightDtype> packed_dtype_;
};

/// Random weights, but for those of `from` that have the same name and shape; a classifier for other labels
/// is not taken. `fresh`: the names of the random ones.
Encoder with_weights(const EncoderConfig& config, Encoder from, Rng& rng,
                     std::vector<std::string>* fresh = nullptr);

}  // namespace multihead::models
