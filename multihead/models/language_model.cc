#include "multihead/models/language_model.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/models/config/transformer_config-inl.h"
#include "multihead/models/packed_weights-inl.h"
#include "multihead/nn/points-inl.h"
#include "multihead/ops/attention/ring/context_scope.h"
#include "multihead/ops/dropout.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/embedding.h"
#include "multihead/ops/loss.h"
#include "multihead/ops/shape.h"

namespace multihead::models {
namespace {

using nn::detail::point;

// A layer with all of its heads.
nn::TransformerLayerOptions whole_layer(const LanguageModelConfig& c) {
  nn::TransformerLayerOptions o = layer_options(c, {c.attention_bias, c.out_bias, c.ffn_bias});
  o.attention.num_kv_heads = c.num_kv_heads;
  o.attention.qk_norm = c.qk_norm;
  o.attention.qk_norm_joint = c.qk_norm_joint;
  if (c.qk_norm) o.attention.qk_norm_eps = c.norm_eps;
  o.attention.qk_norm_kind = c.norm == nn::NormKind::layer ? nn::NormKind::rms : c.norm;
  if (c.scale_dim > 0) o.attention.scale = 1 / std::sqrt(static_cast<double>(c.scale_dim));
  if (c.attention_scale > 0) o.attention.scale = c.attention_scale;
  o.residual_factor = c.residual_factor;
  o.block = c.block;
  o.own_attention = c.attention;
  if (c.latent_dim > 0) {
    o.attention.value_head_dim = c.value_head_dim;
    o.latent = {.dim = c.latent_dim, .query_dim = c.query_latent_dim, .rotary_dim = rotary_dim(c)};
  }
  return o;
}

nn::TransformerLayerOptions layer_at(const LanguageModelConfig& c, int64_t layer) {
  nn::TransformerLayerOptions o = whole_layer(c);
  o.attention = without_heads(o.attention, c.pruned_heads, layer);
  return o;
}

// The fields of latent attention, which must be those of one, or 0.
void resolve_latent(LanguageModelConfig& c) {
  if (c.latent_dim == 0) {
    MH_CHECK(c.query_latent_dim == 0 && c.value_head_dim == 0, ValueError,
             "config: query_latent_dim and value_head_dim need latent_dim");
    return;
  }
  MH_CHECK(c.attention.empty(), ValueError, "config: latent_dim and attention ", quote(c.attention),
           " exclude each other");
  MH_CHECK(c.num_kv_heads == c.num_heads, ValueError,
           "config: with latent_dim all heads have their own keys; expected num_kv_heads ", c.num_heads,
           " or 0, got ", c.num_kv_heads);
  MH_CHECK(c.positions == Positions::rotary && rotary_dim(c) < c.head_dim, ValueError,
           "config: latent_dim needs rotary positions and a rotary_fraction below 1");
  if (c.value_head_dim == 0) c.value_head_dim = c.head_dim;
}

// What has no effect is refused: it was meant to have one.
void check_positions(const LanguageModelConfig& c) {
  const LanguageModelConfig kept = heeded(c);
  const auto check = [&](const char* field, bool is_heeded) {
    MH_CHECK(is_heeded, ValueError, "config: ", field, " has no effect on positions ", word_of(c.positions));
  };
  for (const ConfigField<LanguageModelConfig>& field : config_fields<LanguageModelConfig>()) {
    std::visit([&](auto member) { check(field.name, c.*member == kept.*member); }, field.member);
  }
  check("rotary_scaling", c.rotary_scaling == kept.rotary_scaling);
}

}  // namespace

template <>
const std::vector<ConfigField<LanguageModelConfig>>& config_fields() {
  using C = LanguageModelConfig;
  using enum Stored;
  static const std::vector<ConfigField<C>> fields = {
      {"vocab_size", &C::vocab_size, always, kSize},
      {"context", &C::context, always, kSize, "context", "context length in tokens"},
      {"window", &C::window, later, kSizeOrNone, "window",
       "sliding window in tokens, the current one included (0: none)"},
      {"global_every", &C::global_every, later, kSizeOrNone},
      {"global_first", &C::global_first, later},
      {"causal", &C::causal, later},
      {"num_layers", &C::num_layers, always, kLayers, "layers", "Transformer layers"},
      {"num_heads", &C::num_heads, always, kSize, "heads", "attention heads per layer"},
      {"num_kv_heads", &C::num_kv_heads, always, kSize, "kv-heads",
       "key and value heads, for grouped-query attention (0: as --heads)"},
      {"head_dim", &C::head_dim, always, kSize, "head-dim", "head dimension (0: width / heads)"},
      {"embed_dim", &C::embed_dim, always, kSize, "width", "embedding dimension"},
      {"ffn_dim", &C::ffn_dim, always, kSize, "ff", "hidden size of the feed-forward layers (0: 4 x width)"},
      {"pruned_heads", &C::pruned_heads, later},
      {"positions", &C::positions, always, "positions", "positional encoding"},
      {"position_offset", &C::position_offset, later, kSizeOrNone},
      {"rotary_base", &C::rotary_base, later, kPositive, "rotary-base", "base of rotary embeddings"},
      {"local_rotary_base", &C::local_rotary_base, later, kNotNegative},
      {"rotary_fraction", &C::rotary_fraction, later, io::NumberRange{0, 1, true}, "rotary-fraction",
       "share of each head's dimensions that is rotated"},
      {"rotary_layout", &C::rotary_layout, later},
      {"unrotated_every", &C::unrotated_every, later, kSizeOrNone},
      {"norm", &C::norm, always, "norm", "normalisation"},
      {"norm_eps", &C::norm_eps, always, kPositive},
      {"norm_first", &C::norm_first, always, "norm-first", "normalise before each sub-layer (pre-norm)"},
      {"block", &C::block, later, "block", "arrangement of attention and feed-forward in a layer"},
      {"final_norm", &C::final_norm, always, "final-norm", "final normalisation after the last layer"},
      {"activation", &C::activation, later, "activation", "activation of the feed-forward layers"},
      {"gated", &C::gated, always, "gated", "gated feed-forward layers (as in Llama)"},
      {"attention_bias", &C::attention_bias, always, "attention-bias", "query, key and value biases"},
      {"qk_norm", &C::qk_norm, later, "qk-norm", "normalise queries and keys per head (as in Qwen 3)"},
      {"qk_norm_joint", &C::qk_norm_joint, later},
      {"scale_dim", &C::scale_dim, later, kSizeOrNone},
      {"attention_scale", &C::attention_scale, later, kNotNegative},
      {"attention_softcap", &C::attention_softcap, later, kNotNegative},
      {"logit_softcap", &C::logit_softcap, later, kNotNegative},
      {"logit_divisor", &C::logit_divisor, later, kPositive},
      {"residual_factor", &C::residual_factor, later, kPositive},
      {"out_bias", &C::out_bias, always, "out-bias", "bias of the attention output projection"},
      {"ffn_bias", &C::ffn_bias, always, "ff-bias", "biases of the feed-forward layers"},
      {"head", &C::head, later},
      {"head_bias", &C::head_bias, always, "head-bias", "bias of the output layer"},
      {"tie_embeddings", &C::tie_embeddings, always, "tie-embeddings", "share input and output embeddings"},
      {"scale_embeddings", &C::scale_embeddings, always, "scale-embeddings",
       "multiply embeddings by sqrt(width)"},
      {"embedding_factor", &C::embedding_factor, later, kPositive},
      {"embedding_norm", &C::embedding_norm, later},
      {"dropout_p", &C::dropout_p, training, kProbability, "dropout",
       "dropout on embeddings and sub-layer outputs"},
      {"attention_dropout_p", &C::attention_dropout_p, later, kProbability, "attention-dropout",
       "dropout on attention weights"},
      {"ffn_dropout_p", &C::ffn_dropout_p, training, kProbability, "ff-dropout",
       "dropout inside the feed-forward layers"},
      {"init_std", &C::init_std, later, kPositive, "init-std", "standard deviation of initial weights"},
      {"scaled_residual_init", &C::scaled_residual_init, training, "scaled-residual-init",
       "scale initial weights of residual projections by depth (GPT-2)"},
      {"default_linear_init", &C::default_linear_init, training, "default-linear-init",
       "PyTorch's uniform initialisation"},
      {"attention", &C::attention, later, "attention",
       "an own attention, by the name of its class in the Python or C++ program that trains"},
      {"latent_dim", &C::latent_dim, later, kSizeOrNone, "latent-dim",
       "multi-head latent attention: the vector that keys and values are made from (0: none)"},
      {"query_latent_dim", &C::query_latent_dim, later, kSizeOrNone, "query-latent-dim",
       "with --latent-dim: the vector that queries are made from (0: the token's own)"},
      {"value_head_dim", &C::value_head_dim, later, kSizeOrNone}};
  return fields;
}

LanguageModelConfig resolved(LanguageModelConfig c) {
  using C = LanguageModelConfig;
  resolve_sizes(c, {&C::num_kv_heads, &C::head_dim, &C::ffn_dim});
  c.head_dim = size_of_head(c);
  if (c.num_kv_heads == 0) c.num_kv_heads = c.num_heads;
  MH_CHECK(c.num_heads % c.num_kv_heads == 0, ValueError, "config: num_heads ", c.num_heads,
           " is not a multiple of num_kv_heads ", c.num_kv_heads);
  MH_CHECK(!c.qk_norm_joint || c.pruned_heads.empty(), ValueError,
           "config: pruned_heads and qk_norm_joint exclude each other: the norm is over all heads");
  c.pruned_heads = resolved("config: pruned_heads", c.pruned_heads, c.num_layers, whole_layer(c).attention);
  MH_CHECK(other_attention(c).empty() || (c.pruned_heads.empty() && !c.qk_norm), ValueError,
           "config: attention ", quote(other_attention(c)), " takes no ",
           c.qk_norm ? "qk_norm; it has norms of its own" : "pruned_heads");
  resolve_latent(c);
  if (c.positions == Positions::rotary) {
    MH_CHECK(rotary_dim(c) >= 2 && rotary_dim(c) % 2 == 0, ValueError,
             "config: rotary_fraction must leave an even number of 2 to head_dim = ", c.head_dim,
             " dimensions, got ", c.rotary_fraction, ", which leaves ", rotary_dim(c));
    rotary_frequencies(2, c.rotary_base, c.rotary_scaling);  // throws where they make no sense
  }
  check_weights(c.vocab_size * c.embed_dim, layer_weights(whole_layer(c)), c.num_layers);
  return c;
}

LanguageModelConfig heeded(LanguageModelConfig c) {
  const LanguageModelConfig usual;
  if (c.positions != Positions::rotary) {
    c.rotary_base = usual.rotary_base, c.local_rotary_base = usual.local_rotary_base;
    c.rotary_fraction = usual.rotary_fraction, c.rotary_layout = usual.rotary_layout;
    c.rotary_scaling = usual.rotary_scaling, c.unrotated_every = usual.unrotated_every;
  }
  if (c.positions != Positions::learned) c.position_offset = usual.position_offset;
  return c;
}

std::string other_attention(const LanguageModelConfig& config) {
  return config.latent_dim > 0 ? "latent" : config.attention;
}

void check_plain_attention(const LanguageModelConfig& config, std::string_view who) {
  MH_CHECK(other_attention(config).empty(), ValueError, who,
           ": it takes models with multi-head attention, not attention ", quote(other_attention(config)));
}

int64_t matrix_weights(const LanguageModelConfig& config) {
  const LanguageModelConfig c = resolved(config);
  const int64_t rows = c.vocab_size * (c.head && !c.tie_embeddings ? 2 : 1) +
                       (c.positions == Positions::learned ? c.context + c.position_offset : 0),
                whole = layer_weights(whole_layer(c));
  int64_t layers = c.num_layers * whole;
  // A damaged file may name billions of layers; only those that lost heads are visited.
  for (int64_t i = 0; i < std::ssize(c.pruned_heads); ++i) layers -= whole - layer_weights(layer_at(c, i));
  return rows * c.embed_dim + layers;
}

LanguageModelConfig language_model_preset(const std::string& name) {
  LanguageModelConfig c;
  if (name == "tiny") {
    // Rotary positions and gated networks, as in Llama: after 500 steps on the novels 1.27 nats per
    // character, with learned positions and GELU 1.44.
    c.num_layers = 4, c.num_heads = 4, c.embed_dim = 128, c.ffn_dim = 352, c.context = 64;
    c.positions = Positions::rotary, c.norm = nn::NormKind::rms;
    c.activation = Activation::silu, c.gated = true;
    c.attention_bias = c.out_bias = c.ffn_bias = false;
  } else if (name == "small") {
    c.num_layers = 6, c.num_heads = 8, c.embed_dim = 256, c.context = 256;
  } else if (name == "tutorial") {
    c.num_layers = 6, c.num_heads = 16, c.embed_dim = 256, c.ffn_dim = 1024, c.context = 512;
    c.positions = Positions::sinusoidal;
    c.activation = Activation::relu;
    c.tie_embeddings = false, c.scale_embeddings = true, c.head_bias = true;
    c.dropout_p = c.attention_dropout_p = c.ffn_dropout_p = 0.1;
    c.default_linear_init = true, c.scaled_residual_init = false;
  } else {
    throw ValueError(concat("preset: expected tiny, small or tutorial, got \"", name, "\""));
  }
  return c;
}

LanguageModel::LanguageModel(const LanguageModelConfig& config, Rng& rng) : config_(resolved(config)) {
  const LanguageModelConfig& c = config_;
  check_positions(c);
  check_weight_memory(matrix_weights(c));
  token_embedding = nn::Embedding(c.vocab_size, c.embed_dim, rng);
  if (c.positions == Positions::learned) {
    position_embedding = nn::Embedding(c.context + c.position_offset, c.embed_dim, rng);
  }
  if (c.positions == Positions::alibi) {
    const auto slopes = nn::alibi_slopes(c.num_heads).to_vector<float>();
    for (int64_t i = 0; i < c.num_layers; ++i) {
      std::vector<float> kept;
      for (const int64_t head : kept_heads(whole_layer(c).attention, c.pruned_heads, i).heads) {
        kept.push_back(slopes[static_cast<size_t>(head)]);
      }
      alibi_slopes_.push_back(Tensor::of({std::ssize(kept)}, kept));
    }
  }
  if (c.positions == Positions::rotary) {
    frequencies_ = rotary_frequencies(rotary_dim(c), c.rotary_base, c.rotary_scaling);
    if (c.local_rotary_base > 0) local_frequencies_ = rotary_frequencies(rotary_dim(c), c.local_rotary_base);
  }
  for (int64_t i = 0; i < c.num_layers; ++i) layers.emplace_back(layer_at(c, i), rng);
  if (c.embedding_norm) embedding_norm = nn::Norm(c.embed_dim, {.kind = c.norm, .eps = c.norm_eps});
  if (c.final_norm) final_norm = nn::Norm(c.embed_dim, {.kind = c.norm, .eps = c.norm_eps});
  const double bound = 1 / std::sqrt(static_cast<double>(c.embed_dim));
  if (c.head) {
    head_weight = c.tie_embeddings ? token_embedding.weight
                                   : nn::uniform_parameter({c.vocab_size, c.embed_dim}, bound, rng);
  }
  if (c.head && c.head_bias) head_bias = nn::constant_parameter({c.vocab_size}, 0);
  initialize(rng);
}

// GPT-2's rule: matrices N(0, std), the two projections that write to the residual stream smaller, biases 0.
void LanguageModel::initialize(Rng& rng) {
  if (config_.default_linear_init) return;
  const double residual_scale =
      config_.scaled_residual_init ? 1 / std::sqrt(2.0 * static_cast<double>(config_.num_layers)) : 1;
  initialize_weights(*this, config_.init_std, rng, residual_scale,
                     config_.attention.empty() ? "" : ".self_attn.");
}

void LanguageModel::visit(nn::Visitor& visitor) {
  visitor("token_embedding", token_embedding);
  visitor("position_embedding", position_embedding);
  if (config_.embedding_norm) visitor("embedding_norm", embedding_norm);
  visitor("layers", layers);
  if (config_.final_norm) visitor("final_norm", final_norm);
  if (!config_.head) return;
  const bool tied = config_.tie_embeddings;
  visitor("head.weight", tied ? token_embedding.weight : head_weight,
          tied ? token_embedding.packed : head_packed);
  visitor("head.bias", head_bias);
  if (tied) head_weight = token_embedding.weight, head_packed = token_embedding.packed;
}

void LanguageModel::pack_weights(nn::WeightDtype dtype) {
  pack_weights(dtype, [&](const std::string& name, const Tensor& weight) {
    return nn::PackedLinear(weight, detail::dtype_of(name, dtype));
  });
}

void LanguageModel::pack_weights(nn::WeightDtype dtype, MakePacked make) {
  if (dtype != nn::WeightDtype::f32) {
    check_plain_attention(config_, concat("weights packed as ", kernels::name(dtype)));
  }
  pack_once("LanguageModel", *this, packed_dtype_, dtype, [&](const std::string& name, const Tensor& weight) {
    return name == "position_embedding.weight" ? nn::PackedLinear() : make(name, weight);
  });
}

size_t LanguageModel::weight_bytes() {
  size_t total = 0;
  for (const Tensor& parameter : nn::parameters(*this)) total += parameter.bytes();
  const auto add = [&](const std::string& name, Tensor&, nn::PackedLinear& packed) {
    if (packed.defined() && !(config_.tie_embeddings && name == "head.weight")) total += packed.bytes();
  };
  nn::Visitor visitor = nn::Visitor::of_matrices(add);
  visit(visitor);
  return total;
}

// The embeddings of tokens as they join their positions.
Tensor LanguageModel::words(const Tensor& tokens) const {
  Tensor x = token_embedding(tokens);
  if (config_.scale_embeddings) x = scale(x, std::sqrt(static_cast<double>(config_.embed_dim)));
  if (config_.embedding_factor != 1) x = scale(x, config_.embedding_factor);
  return config_.embedding_norm ? embedding_norm(x, "embedding_norm") : x;
}

Tensor LanguageModel::embed(const Tensor& tokens, const std::vector<int64_t>& starts, Rng* rng) const {
  Tensor x = point("embed", words(tokens));
  const ContextScope* const part = ContextScope::current();
  if (part != nullptr && config_.positions == Positions::sinusoidal) {
    const Tensor table = nn::sinusoidal_positions(part->shards().length(), config_.embed_dim).to(x.dtype());
    x = add(x, embedding(table, part->positions()));
  } else if (config_.positions == Positions::sinusoidal) {
    return nn::SinusoidalPositionalEncoding(config_.embed_dim, config_.dropout_p)(x, starts, rng);
  }
  if (part != nullptr && config_.positions == Positions::learned) {
    const Tensor whole = Tensor::arange(part->shards().length() + config_.position_offset);
    const Tensor ids = part->take(slice(whole, 0, config_.position_offset, whole.numel()), 0);
    x = add(x, point("pos_embed", position_embedding(ids)));
  } else if (config_.positions == Positions::learned) {
    // Padding past the end of a row may count beyond the context; its outputs mean nothing.
    const Tensor ids = nn::position_ids(std::ssize(starts), tokens.size(1), starts, config_.context - 1,
                                        config_.position_offset);
    x = add(x, point("pos_embed", position_embedding(ids)));
  }
  return dropout(x, config_.dropout_p, rng);
}

void LanguageModel::check_state(const nn::DecodeState& state, const LanguageModelCall& call, int64_t batch,
                                const std::vector<int64_t>& counts) const {
  MH_CHECK(state.batch() == batch && static_cast<int64_t>(state.layers.size()) == config_.num_layers,
           ShapeError, "LanguageModel: the state has ", state.batch(), " rows and ", state.layers.size(),
           " layers, expected ", batch, " and ", config_.num_layers);
  MH_CHECK(state.window == 0 || state.window == config_.window, ValueError,
           "LanguageModel: the state is a ring for a window of ", state.window, ", the model's window is ",
           config_.window);
  MH_CHECK(state.window == 0 || call.mask.is_empty(), ValueError,
           "LanguageModel: a ring forgets keys that a mask would count; use a state without ring");
  MH_CHECK(static_cast<int64_t>(counts.size()) == batch, ShapeError, "LanguageModel: counts must have ",
           batch, " entries, got ", counts.size());
  for (size_t b = 0; b < counts.size(); ++b) {
    MH_CHECK(state.lengths[b] + counts[b] <= longest(), ValueError, "LanguageModel: row ", b, " would reach ",
             state.lengths[b] + counts[b], " tokens, the context is ", config_.context);
  }
}

Tensor LanguageModel::features(const Tensor& tokens, const LanguageModelCall& call) const {
  MH_CHECK(tokens.rank() == 2, ShapeError, "LanguageModel: tokens must be [B, T], got ", tokens.shape());
  const int64_t batch = tokens.size(0), length = tokens.size(1);
  nn::DecodeState* state = call.state;
  std::optional<Busy> busy;
  if (state != nullptr) busy.emplace(state->in_use, "LanguageModel");
  std::vector<int64_t> starts = {0}, counts = call.counts;
  if (state != nullptr) {
    if (counts.empty()) counts.assign(static_cast<size_t>(batch), length);
    check_state(*state, call, batch, counts);
    starts = state->lengths;
  }
  const ContextScope* const part = ContextScope::current();
  MH_CHECK(part == nullptr || state == nullptr, ValueError, "LanguageModel: no state in a ContextScope");
  check_length(part != nullptr ? part->shards().length() : length);
  Tensor x = embed(tokens, starts, call.rng);
  std::vector<int64_t> held;
  if (state != nullptr) {
    state->make_room(counts, *busy);
    held = state->held();
  }
  x = run_layers(0, std::move(x), call, starts, {nullptr, held, counts});
  if (state != nullptr) {
    for (size_t b = 0; b < counts.size(); ++b) state->lengths[b] += counts[b];
  }
  return x;
}

Tensor LanguageModel::features_from(int64_t layer, const Tensor& resid, const LanguageModelCall& call) const {
  MH_CHECK(layer >= 0 && layer <= config_.num_layers, ValueError, "LanguageModel: layer must be 0 to ",
           config_.num_layers, ", got ", layer);
  MH_CHECK(resid.rank() == 3 && resid.size(2) == config_.embed_dim, ShapeError,
           "LanguageModel: resid must be [B, T, ", config_.embed_dim, "], got ", resid.shape());
  MH_CHECK(call.state == nullptr, ValueError, "LanguageModel: features_from() takes no state");
  check_length(resid.size(1));
  return run_layers(layer, resid, call, {0}, {});
}

void LanguageModel::check_length(int64_t length) const {
  MH_CHECK(length <= longest(), ValueError, "LanguageModel: ", length, " tokens, the context is ",
           config_.context);
}

Tensor LanguageModel::logits(const Tensor& features) const {
  MH_CHECK(config_.head, ValueError, "LanguageModel: the model has no output layer");
  const Tensor raw =
      head_packed.defined() ? head_packed(features, head_bias) : linear(features, head_weight, head_bias);
  const double cap = config_.logit_softcap;
  const Tensor logits = config_.logit_divisor == 1 ? raw : scale(raw, 1 / config_.logit_divisor);
  return cap > 0 ? scale(tanh(scale(logits, 1 / cap)), cap) : logits;
}

Tensor LanguageModel::operator()(const Tensor& tokens, const LanguageModelCall& call) const {
  return logits(features(tokens, call));
}

Tensor LanguageModel::loss(const Tensor& tokens, const Tensor& targets, const LanguageModelCall& call,
                           double label_smoothing) const {
  MH_CHECK(config_.causal, ValueError,
           "LanguageModel: the next token is no target of a model whose tokens see it (causal is false)");
  const CrossEntropyOptions options = {.label_smoothing = label_smoothing};
  // From a few thousand words on, the logits of all tokens would be the largest tensor of the step.
  constexpr int64_t kManyWords = 2048;
  if (!config_.head || config_.vocab_size < kManyWords || head_bias.defined() || head_packed.defined() ||
      config_.logit_softcap > 0 || config_.logit_divisor != 1)
    return cross_entropy((*this)(tokens, call), targets, options);
  return linear_cross_entropy(features(tokens, call), head_weight, targets, options);
}

int64_t LanguageModel::longest() const {
  const Positions p = config_.positions;
  const bool endless =
      has_ring() && (p == Positions::rotary || p == Positions::alibi || p == Positions::none);
  return endless ? int64_t{1} << 31 : config_.context;
}

nn::DecodeStateOptions LanguageModel::state_options(const LanguageModelState& o) const {
  MH_CHECK(config_.causal, ValueError,
           "LanguageModel: a model whose tokens see later ones (causal is false) has no state and cannot "
           "generate");
  MH_CHECK(!o.ring || has_ring(), ValueError,
           "LanguageModel: a ring needs a model with a window in every layer");
  MH_CHECK(!o.ring || o.chunk > 0, ValueError, "LanguageModel: chunk must be positive, got ", o.chunk);
  const Dtype own = token_embedding.dtype(), dtype = o.dtype.value_or(own);
  const bool narrower =
      dtype == nn::kInt8Cache ? own != Dtype::f64 : own == Dtype::f32 && dtype == Dtype::bf16;
  const std::string other = other_attention(config_);
  MH_CHECK(other.empty() || dtype == own, DtypeError, "LanguageModel: the state of attention ", quote(other),
           " has the model's dtype, ", own);
  MH_CHECK(dtype == own || narrower, DtypeError, "LanguageModel: the state of a model of ", own,
           " cannot be ", dtype == nn::kInt8Cache ? "int8" : name(dtype));
  nn::DecodeStateOptions plan = {.batch = o.batch,
                                 .head_dim = config_.head_dim,
                                 .value_head_dim = config_.head_dim,
                                 .capacity = o.capacity > 0 ? std::min(o.capacity, longest())
                                             : o.ring       ? longest()
                                                            : config_.context,
                                 .dtype = dtype};
  for (const nn::TransformerLayer& layer : layers) {
    plan.kv_heads.push_back(layer.self_attn.options().num_kv_heads);  // an own attention: 0
    if (layer.own_attn.defined()) plan.own.push_back(layer.own_attn.caches());
  }
  if (o.ring) {
    const int64_t ring = nn::ring_capacity(config_.window, o.chunk);
    if (ring < plan.capacity) plan.capacity = ring, plan.window = config_.window;
  }
  return plan;
}

}  // namespace multihead::models
