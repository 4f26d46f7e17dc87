// A decoder-only Transformer: tokens -> next-token logits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/models/surgery/pruned_heads.h"
#include "multihead/models/token_rows.h"
#include "multihead/nn/decode/state.h"
#include "multihead/nn/embedding.h"
#include "multihead/nn/positions.h"
#include "multihead/nn/transformer.h"

namespace multihead::nn {
class TokenPass;
}

namespace multihead::models {

enum class Positions { none, learned, sinusoidal, rotary, alibi };
constexpr auto enum_words(Positions) {
  return std::to_array<std::string_view>({"none", "learned", "sinusoidal", "rotary", "alibi"});
}

/// A superset of the families of Hugging Face that families.cc lists and of labml.ai's model.
struct LanguageModelConfig {
  int64_t vocab_size = 0;
  int64_t context = 256;  ///< longest sequence; see LanguageModel::longest()
  int64_t window = 0;     ///< sliding window in keys, the token included (Mistral's sliding_window); 0: none
  int64_t global_every = 0;   ///< every global_every-th layer has no window (Gemma); 0: all layers have it
  bool global_first = false;  ///< they are the first, …, not the global_every-th, … (GPT-Neo)
  /// Whether tokens see none after them. If not, the model gives features and logits but predicts no next
  /// token, and `window` counts as many keys after a token as before (EuroBERT, EmbeddingGemma).
  bool causal = true;
  int64_t num_layers = 4;
  int64_t num_heads = 4;
  int64_t num_kv_heads = 0;  ///< 0: num_heads
  int64_t head_dim = 0;      ///< 0: embed_dim / num_heads
  int64_t embed_dim = 128;
  int64_t ffn_dim = 0;  ///< 0: 4·embed_dim
  PrunedHeads pruned_heads = {};

  Positions positions = Positions::learned;
  int64_t position_offset = 0;  ///< learned: rows of the table before that of the first token (OPT)
  double rotary_base = 10000;
  double local_rotary_base = 0;  ///< of layers with a window, unscaled (Gemma 3); 0: as the others
  double rotary_fraction = 1;    ///< fraction of head_dim that is rotated
  RotaryLayout rotary_layout = RotaryLayout::halves;
  RotaryScaling rotary_scaling = {};
  int64_t unrotated_every = 0;  ///< every unrotated_every-th layer rotates nothing (SmolLM3); 0: none

  nn::NormKind norm = nn::NormKind::layer;
  double norm_eps = 1e-5;
  bool norm_first = true;
  nn::Block block = nn::Block::sequential;
  bool final_norm = true;
  Activation activation = Activation::gelu_tanh;
  bool gated = false;
  bool attention_bias = true;    ///< of queries, keys and values
  bool qk_norm = false;          ///< RMS norm (norm_eps) of every head's queries and keys, as in Qwen 3
  bool qk_norm_joint = false;    ///< it is over all heads together (OLMo 2)
  int64_t scale_dim = 0;         ///< scores are divided by its square root; 0: head_dim
  double attention_scale = 0;    ///< multiplies scores, in place of the root of scale_dim (Granite); 0: none
  double attention_softcap = 0;  ///< c > 0: scores are c·tanh(score / c) (Gemma 2)
  double logit_softcap = 0;      ///< the same for the logits
  double logit_divisor = 1;      ///< of the logits (Granite)
  double residual_factor = 1;    ///< of each sub-layer's output (Granite)
  bool out_bias = true;          ///< of the attention's output projection
  bool ffn_bias = true;
  bool head = true;  ///< an output layer; a model without one gives features alone, for embeddings
  bool head_bias = false;
  bool tie_embeddings = true;
  bool scale_embeddings = false;  ///< embeddings · sqrt(embed_dim)
  double embedding_factor = 1;    ///< embeddings · this (Granite)
  bool embedding_norm = false;    ///< a norm of the embeddings (BLOOM)

  double dropout_p = 0;            ///< embeddings, sub-layer outputs
  double attention_dropout_p = 0;  ///< attention weights
  double ffn_dropout_p = 0;        ///< inside the feed-forward network

