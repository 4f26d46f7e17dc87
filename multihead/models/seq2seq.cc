#include "multihead/models/seq2seq.h"

#include <algorithm>
#include <cmath>

#include "multihead/core/error.h"
#include "multihead/models/config/transformer_config-inl.h"
#include "multihead/nn/points-inl.h"
#include "multihead/nn/unfilled-inl.h"
#include "multihead/ops/dropout.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/loss.h"

namespace multihead::models {
namespace {

nn::TransformerLayerOptions layer_of(const Seq2SeqConfig& c) {
  return layer_options(c, {c.bias, c.bias, c.bias});
}

// Replaces an attention by one without the heads that are pruned.
void shrink(nn::MultiHeadAttention& attention, const PrunedHeads& pruned, size_t layer, Rng& rng) {
  if (pruned.empty() || pruned[layer].empty()) return;
  attention = {without_heads(attention.options(), pruned, static_cast<int64_t>(layer)), rng};
}

// The weights of the heads that attentions have lost.
int64_t pruned_weights(const Seq2SeqConfig& c) {
  int64_t heads = 0;
  for (const PrunedHeads* lists : {&c.encoder_pruned_heads, &c.decoder_pruned_heads, &c.cross_pruned_heads}) {
    for (const std::vector<int64_t>& list : *lists) heads += std::ssize(list);
  }
  return heads * 4 * head_dim(c) * c.embed_dim;
}

// The weights of all layers' matrices, with all of their heads.
int64_t stack_weights(const Seq2SeqConfig& c) {
  nn::TransformerLayerOptions layer = layer_of(c);
  const int64_t encoder = layer_weights(layer);
  layer.cross_attention = true;
  return c.encoder_layers * encoder + c.decoder_layers * layer_weights(layer);
}

nn::StackOptions stack_options(const Seq2SeqConfig& c, int64_t num_layers) {
  nn::StackOptions o;
  o.layer = layer_of(c);
  o.num_layers = num_layers;
  o.final_norm = c.final_norm;
  return o;
}

Mask valid(const TokenBatch& batch) {
  if (batch.lengths.empty()) return {};
  return lengths(Tensor::of<int64_t>({static_cast<int64_t>(batch.lengths.size())}, batch.lengths));
}

// Where positions begin behind the padding token's (M2M100), only the other tokens are numbered. `ends`: padding
// may follow a row's last token, which nothing that counts attends to.
void check_without_padding(const char* who, const TokenBatch& batch, const Seq2SeqConfig& c, bool ends) {
  if (c.positions != Positions::sinusoidal || c.position_offset == 0) return;
  const int64_t rows = batch.tokens.size(0), length = batch.tokens.size(1);
  const std::vector<int64_t> ids = batch.tokens.to_vector<int64_t>();
  for (int64_t row = 0; row < rows; ++row) {
    int64_t end = batch.lengths.empty() ? length : batch.lengths[static_cast<size_t>(row)];
    const auto first = ids.begin() + row * length;
    while (ends && end > 0 && first[end - 1] == c.pad_id) --end;
    MH_CHECK(std::find(first, first + end, c.pad_id) == first + end, ValueError, "Seq2Seq: row ", row, " of ",
             who, " has the padding token ", c.pad_id, " among its ", end,
             " tokens, where this model gives it no position; `lengths` leaves padding out");
  }
}

void check_batch(const char* who, const TokenBatch& batch, int64_t limit) {
  MH_CHECK(batch.tokens.rank() == 2, ShapeError, "Seq2Seq: ", who, " must be [B, T], got ",
           batch.tokens.shape());
  const int64_t rows = batch.tokens.size(0), length = batch.tokens.size(1);
  MH_CHECK(length <= limit, ValueError, "Seq2Seq: ", who, " of ", length,
           " tokens, the model has max_positions = ", limit);
  MH_CHECK(batch.lengths.empty() || static_cast<int64_t>(batch.lengths.size()) == rows, ShapeError,
           "Seq2Seq: ", who, " has ", rows, " rows and ", batch.lengths.size(), " lengths");
  for (const int64_t valid_length : batch.lengths) {
    MH_CHECK(valid_length >= 0 && valid_length <= length, ValueError, "Seq2Seq: a length of ", valid_length,
             " exceeds the ", length, " tokens of ", who);
  }
}

}  // namespace

template <>
const std::vector<ConfigField<Seq2SeqConfig>>& config_fields() {
  using C = Seq2SeqConfig;
  using enum Stored;
  static const std::vector<ConfigField<C>> fields = {
      {"source_vocab_size", &C::source_vocab_size, always, kSize},
      {"target_vocab_size", &C::target_vocab_size, always, kSize},
      {"max_positions", &C::max_positions, always, kSize, "max-positions",
       "maximum sentence length in tokens"},
      {"encoder_layers", &C::encoder_layers, always, kLayers, "encoder-layers",
       "Transformer layers of the encoder"},
      {"decoder_layers", &C::decoder_layers, always, kLayers, "decoder-layers",
       "Transformer layers of the decoder"},
      {"num_heads", &C::num_heads, always, kSize, "heads", "attention heads per layer"},
      {"embed_dim", &C::embed_dim, always, kSize, "width", "embedding dimension"},
      {"head_dim", &C::head_dim, later, kSizeOrNone},
      {"ffn_dim", &C::ffn_dim, always, kSize, "ff", "hidden size of the feed-forward layers (0: 4 x width)"},
      {"encoder_pruned_heads", &C::encoder_pruned_heads, later},
      {"decoder_pruned_heads", &C::decoder_pruned_heads, later},
      {"cross_pruned_heads", &C::cross_pruned_heads, later},
      {"positions", &C::positions, always, "positions", "positional encoding: learned or sinusoidal"},
      {"sinusoid_layout", &C::sinusoid_layout},
      {"position_offset", &C::position_offset, later, kSizeOrNone},
      {"relative_buckets", &C::relative_buckets, later, kBuckets},
      {"relative_distance", &C::relative_distance, later, kBuckets},
      {"norm", &C::norm, always, "norm", "normalisation"},
      {"norm_eps", &C::norm_eps, always, kPositive},
      {"norm_first", &C::norm_first, always, "norm-first", "normalise before each sub-layer (pre-norm)"},
      {"final_norm", &C::final_norm, always, "final-norm", "final normalisation after the last layers"},
      {"activation", &C::activation, later, "activation", "activation of the feed-forward layers"},
      {"gated", &C::gated, later, "gated", "gated feed-forward layers"},
      {"bias", &C::bias, always, "bias", "biases of the projections"},
      {"output_bias", &C::output_bias, always, "output-bias", "bias of the output layer"},
      {"share_embeddings", &C::share_embeddings},
      {"tie_output", &C::tie_output, always, "tie-output",
       "share the target embedding with the output layer"},
      {"scale_embeddings", &C::scale_embeddings, always, "scale-embeddings",
       "multiply embeddings by sqrt(width)"},
      {"embedding_norm", &C::embedding_norm, later},
      {"scale_scores", &C::scale_scores, later},
      {"scale_output", &C::scale_output, later},
      {"dropout_p", &C::dropout_p, later, kProbability, "dropout",
       "dropout on embeddings and sub-layer outputs"},
      {"attention_dropout_p", &C::attention_dropout_p, later, kProbability, "attention-dropout",
       "dropout on attention weights"},
      {"ffn_dropout_p", &C::ffn_dropout_p, later, kProbability, "ff-dropout",
       "dropout inside the feed-forward layers"},
      {"init_std", &C::init_std, later, kPositive, "init-std", "standard deviation of initial embeddings"},
      {"pad_id", &C::pad_id, always, kSizeOrNone},
      {"eos_id", &C::eos_id, always, kSizeOrNone},
      {"decoder_start_id", &C::decoder_start_id, always, kSizeOrNone}};
  return fields;
}

Seq2SeqConfig resolved(Seq2SeqConfig c) {
  using C = Seq2SeqConfig;
  resolve_sizes(c, {&C::target_vocab_size, &C::ffn_dim});
  if (c.target_vocab_size == 0) c.target_vocab_size = c.source_vocab_size;
  if (c.head_dim * c.num_heads == c.embed_dim) c.head_dim = 0;
  MH_CHECK(!c.share_embeddings || c.source_vocab_size == c.target_vocab_size, ValueError,
           "config: share_embeddings needs one vocabulary, got sizes ", c.source_vocab_size, " and ",
           c.target_vocab_size);
  MH_CHECK(c.positions != Positions::rotary && c.positions != Positions::alibi, ValueError,
           "config: positions must be sinusoidal, learned or none");
  MH_CHECK(c.sinusoid_layout != nn::SinusoidLayout::tensor2tensor || c.embed_dim >= 4, ValueError,
           "config: sinusoid_layout tensor2tensor needs an embed_dim of at least 4, got ", c.embed_dim);
  check_buckets(c.relative_buckets, c.relative_distance, true);
  check_buckets(c.relative_buckets, c.relative_distance, false);
  MH_CHECK(c.pad_id >= 0 && c.pad_id < c.source_vocab_size && c.pad_id < c.target_vocab_size, ValueError,
           "config: pad_id ", c.pad_id, " is outside the vocabulary");
  for (const auto& [field, id] : {std::pair{"eos_id", c.eos_id}, {"decoder_start_id", c.decoder_start_id}}) {
    MH_CHECK(id >= 0 && id < c.target_vocab_size, ValueError, "config: ", field, " ", id,
             " is outside the vocabulary of ", c.target_vocab_size);
  }
  const auto resolve = [&](const char* where, PrunedHeads& pruned, int64_t layers) {
    pruned = resolved(where, std::move(pruned), layers, layer_of(c).attention);
  };
  resolve("config: encoder_pruned_heads", c.encoder_pruned_heads, c.encoder_layers);
  resolve("config: decoder_pruned_heads", c.decoder_pruned_heads, c.decoder_layers);
  resolve("config: cross_pruned_heads", c.cross_pruned_heads, c.decoder_layers);
  MH_CHECK(c.relative_buckets == 0 || (c.encoder_pruned_heads.empty() && c.decoder_pruned_heads.empty()),
           ValueError, "config: heads of self-attention with relative biases cannot be pruned");
  const int64_t positions = c.positions == Positions::learned ? c.max_positions + c.position_offset : 0,
                rows = std::max(c.source_vocab_size, c.target_vocab_size) + positions;
  nn::TransformerLayerOptions largest = layer_of(c);
  largest.cross_attention = true;
  check_weights(checked_multiply(rows, c.embed_dim, "config"), layer_weights(largest),
                c.encoder_layers + c.decoder_layers);
  return c;
}

int64_t head_dim(const Seq2SeqConfig& c) { return size_of_head(c); }

int64_t matrix_weights(const Seq2SeqConfig& config) {
  const Seq2SeqConfig c = resolved(config);
  const int64_t rows = c.source_vocab_size + (c.share_embeddings ? 0 : c.target_vocab_size) +
                       (c.tie_output ? 0 : c.target_vocab_size) +
                       (c.positions == Positions::learned ? 2 * (c.max_positions + c.position_offset) : 0);
  return rows * c.embed_dim + stack_weights(c) - pruned_weights(c) + 2 * c.relative_buckets * c.num_heads;
}

Seq2Seq::Seq2Seq(const Seq2SeqConfig& config, Rng& rng) : config_(resolved(config)) {
  const Seq2SeqConfig& c = config_;
  check_weight_memory(matrix_weights(c));
  const auto table = [&](int64_t rows) {
    nn::Embedding embedding;
    embedding.weight = nn::normal_parameter({rows, c.embed_dim}, c.init_std, rng);
    return embedding;
  };
  source_embedding = table(c.source_vocab_size);
  target_embedding = c.share_embeddings ? source_embedding : table(c.target_vocab_size);
  if (c.positions == Positions::learned) {
    source_positions = table(c.max_positions + c.position_offset);
    target_positions = table(c.max_positions + c.position_offset);
  }
  if (c.relative_buckets > 0) {
    encoder_bias = {{c.relative_buckets, c.relative_distance, true}, c.num_heads, rng};
    decoder_bias = {{c.relative_buckets, c.relative_distance, false}, c.num_heads, rng};
  }
  if (c.embedding_norm) {
    source_norm = nn::Norm(c.embed_dim, {.kind = c.norm, .eps = c.norm_eps});
    target_norm = nn::Norm(c.embed_dim, {.kind = c.norm, .eps = c.norm_eps});
  }
  transformer = nn::Transformer(stack_options(c, c.encoder_layers), stack_options(c, c.decoder_layers), rng);
  auto &encoder = transformer.encoder.layers, &decoder = transformer.decoder.layers;
  for (size_t i = 0; i < encoder.size(); ++i) shrink(encoder[i].self_attn, c.encoder_pruned_heads, i, rng);
  for (size_t i = 0; i < decoder.size(); ++i) {
    shrink(decoder[i].self_attn, c.decoder_pruned_heads, i, rng);
    shrink(decoder[i].multihead_attn, c.cross_pruned_heads, i, rng);
  }
  initialize(rng);
  output_weight = c.tie_output ? target_embedding.weight
                               : nn::normal_parameter({c.target_vocab_size, c.embed_dim}, c.init_std, rng);
  if (c.output_bias) output_bias = nn::constant_parameter({c.target_vocab_size}, 0);
}

// Xavier for the matrices of the stacks, biases 0.
void Seq2Seq::initialize(Rng& rng) {
  if (nn::UnfilledParameters::active()) return;
  for (auto& [name, tensor] : nn::named_parameters(transformer)) {
    if (tensor.rank() == 2 && !name.ends_with("in_proj_weight")) {
      const double bound = std::sqrt(6.0 / static_cast<double>(tensor.size(0) + tensor.size(1)));
      fill_uniform(tensor, -bound, bound, rng.next());
    } else if (name.ends_with("bias")) {
      tensor.fill(0);
    }
  }
}

void Seq2Seq::visit(nn::Visitor& visitor) {
  visitor("source_embedding", source_embedding);
  if (config_.share_embeddings) {
    visitor("target_embedding.weight", source_embedding.weight);
    target_embedding.weight = source_embedding.weight;
  } else {
    visitor("target_embedding", target_embedding);
  }
  visitor("source_positions", source_positions);
  visitor("target_positions", target_positions);
  visitor("encoder_bias", encoder_bias);
  visitor("decoder_bias", decoder_bias);
  if (config_.embedding_norm) {
    visitor("source_norm", source_norm);
    visitor("target_norm", target_norm);
  }
  visitor("transformer", transformer);
  if (config_.tie_output) {
    visitor("output.weight", target_embedding.weight);
    output_weight = target_embedding.weight;
    if (config_.share_embeddings) source_embedding.weight = target_embedding.weight;
  } else {
    visitor("output.weight", output_weight);
  }
  visitor("output.bias", output_bias);
}

Tensor Seq2Seq::embed(bool source, const Tensor& tokens, const std::vector<int64_t>& starts, Rng* rng) const {
  const Seq2SeqConfig& c = config_;
  Tensor x = source ? source_embedding(tokens) : target_embedding(tokens);
  if (c.scale_embeddings) x = scale(x, std::sqrt(static_cast<double>(c.embed_dim)));
  x = nn::detail::point("embed", x);
  if (c.positions == Positions::sinusoidal) {
    std::vector<int64_t> places = starts;
    for (int64_t& place : places) place += c.position_offset;
    x = nn::SinusoidalPositionalEncoding(c.embed_dim, 0, c.sinusoid_layout)(x, places);
  } else if (c.positions == Positions::learned) {
    const Tensor ids =
        nn::position_ids(std::ssize(starts), tokens.size(1), starts, c.max_positions - 1, c.position_offset);
    x = add(x, nn::detail::point("pos_embed", source ? source_positions(ids) : target_positions(ids)));
  }
  if (c.embedding_norm) x = source ? source_norm(x) : target_norm(x);
  return dropout(x, c.dropout_p, rng);
}

Tensor Seq2Seq::logits(const Tensor& features) const {
  const Tensor x = config_.scale_output
                       ? scale(features, 1 / std::sqrt(static_cast<double>(config_.embed_dim)))
                       : features;
  return linear(x, output_weight, output_bias);
}

Tensor Seq2Seq::encode(const TokenBatch& source, Rng* rng, std::vector<AttentionCapture>* capture) const {
  check_batch("source", source, config_.max_positions);
  check_without_padding("source", source, config_, false);
  const nn::detail::PointPath in("encoder");
  nn::StackCall stack = {.mask = valid(source), .rng = rng, .capture = capture};
  if (encoder_bias.weight.defined()) stack.relative_bias = encoder_bias();
  return transformer.encoder(embed(true, source.tokens, {0}, rng), stack);
}

Tensor Seq2Seq::operator()(const TokenBatch& source, const TokenBatch& target, Rng* rng) const {
  check_batch("target", target, config_.max_positions);
  check_without_padding("target", target, config_, true);
  MH_CHECK(source.tokens.size(0) == target.tokens.size(0), ShapeError, "Seq2Seq: the source has ",
           source.tokens.size(0), " rows, the target ", target.tokens.size(0));
  const Tensor memory = encode(source, rng);
  const nn::detail::PointPath in("decoder");
  nn::StackCall stack = {.mask = valid(target), .memory_mask = valid(source), .rng = rng};
  if (decoder_bias.weight.defined()) stack.relative_bias = decoder_bias();
  return logits(transformer.decoder(embed(false, target.tokens, {0}, rng), memory, stack));
}

Tensor Seq2Seq::loss(const TokenBatch& source, const TokenBatch& target, const Tensor& labels, Rng* rng,
                     double label_smoothing) const {
  return cross_entropy((*this)(source, target, rng), labels, {.label_smoothing = label_smoothing});
}

nn::DecodeState Seq2Seq::start(const TokenBatch& source, int64_t capacity, std::optional<Dtype> dtype) const {
  return transformer.decoder.start(encode(source), source.lengths, std::min(capacity, config_.max_positions),
                                   dtype);
}

Tensor Seq2Seq::step(const Tensor& tokens, nn::DecodeState& state, const Seq2SeqStep& call) const {
  check_batch("target", {tokens, {}}, config_.max_positions);
  nn::StackCall stack;
  stack.state = &state;
  stack.counts = call.counts;
  stack.capture = call.capture;
  stack.cross_capture = call.cross_capture;
  if (decoder_bias.weight.defined()) stack.relative_bias = decoder_bias();
  const nn::detail::PointPath in("decoder");
  return logits(transformer.decoder(embed(false, tokens, state.lengths, nullptr), {}, stack));
}

}  // namespace multihead::models
