#include "multihead/models/encoder.h"

#include <algorithm>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/models/config_check-inl.h"
#include "multihead/models/packed_weights-inl.h"
#include "multihead/nn/points-inl.h"
#include "multihead/nn/unfilled-inl.h"
#include "multihead/ops/activation.h"
#include "multihead/ops/dropout.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/shape.h"

namespace multihead::models {
namespace {

using nn::detail::point;

nn::TransformerLayerOptions encoder_layer(const EncoderConfig& c) {
  nn::TransformerLayerOptions o;
  o.attention = {.embed_dim = c.embed_dim, .num_heads = c.num_heads, .dropout_p = c.attention_dropout_p};
  o.feed_forward = {.embed_dim = c.embed_dim, .hidden_dim = c.ffn_dim, .activation = c.activation};
  o.norm = {.eps = c.norm_eps};
  o.dropout_p = c.dropout_p;
  return o;
}

bool has_labels(const EncoderConfig& c) {
  return c.head == EncoderHead::classification || c.head == EncoderHead::tokens;
}

Tensor activate_pooled(const Tensor& x, PoolerActivation activation) {
  switch (activation) {
    case PoolerActivation::tanh:
      return tanh(x);
    case PoolerActivation::relu:
      return relu(x);
    default:
      return gelu(x);
  }
}

Tensor joined(std::span<const std::vector<int32_t>> parts, int64_t count) {
  Tensor out = Tensor::empty({count}, Dtype::i64);
  int64_t* at = out.data<int64_t>();
  for (const std::vector<int32_t>& part : parts) at = std::copy(part.begin(), part.end(), at);
  return out;
}

}  // namespace

template <>
const std::vector<ConfigField<EncoderConfig>>& config_fields() {
  using C = EncoderConfig;
  using enum Stored;
  static const std::vector<ConfigField<C>> fields = {
      {"vocab_size", &C::vocab_size, always, kSize},
      {"context", &C::context, always, kSize},
      {"num_layers", &C::num_layers, always, kLayers},
      {"num_heads", &C::num_heads, always, kSize},
      {"embed_dim", &C::embed_dim, always, kSize},
      {"ffn_dim", &C::ffn_dim, always, kSize},
      {"word_dim", &C::word_dim, always, kSize},
      {"token_types", &C::token_types, always, kSizeOrNone},
      {"position_offset", &C::position_offset, always, kSizeOrNone},
      {"pad_id", &C::pad_id, always, kSizeOrNone},
      {"relative_buckets", &C::relative_buckets, later, kBuckets},
      {"relative_distance", &C::relative_distance, later, kBuckets},
      {"norm_eps", &C::norm_eps, always, kPositive},
      {"activation", &C::activation, always},
      {"pooler", &C::pooler, always},
      {"pooler_activation", &C::pooler_activation, always},
      {"head", &C::head, always},
      {"head_activation", &C::head_activation, always},
      {"num_labels", &C::num_labels, always, kSizeOrNone},
      {"dropout_p", &C::dropout_p, always, kProbability},
      {"attention_dropout_p", &C::attention_dropout_p, always, kProbability},
      {"init_std", &C::init_std, always, kPositive}};
  return fields;
}

EncoderConfig resolved(EncoderConfig c) {
  using C = EncoderConfig;
  check_ranges(c, {&C::ffn_dim, &C::word_dim});
  MH_CHECK(c.embed_dim % c.num_heads == 0, ValueError, "config: embed_dim ", c.embed_dim,
           " is not divisible by num_heads ", c.num_heads);
  MH_CHECK(!has_labels(c) || c.num_labels > 0, ValueError, "config: a head for labels needs num_labels");
  MH_CHECK(c.head != EncoderHead::classification || c.pooler, ValueError,
           "config: a head for sequences needs the pooler");
  MH_CHECK(c.labels.empty() || static_cast<int64_t>(c.labels.size()) == c.num_labels, ValueError,
           "config: ", c.labels.size(), " names for ", c.num_labels, " labels");
  if (c.ffn_dim == 0) c.ffn_dim = 4 * c.embed_dim;
  if (c.word_dim == 0) c.word_dim = c.embed_dim;
  check_buckets(c.relative_buckets, c.relative_distance, true);
  const int64_t rows = c.vocab_size + c.context + c.position_offset + c.token_types;
  check_weights(rows * c.word_dim, checked_multiply(4 * c.embed_dim + 2 * c.ffn_dim, c.embed_dim, "config"),
                c.num_layers);
  return c;
}

int64_t matrix_weights(const EncoderConfig& config) {
  const EncoderConfig c = resolved(config);
  const int64_t rows = c.vocab_size + c.context + c.position_offset + c.token_types,
                layer = (4 * c.embed_dim + 2 * c.ffn_dim) * c.embed_dim,
                projection = c.word_dim == c.embed_dim ? 0 : c.word_dim * c.embed_dim,
                head = c.head == EncoderHead::masked_lm ? c.embed_dim * c.word_dim
                       : has_labels(c)                  ? c.num_labels * c.embed_dim
                                                        : 0;
  return rows * c.word_dim + c.relative_buckets * c.num_heads + projection + c.num_layers * layer +
         (c.pooler ? c.embed_dim * c.embed_dim : 0) + head;
}

TokenRows TokenRows::of(std::span<const std::vector<int32_t>> sequences,
                        std::span<const std::vector<int32_t>> types) {
  MH_CHECK(types.empty() || types.size() == sequences.size(), ShapeError, "TokenRows: ", types.size(),
           " rows of types for ", sequences.size(), " sequences");
  std::vector<int64_t> ends = {0};
  for (size_t i = 0; i < sequences.size(); ++i) {
    ends.push_back(ends.back() + std::ssize(sequences[i]));
    MH_CHECK(types.empty() || types[i].size() == sequences[i].size(), ShapeError, "TokenRows: sequence ", i,
             " has ", sequences[i].size(), " tokens and ", types[i].size(), " types");
  }
  TokenRows rows = {joined(sequences, ends.back()), Tensor::of<int64_t>({std::ssize(ends)}, ends)};
  if (!types.empty()) rows.types = joined(types, ends.back());
  return rows;
}

Encoder::Encoder(const EncoderConfig& config, Rng& rng) : config_(resolved(config)) {
  const EncoderConfig& c = config_;
  check_weight_memory(matrix_weights(c));
  token_embedding = nn::Embedding(c.vocab_size, c.word_dim, rng);
  position_embedding = nn::Embedding(c.context + c.position_offset, c.word_dim, rng);
  if (c.token_types > 0) type_embedding = nn::Embedding(c.token_types, c.word_dim, rng);
  if (c.relative_buckets > 0) {
    relative_bias = {{.count = c.relative_buckets, .max_distance = c.relative_distance}, c.num_heads, rng};
  }
  embedding_norm = nn::Norm(c.word_dim, {.eps = c.norm_eps});
  if (c.word_dim != c.embed_dim) embedding_projection = nn::Linear(c.word_dim, c.embed_dim, rng);
  for (int64_t i = 0; i < c.num_layers; ++i) layers.emplace_back(encoder_layer(c), rng);
  if (c.pooler) pooler = nn::Linear(c.embed_dim, c.embed_dim, rng);
  if (c.head == EncoderHead::masked_lm) {
    head_dense = nn::Linear(c.embed_dim, c.word_dim, rng);
    head_norm = nn::Norm(c.word_dim, {.eps = c.norm_eps});
    head_bias = nn::constant_parameter({c.vocab_size}, 0);
  }
  if (has_labels(c)) classifier = nn::Linear(c.embed_dim, c.num_labels, rng);
  if (nn::UnfilledParameters::active()) return;
  for (auto& [name, tensor] : nn::named_parameters(*this)) {
    if (tensor.rank() == 2) fill_normal(tensor, 0, c.init_std, rng.next());
    if (tensor.rank() == 1 && name.ends_with("bias")) tensor.fill(0);
  }
}

void Encoder::visit(nn::Visitor& visitor) {
  visitor("token_embedding", token_embedding);
  visitor("position_embedding", position_embedding);
  if (config_.token_types > 0) visitor("type_embedding", type_embedding);
  visitor("embedding_norm", embedding_norm);
  if (config_.word_dim != config_.embed_dim) visitor("embedding_projection", embedding_projection);
  visitor("relative_bias", relative_bias);
  visitor("layers", layers);
  if (config_.pooler) visitor("pooler", pooler);
  if (config_.head == EncoderHead::masked_lm) {
    visitor("head_dense", head_dense);
    visitor("head_norm", head_norm);
    visitor("head_bias", head_bias);
  }
  if (has_labels(config_)) visitor("classifier", classifier);
}

void Encoder::pack_weights(nn::WeightDtype dtype) {
  MH_CHECK(!packed_dtype_, ValueError, "Encoder: its weights are packed already, as ",
           kernels::name(*packed_dtype_));
  const NoTape silent;
  nn::pack_matrices(*this, [&](const std::string& name, const Tensor& weight) {
    if (name == "token_embedding.weight" && dtype != nn::WeightDtype::f32) {
      return nn::PackedLinear(weight, detail::dtype_of_words(dtype));
    }
    return name.find("embedding.") != name.npos ? nn::PackedLinear() : nn::PackedLinear(weight, dtype);
  });
  packed_dtype_ = dtype;
}

Tensor Encoder::embed(const TokenRows& rows, Rng* rng) const {
  const std::vector<int64_t> ends = rows.cu_seqlens.to_vector<int64_t>();
  const std::vector<int64_t> tokens = rows.tokens.to_vector<int64_t>();
  std::vector<int64_t> positions;
  positions.reserve(tokens.size());
  for (size_t s = 0; s + 1 < ends.size(); ++s) {
    const int64_t length = ends[s + 1] - ends[s];
    MH_CHECK(length > 0 && length <= config_.context, ValueError, "Encoder: sequence ", s, " has ", length,
             " tokens, expected 1 to ", config_.context);
    int64_t next = config_.position_offset;
    for (int64_t t = ends[s]; t < ends[s + 1]; ++t) {
      const bool is_padding = config_.position_offset > 0 && tokens[static_cast<size_t>(t)] == config_.pad_id;
      positions.push_back(is_padding ? config_.pad_id : next++);
    }
  }
  const Tensor places = Tensor::of<int64_t>({std::ssize(positions)}, positions);
  Tensor x = add(point("embed", token_embedding(rows.tokens), {.rows = 0}),
                 point("pos_embed", position_embedding(places), {.rows = 0}));
  if (config_.token_types > 0) {
    const Tensor types = rows.types.defined() ? rows.types : Tensor::zeros({x.size(0)}, Dtype::i64);
    x = add(x, type_embedding(types));
  }
  x = dropout(embedding_norm(x), config_.dropout_p, rng);
  return config_.word_dim == config_.embed_dim ? x : embedding_projection(x);
}

Tensor Encoder::features(const TokenRows& rows, Rng* rng) const {
  MH_CHECK(rows.tokens.defined() && rows.tokens.rank() == 1 && rows.cu_seqlens.defined() &&
               rows.cu_seqlens.rank() == 1 && rows.sequences() >= 0,
           ShapeError, "Encoder: tokens must be [N] and cu_seqlens [S + 1]");
  const int64_t count = rows.tokens.size(0);
  MH_CHECK(rows.cu_seqlens.to_vector<int64_t>().back() == count, ShapeError, "Encoder: cu_seqlens end at ",
           rows.cu_seqlens.to_vector<int64_t>().back(), " of ", count, " tokens");
  MH_CHECK(!rows.types.defined() || rows.types.shape() == rows.tokens.shape(), ShapeError,
           "Encoder: types must be ", rows.tokens.shape(), ", got ", rows.types.shape());
  nn::LayerCall call;
  call.rng = rng;
  call.attention.cu_seqlens = rows.cu_seqlens;
  if (relative_bias.weight.defined()) call.attention.relative_bias = relative_bias();
  Tensor x = reshape(embed(rows, rng), {1, count, config_.embed_dim});
  for (size_t i = 0; i < layers.size(); ++i) {
    const nn::detail::PointPath in("layers", i);
    x = layers[i](x, call);
  }
  return reshape(x, {count, config_.embed_dim});
}

Tensor Encoder::pooled(const Tensor& features, const TokenRows& rows) const {
  MH_CHECK(config_.pooler, ValueError, "Encoder: the model has no pooler");
  const Tensor first = embedding(features, slice(rows.cu_seqlens, 0, 0, rows.sequences()));
  return activate_pooled(pooler(first), config_.pooler_activation);
}

Tensor Encoder::masked_lm(const Tensor& features) const {
  const Tensor x = head_norm(activate(head_dense(features), config_.head_activation));
  const nn::PackedLinear& packed = token_embedding.packed;
  return packed.defined() ? packed(x, head_bias) : linear(x, token_embedding.weight, head_bias);
}

Tensor Encoder::logits(const TokenRows& rows, Rng* rng) const {
  MH_CHECK(config_.head != EncoderHead::none, ValueError, "Encoder: the model has no head for logits");
  const Tensor x = features(rows, rng);
  if (config_.head == EncoderHead::masked_lm) return masked_lm(x);
  const Tensor input = config_.head == EncoderHead::classification ? pooled(x, rows) : x;
  return classifier(dropout(input, config_.dropout_p, rng));
}

}  // namespace multihead::models