  double init_std = 0.02;
  /// Scales initial residual projections by 1/sqrt(2·num_layers), as in GPT-2.
  bool scaled_residual_init = true;
  /// Linear layers keep PyTorch's uniform initialisation (as labml.ai's model) instead of N(0, init_std).
  bool default_linear_init = false;

  /// The name of an own attention in place of multi-head attention (nn/own_attention.h); "": none.
  std::string attention = {};
  /// Multi-head latent attention (nn/attention/latent_attention.h), whose rotated dimensions are the last of each head.
  int64_t latent_dim = 0;        ///< that keys and values are made from, and the cache keeps; 0: none
  int64_t query_latent_dim = 0;  ///< that queries are made from; 0: embed_dim itself
  int64_t value_head_dim = 0;    ///< of each head's values; 0: head_dim

  bool operator==(const LanguageModelConfig&) const = default;
};

/// Resolves fields that are 0; throws ValueError naming the first invalid one.
LanguageModelConfig resolved(LanguageModelConfig config);
/// The fields of positions that the model does not have as they are by default.
LanguageModelConfig heeded(LanguageModelConfig config);
/// The name of an attention that is not multi-head attention: config.attention, or "latent"; "": none.
std::string other_attention(const LanguageModelConfig& config);
/// Throws ValueError, which begins with `who`, if there is one.
void check_plain_attention(const LanguageModelConfig& config, std::string_view who);
/// Number of matrix weights: all but biases and norms.
int64_t matrix_weights(const LanguageModelConfig& config);

/// Presets: "tiny", "small", "tutorial". Throws ValueError for other names.
LanguageModelConfig language_model_preset(const std::string& name);

struct LanguageModelCall {
  Rng* rng = nullptr;                ///< dropout is active if and only if given
  nn::DecodeState* state = nullptr;  ///< cached decoding: attends to the state and is appended to it
  std::vector<int64_t> counts = {};  ///< with a state: new tokens per row (default: all T)
  Mask mask = {};                    ///< combined with causal()
  std::vector<AttentionCapture>* capture = nullptr;  ///< one per layer
  const TokenRows* rows = nullptr;                   ///< set by features(rows)
};

/// The size of a decoding state; see LanguageModel::state_options().
struct LanguageModelState {
  int64_t batch = 1;
  int64_t capacity = 0;  ///< tokens per row; 0: the model's context
  /// For models with a window: memory for the window only, if that is less. Logits are bitwise identical.
  bool ring = false;
  int64_t chunk = 256;  ///< ring: most tokens per row that a call may add
  /// Dtype of keys and values: the model's, bf16 for half the memory, or nn::kInt8Cache for a quarter.
  std::optional<Dtype> dtype = {};
};

/// logits = head(norm(layers(embedding(tokens) + positions))).
///
/// Shapes    tokens [B, T] i64 or i32, T <= context -> [B, T, vocab_size]
/// Throws    ShapeError, ValueError (token outside the vocabulary, T beyond the context)
class LanguageModel {
 public:
  LanguageModel() = default;
  LanguageModel(const LanguageModelConfig& config, Rng& rng);

  Tensor operator()(const Tensor& tokens, const LanguageModelCall& call = {}) const;
  /// The last hidden states [B, T, embed_dim], before the output layer.
  Tensor features(const Tensor& tokens, const LanguageModelCall& call = {}) const;
  /// Features of sequences without padding, [N, embed_dim]; each has the same bits in any batch.
  Tensor features(const TokenRows& rows, Rng* rng = nullptr) const;
  /// The first from a layer on, whose resid_pre [B, T, embed_dim] is given; num_layers: the final norm alone.
  /// Without state. With post-norm, resid_pre is norm2 of the former layer's resid_post.
  Tensor features_from(int64_t layer, const Tensor& resid, const LanguageModelCall& call = {}) const;
  /// The output layer alone: features [..., embed_dim] -> [..., vocab_size].
  Tensor logits(const Tensor& features) const;
  /// Mean cross-entropy of the next token in nats. Shapes: tokens, targets [B, T]; targets -100 are ignored.
  Tensor loss(const Tensor& tokens, const Tensor& targets, const LanguageModelCall& call = {},
              double label_smoothing = 0) const;

