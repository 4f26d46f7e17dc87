#include "multihead/models/encoder.h"

#include <algorithm>
#include <cmath>

#include "multihead/core/error.h"
#include "multihead/models/config/transformer_config-inl.h"
#include "multihead/models/known_weights-inl.h"
#include "multihead/models/packed_weights-inl.h"
#include "multihead/models/pooler-inl.h"
#include "multihead/nn/attention/disentangled-inl.h"
#include "multihead/nn/points-inl.h"
#include "multihead/ops/activation.h"
#include "multihead/ops/dropout.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/embedding.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/rotary.h"
#include "multihead/ops/shape.h"

namespace multihead::models {
namespace {

using nn::detail::point;

nn::NormOptions norm_of(const EncoderConfig& c) {
  return {.kind = c.norm, .eps = c.norm_eps, .bias = c.bias};
}

bool has_experts(const EncoderConfig& c, int64_t layer) {
  return c.experts > 0 && layer % c.experts_every == 1;
}

nn::TransformerLayerOptions encoder_layer(const EncoderConfig& c, int64_t layer) {
  const bool bias = c.bias && c.layer_bias;
  nn::TransformerLayerOptions o = layer_options(c, {.qkv = bias, .out = bias, .ffn = bias});
  o.norm.bias = c.bias;
  o.feed_forward.in_bias = c.ffn_in_bias;
  // A score is a sum of three products.
  if (has_experts(c, layer)) o.experts = {c.experts, c.experts_used};
  if (c.distance_span > 0) o.attention.scale = 1 / std::sqrt(3.0 * static_cast<double>(size_of_head(c)));
  return o;
}

bool has_labels(const EncoderConfig& c) {
  return c.head == EncoderHead::classification || c.head == EncoderHead::tokens;
}

bool has_transform(const EncoderConfig& c) {
  return c.head == EncoderHead::masked_lm || (has_labels(c) && c.transforms_labels);
}

// The embeddings' size where the output layer is one of them.
int64_t transform_dim(const EncoderConfig& c) {
  return c.head == EncoderHead::masked_lm ? c.word_dim : c.embed_dim;
}

bool has_table(const EncoderConfig& c) { return c.learned_positions && c.rotary_base == 0 && !c.alibi; }

// Layers with weights of their own.
int64_t stored_layers(const EncoderConfig& c) { return c.shared_layers ? 1 : c.num_layers; }

// Rows of the tables that embeddings are read from.
int64_t table_rows(const EncoderConfig& c) {
  return c.vocab_size + (has_table(c) ? c.context + c.position_offset : 0) + c.token_types;
}

}  // namespace

template <>
const std::vector<ConfigField<EncoderConfig>>& config_fields() {
  using C = EncoderConfig;
  using enum Stored;
  static const std::vector<ConfigField<C>> fields = {
      {"vocab_size", &C::vocab_size, always, kSize},
      {"context", &C::context, always, kSize, "context", "maximum sequence length in tokens"},
      {"num_layers", &C::num_layers, always, kLayers, "layers", "Transformer layers"},
      {"num_heads", &C::num_heads, always, kSize, "heads", "attention heads per layer"},
      {"embed_dim", &C::embed_dim, always, kSize, "width", "embedding dimension"},
      {"head_dim", &C::head_dim, later, kSizeOrNone},
      {"ffn_dim", &C::ffn_dim, always, kSize, "ff", "hidden size of the feed-forward layers (0: 4 x width)"},
      {"shared_layers", &C::shared_layers, later},
      {"word_dim", &C::word_dim, always, kSize},
      {"token_types", &C::token_types, always, kSizeOrNone},
      {"alibi", &C::alibi, later},
      {"learned_positions", &C::learned_positions, later},
      {"position_offset", &C::position_offset, always, kSizeOrNone},
      {"pad_id", &C::pad_id, always, kSizeOrNone},
      {"relative_buckets", &C::relative_buckets, later, kBuckets},
      {"relative_distance", &C::relative_distance, later, kBuckets},
      {"distance_span", &C::distance_span, later, kBuckets},
      {"rotary_base", &C::rotary_base, later, kNotNegative},
      {"rotary_factor", &C::rotary_factor, later, kPositive},
      {"rotary_digits", &C::rotary_digits, later, io::IntegerRange{0, 24}},
      {"local_rotary_base", &C::local_rotary_base, later, kNotNegative},
      {"window", &C::window, later, kSizeOrNone},
      {"global_every", &C::global_every, later, kSizeOrNone},
      {"norm", &C::norm, later},
      {"token_dropout", &C::token_dropout, later},
      {"mask_id", &C::mask_id, later, kSizeOrNone},
      {"embedding_norm", &C::embedding_norm, later},
      {"norm_first", &C::norm_first, later},
      {"scale_scores", &C::scale_scores, later},
      {"gated", &C::gated, later},
      {"bias", &C::bias, later},
      {"layer_bias", &C::layer_bias, later},
      {"ffn_in_bias", &C::ffn_in_bias, later},
      {"experts", &C::experts, later, io::IntegerRange{0, 1 << 12}},
      {"experts_used", &C::experts_used, later, kSize},
      {"experts_every", &C::experts_every, later, io::IntegerRange{2, 1 << 16}},
      {"norm_eps", &C::norm_eps, always, kPositive},
      {"activation", &C::activation, always},
      {"pooler", &C::pooler, always},
      {"pooler_activation", &C::pooler_activation, always},
      {"head", &C::head, always},
      {"head_activation", &C::head_activation, always},
      {"transforms_labels", &C::transforms_labels, later},
      {"mean_pooling", &C::mean_pooling, later},
      {"num_labels", &C::num_labels, always, kSizeOrNone},
      {"problem_type", &C::problem_type, later},
      {"dropout_p", &C::dropout_p, always, kProbability, "dropout",
       "dropout on embeddings and sub-layer outputs"},
      {"attention_dropout_p", &C::attention_dropout_p, always, kProbability, "attention-dropout",
       "dropout on attention weights"},
      {"ffn_dropout_p", &C::ffn_dropout_p, later, kProbability},
      {"init_std", &C::init_std, always, kPositive}};
  return fields;
}

EncoderConfig resolved(EncoderConfig c) {
  using C = EncoderConfig;
  resolve_sizes(c, {&C::ffn_dim, &C::word_dim});
  if (c.head_dim * c.num_heads == c.embed_dim) c.head_dim = 0;
  MH_CHECK(!has_labels(c) || c.num_labels > 0, ValueError, "config: a classification head needs num_labels");
  MH_CHECK(c.head != EncoderHead::classification || c.pooler || c.transforms_labels, ValueError,
           "config: a sequence classification head needs the pooler or transforms_labels");
  MH_CHECK(c.rotary_base == 0 || head_dim(c) % 2 == 0, ValueError,
           "config: rotary positions need an even head size, got ", head_dim(c));
  check_labels(c);
  if (c.word_dim == 0) c.word_dim = c.embed_dim;
  check_buckets(c.relative_buckets, c.relative_distance, true);
  MH_CHECK(!c.alibi || c.rotary_base == 0, ValueError, "config: alibi excludes rotary_base");
  if (c.experts > 0) {
    MH_CHECK(c.experts_used <= c.experts && !c.gated && !c.shared_layers && c.ffn_dropout_p == 0, ValueError,
             "config: experts must be at least experts_used, and exclude gated, shared_layers and "
             "ffn_dropout_p");
  } else {
    c.experts_used = C().experts_used, c.experts_every = C().experts_every;
  }
  if (c.distance_span > 0) {
    MH_CHECK(
        c.rotary_base == 0 && c.relative_buckets == 0 && c.window == 0 && c.scale_scores && !c.alibi,
        ValueError,
        "config: distance_span excludes rotary_base, relative_buckets, window, alibi and unscaled scores");
    nn::detail::distance_rows({c.distance_span, c.relative_distance}, 0);
  }
  check_weights(table_rows(c) * c.word_dim + 2 * c.distance_span * c.embed_dim,
                layer_weights(encoder_layer(c, 1)), stored_layers(c));
  return c;
}

int64_t head_dim(const EncoderConfig& c) { return size_of_head(c); }

double detail::rounded_to(int64_t digits, double x) {
  if (digits == 0 || x == 0) return x;
  const int exponent = std::ilogb(x) - static_cast<int>(digits) + 1;
  return std::ldexp(std::nearbyint(std::ldexp(x, -exponent)), exponent);
}

int64_t matrix_weights(const EncoderConfig& config) {
  const EncoderConfig c = resolved(config);
  const int64_t projection = c.word_dim == c.embed_dim ? 0 : c.word_dim * c.embed_dim,
                head = (has_transform(c) ? c.embed_dim * transform_dim(c) : 0) +
                       (has_labels(c) ? c.num_labels * c.embed_dim : 0);
  int64_t layers = 0;
  for (int64_t i = 0; i < stored_layers(c); ++i) layers += layer_weights(encoder_layer(c, i));
  return table_rows(c) * c.word_dim + c.relative_buckets * c.num_heads + 2 * c.distance_span * c.embed_dim +
         projection + layers + (c.pooler ? c.embed_dim * c.embed_dim : 0) + head;
}

Encoder::Encoder(const EncoderConfig& config, Rng& rng) : config_(resolved(config)) {
  const EncoderConfig& c = config_;
  check_weight_memory(matrix_weights(c));
  token_embedding = nn::Embedding(c.vocab_size, c.word_dim, rng);
  if (has_table(c)) position_embedding = nn::Embedding(c.context + c.position_offset, c.word_dim, rng);
  if (c.token_types > 0) type_embedding = nn::Embedding(c.token_types, c.word_dim, rng);
  if (c.relative_buckets > 0) {
    relative_bias = {{.count = c.relative_buckets, .max_distance = c.relative_distance}, c.num_heads, rng};
  }
  if (c.distance_span > 0) {
    distance_embedding = nn::Embedding(2 * c.distance_span, c.embed_dim, rng);
    distance_norm = nn::Norm(c.embed_dim, norm_of(c));
  }
  if (c.embedding_norm) embedding_norm = nn::Norm(c.word_dim, norm_of(c));
  if (c.word_dim != c.embed_dim) embedding_projection = nn::Linear(c.word_dim, c.embed_dim, rng);
  for (int64_t i = 0; i < stored_layers(c); ++i) layers.emplace_back(encoder_layer(c, i), rng);
  if (c.norm_first) final_norm = nn::Norm(c.embed_dim, norm_of(c));
  if (c.norm_first && c.embedding_norm) layers[0].norm1 = nn::Norm();
  if (c.pooler) pooler = nn::Linear(c.embed_dim, c.embed_dim, rng);
  if (has_transform(c)) {
    head_dense = nn::Linear(c.embed_dim, transform_dim(c), rng, {.bias = c.bias});
    head_norm = nn::Norm(transform_dim(c), norm_of(c));
  }
  if (c.head == EncoderHead::masked_lm) head_bias = nn::constant_parameter({c.vocab_size}, 0);
  if (has_labels(c)) classifier = nn::Linear(c.embed_dim, c.num_labels, rng);
  initialize_weights(*this, c.init_std, rng);
}

void Encoder::visit(nn::Visitor& visitor) {
  visitor("token_embedding", token_embedding);
  if (has_table(config_)) visitor("position_embedding", position_embedding);
  if (config_.token_types > 0) visitor("type_embedding", type_embedding);
  visitor("embedding_norm", embedding_norm);
  if (config_.word_dim != config_.embed_dim) visitor("embedding_projection", embedding_projection);
  visitor("relative_bias", relative_bias);
  if (config_.distance_span > 0) visitor("distance_embedding", distance_embedding);
  visitor("distance_norm", distance_norm);
  visitor("layers", layers);
  visitor("final_norm", final_norm);
  if (config_.pooler) visitor("pooler", pooler);
  if (has_transform(config_)) {
    visitor("head_dense", head_dense);
    visitor("head_norm", head_norm);
  }
  visitor("head_bias", head_bias);
  if (has_labels(config_)) visitor("classifier", classifier);
}

void Encoder::pack_weights(nn::WeightDtype dtype) {
  pack_weights(dtype, [&](const std::string& name, const Tensor& weight) {
    return nn::PackedLinear(weight, detail::dtype_of(name, dtype));
  });
}

void Encoder::pack_weights(nn::WeightDtype dtype, MakePacked make) {
  const auto stays = [&](const std::string& name) {
    if (name == "token_embedding.weight") return dtype == nn::WeightDtype::f32;
    // A rounded router would choose other experts.
    return name.find("embedding.") != name.npos || name.ends_with("experts.router.weight");
  };
  pack_once("Encoder", *this, packed_dtype_, dtype, [&](const std::string& name, const Tensor& weight) {
    return stays(name) ? nn::PackedLinear() : make(name, weight);
  });
}

namespace {

// Each token's row in the table of positions.
Tensor places_of(const EncoderConfig& c, const TokenRows& rows) {
  Tensor places = rows.places(c.position_offset);
  if (c.position_offset == 0) return places;
  const std::vector<int64_t> ends = rows.cu_seqlens.to_vector<int64_t>();
  const std::vector<int64_t> tokens = rows.tokens.to_vector<int64_t>();
  int64_t* place = places.data<int64_t>();
  for (size_t s = 0; s + 1 < ends.size(); ++s) {
    int64_t next = c.position_offset;
    for (int64_t t = ends[s]; t < ends[s + 1]; ++t) {
      place[t] = tokens[static_cast<size_t>(t)] == c.pad_id ? c.pad_id : next++;
    }
  }
  return places;
}

// The factor by which token_dropout scales each token's embedding, [N, 1].
Tensor kept_shares(const EncoderConfig& c, const TokenRows& rows) {
  constexpr double kKeptInTraining = 1 - 0.15 * 0.8;
  const std::vector<int64_t> ends = rows.cu_seqlens.to_vector<int64_t>();
  const std::vector<int64_t> tokens = rows.tokens.to_vector<int64_t>();
  std::vector<float> factors(tokens.size());
  for (size_t s = 0; s + 1 < ends.size(); ++s) {
    const auto first = tokens.begin() + ends[s], last = tokens.begin() + ends[s + 1];
    const auto count = static_cast<double>(last - first),
               masked = static_cast<double>(std::count(first, last, c.mask_id));
    for (auto t = first; t != last; ++t) {
      if (*t == c.mask_id) continue;
      factors[static_cast<size_t>(t - tokens.begin())] =
          static_cast<float>(kKeptInTraining / (1 - masked / count));
    }
  }
  return Tensor::of({std::ssize(factors), 1}, factors);
}

}  // namespace

Tensor Encoder::embed(const TokenRows& rows, Rng* rng) const {
  Tensor x = point("embed", token_embedding(rows.tokens), {.rows = 0});
  if (config_.token_dropout) x = mul(x, kept_shares(config_, rows).to(x.dtype()));
  if (has_table(config_)) {
    x = add(x, point("pos_embed", position_embedding(places_of(config_, rows)), {.rows = 0}));
  }
  if (config_.token_types > 0) {
    const Tensor types = rows.types.defined() ? rows.types : Tensor::zeros({x.size(0)}, Dtype::i64);
    x = add(x, type_embedding(types));
  }
  if (config_.embedding_norm) x = embedding_norm(x);
  if (!config_.token_dropout) x = dropout(x, config_.dropout_p, rng);
  return config_.word_dim == config_.embed_dim ? x : embedding_projection(x);
}

Tensor Encoder::run_layers(Tensor x, const TokenRows& rows, nn::LayerCall call) const {
  const EncoderConfig& c = config_;
  RotaryTable global, local;
  const bool rotates = c.rotary_base > 0 || c.local_rotary_base > 0;
  const Tensor places = rotates ? rows.places() : Tensor();
  const auto angles = [&](double base) {
    RotaryScaling scaling;
    if (c.rotary_factor != 1) scaling = {.kind = RotaryScaling::Kind::linear, .factor = c.rotary_factor};
    std::vector<double> frequencies = rotary_frequencies(head_dim(c), base, scaling);
    for (double& w : frequencies) w = detail::rounded_to(c.rotary_digits, w);
    return rotary_at(rotary_table(rows.longest(), {0}, frequencies), places);
  };
  if (c.rotary_base > 0) global = angles(c.rotary_base);
  if (c.local_rotary_base > 0) local = angles(c.local_rotary_base);
  Tensor distances, vectors;
  if (c.distance_span > 0) {
    distances = nn::detail::distance_rows({c.distance_span, c.relative_distance}, rows.longest() - 1);
    vectors = distance_norm(distance_embedding.weight);
  }
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const bool is_global = c.window == 0 || (c.global_every > 0 && i % c.global_every == 0);
    call.attention.mask = is_global ? Mask() : window(c.window, c.window);
    if (rows.attended.defined()) call.attention.mask &= lengths(rows.attended);
    if (c.rotary_base > 0) {
      call.attention.rotary = !is_global && c.local_rotary_base > 0 ? &local : &global;
    }
    if (vectors.defined()) {
      call.attention.distances = embedding(dropout(vectors, c.dropout_p, call.rng), distances);
    }
    const nn::detail::PointPath in("layers", static_cast<size_t>(i));
    x = layers[c.shared_layers ? 0 : static_cast<size_t>(i)](x, call);
  }
  return final_norm.weight.defined() ? final_norm(x, "final_norm") : x;
}