  /// Whether a call with `tokens` new tokens in every row would run its layers by kernel calls alone
  /// (nn/decode/token_pass.h) or through the modules, and why; their bits are the same.
  std::string explain(const LanguageModelCall& call, int64_t tokens = 1) const;

  /// Longest sequence: the context. Unlimited with a window and relative or no positions, since distances
  /// stay those of training.
  int64_t longest() const;
  /// The sizes of a state; nn::decode_state_bytes() of them is its memory.
  nn::DecodeStateOptions state_options(const LanguageModelState& options) const;
  nn::DecodeState make_state(const LanguageModelState& options) const {
    return nn::make_decode_state(state_options(options));
  }
  nn::DecodeState make_state(int64_t batch, int64_t capacity = 0) const {
    return make_state({.batch = batch, .capacity = capacity});
  }

  /// Whether every layer has a window, so that a state can be a ring.
  bool has_ring() const {
    return config_.window > 0 && config_.global_every == 0 && other_attention(config_).empty();
  }
  const LanguageModelConfig& config() const { return config_; }
  void visit(nn::Visitor& visitor);

  /// Replaces the matrices by packed ones; the f32 weights are released unless they are shared, and the
  /// model cannot be trained any more. f32 keeps every bit and reads a quarter faster. With 16 bits embedding
  /// and output layer are packed alike, with fewer as q8; norms, biases and learned positions stay.
  /// Throws ValueError (packed already).
  void pack_weights(nn::WeightDtype dtype);
  /// The same with the result of make() for each matrix, such as weights that a file holds quantised. The
  /// embedding must not be int8. A tied output layer is the embedding.
  using MakePacked = FunctionRef<nn::PackedLinear(const std::string& name, const Tensor& weight)>;
  void pack_weights(nn::WeightDtype dtype, MakePacked make);
  /// Format of the layers' matrices.
  nn::WeightDtype weight_dtype() const { return packed_dtype_.value_or(nn::WeightDtype::f32); }
  /// The argument of pack_weights(), if it was called.
  std::optional<nn::WeightDtype> packed_dtype() const { return packed_dtype_; }
  /// Memory of all weights.
  size_t weight_bytes();

  nn::Embedding token_embedding, position_embedding;
  std::vector<nn::TransformerLayer> layers;
  nn::Norm embedding_norm, final_norm;
  Tensor head_weight, head_bias;  ///< [vocab_size, embed_dim] (the token embedding's if tied), [vocab_size]
  nn::PackedLinear head_packed;   ///< if defined, in place of head_weight

 private:
  Tensor embed(const Tensor& tokens, const std::vector<int64_t>& starts, Rng* rng) const;
  Tensor embed(const TokenRows& rows, Rng* rng) const;
  Tensor words(const Tensor& tokens) const;
  void check_state(const nn::DecodeState& state, const LanguageModelCall& call, int64_t batch,
                   const std::vector<int64_t>& counts) const;
  void check_length(int64_t length) const;
  Tensor run_layers(int64_t first, Tensor x, const LanguageModelCall& call,
                    const std::vector<int64_t>& starts, const nn::CacheUpdate& update) const;
  struct LayerCalls;
  LayerCalls layer_calls(const LanguageModelCall& call, int64_t length,
                         const std::vector<int64_t>& starts) const;
  const nn::LayerCall& layer_call(LayerCalls& calls, size_t i) const;
  std::string declined(const nn::TokenPass& pass, LayerCalls& calls) const;
  bool is_global(size_t layer) const {
    const auto at = static_cast<int64_t>(layer) + (config_.global_first ? 0 : 1);
    return config_.global_every > 0 && at % config_.global_every == 0;
  }
  bool is_rotated(size_t layer) const {
    return config_.unrotated_every == 0 || static_cast<int64_t>(layer + 1) % config_.unrotated_every != 0;
  }
  void initialize(Rng& rng);

  LanguageModelConfig config_;
  std::vector<Tensor> alibi_slopes_;                     // of each layer
  std::vector<double> frequencies_, local_frequencies_;  // rotary
  std::optional<nn::WeightDtype> packed_dtype_;
};

}  // namespace multihead::models