Tensor Encoder::features(const TokenRows& rows, Rng* rng) const {
  rows.check("Encoder", config_.context);
  const int64_t count = rows.tokens.size(0);
  nn::LayerCall call;
  call.rng = rng;
  call.attention.cu_seqlens = rows.cu_seqlens;
  if (relative_bias.weight.defined()) call.attention.relative_bias = relative_bias();
  if (config_.alibi)
    call.attention.alibi_slopes = nn::alibi_slopes(config_.num_heads).to(token_embedding.dtype());
  const Tensor x = reshape(embed(rows, rng), {1, count, config_.embed_dim});
  return reshape(run_layers(x, rows, call), {count, config_.embed_dim});
}

Tensor Encoder::pooled(const Tensor& features, const TokenRows& rows) const {
  MH_CHECK(config_.pooler, ValueError, "Encoder: the model has no pooler");
  const Tensor first = embedding(features, slice(rows.cu_seqlens, 0, 0, rows.sequences()));
  return detail::activate_pooled(pooler(first), config_.pooler_activation);
}

Tensor Encoder::transformed(const Tensor& features) const {
  return head_norm(activate(head_dense(features), config_.head_activation));
}

Tensor Encoder::masked_lm_logits(const Tensor& features) const {
  MH_CHECK(config_.head == EncoderHead::masked_lm, ValueError, "Encoder: the model has no masked_lm head");
  const Tensor x = transformed(features);
  const nn::PackedLinear& packed = token_embedding.packed;
  return packed.defined() ? packed(x, head_bias) : linear(x, token_embedding.weight, head_bias);
}

// The input of a head for sequences, [S, embed_dim].
Tensor Encoder::sequence_vectors(const Tensor& features, const TokenRows& rows) const {
  if (!config_.transforms_labels) return pooled(features, rows);
  if (!config_.mean_pooling) {
    return transformed(embedding(features, slice(rows.cu_seqlens, 0, 0, rows.sequences())));
  }
  const std::vector<int64_t> ends = rows.cu_seqlens.to_vector<int64_t>();
  std::vector<Tensor> means;
  for (size_t s = 0; s + 1 < ends.size(); ++s) {
    const Tensor all = sum(slice(features, 0, ends[s], ends[s + 1]), 0, true);
    means.push_back(scale(all, 1 / static_cast<double>(ends[s + 1] - ends[s])));
  }
  return transformed(concat(means, 0));
}

Tensor Encoder::logits_at(const TokenRows& rows, const Tensor& places, Rng* rng) const {
  return masked_lm_logits(embedding(features(rows, rng), places));
}

Tensor Encoder::logits(const TokenRows& rows, Rng* rng) const {
  MH_CHECK(config_.head != EncoderHead::none, ValueError, "Encoder: the model has no head to compute logits");
  const Tensor x = features(rows, rng);
  if (config_.head == EncoderHead::masked_lm) return masked_lm_logits(x);
  const bool reads_sequences = config_.head == EncoderHead::classification;
  const Tensor input = reads_sequences             ? sequence_vectors(x, rows)
                       : config_.transforms_labels ? transformed(x)
                                                   : x;
  return classifier(dropout(input, config_.dropout_p, rng));
}

Encoder with_weights(const EncoderConfig& config, Encoder from, Rng& rng, std::vector<std::string>* fresh) {
  return known_weights(config, std::move(from), rng, fresh);
}

}  // namespace multihead::models
