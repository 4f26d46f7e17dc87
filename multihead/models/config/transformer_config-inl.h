// The part that the configurations of all Transformers share: checks, derived sizes, the options of a layer,
// its initial weights. Internal to models.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/memory/memory.h"
#include "multihead/models/config/config_fields.h"
#include "multihead/nn/positions.h"
#include "multihead/nn/transformer.h"
#include "multihead/nn/unfilled-inl.h"

namespace multihead::models {

/// Bounded so that sums of a few and products of two cannot overflow; files are, more narrowly, by the range.
inline void check_range(const char* field, int64_t value, const io::IntegerRange& range) {
  MH_CHECK(value >= range.min, ValueError, "config: ", field,
           range.min == 1 ? " must be positive, got " : " must not be negative, got ", value);
  MH_CHECK(value <= int64_t{1} << 31, ValueError, "config: ", field, " must be at most 2^31, got ", value);
}

inline void check_range(const char* field, double value, const io::NumberRange& range) {
  const std::string expected = std::isinf(range.max) ? "positive"
                                                     : concat("in ", range.exclude_min ? "(" : "[", range.min,
                                                              ", ", range.max, range.exclude_max ? ")" : "]");
  MH_CHECK(range.holds(value) && std::isfinite(value), ValueError, "config: ", field, " must be ", expected,
           ", got ", value);
}

/// Throws ValueError for the first field outside its range in the table; `derived` may be 0 besides.
template <class Config>
void check_ranges(const Config& config, std::initializer_list<int64_t Config::*> derived) {
  for (const ConfigField<Config>& field : config_fields<Config>()) {
    if (const auto* count = std::get_if<int64_t Config::*>(&field.member)) {
      const bool open = config.**count == 0 && std::count(derived.begin(), derived.end(), *count) > 0;
      if (!open) check_range(field.name, config.**count, field.range.integer);
    } else if (const auto* number = std::get_if<double Config::*>(&field.member)) {
      check_range(field.name, config.**number, field.range.number);
    }
  }
}

template <class Config>
int64_t size_of_head(const Config& c) {
  if constexpr (requires { c.head_dim; }) {
    if (c.head_dim > 0) return c.head_dim;
  }
  return c.embed_dim / c.num_heads;
}

/// How many of a head's dimensions are rotated: cut off, as transformers does. A fraction that was divided from such a
/// number gives it again.
template <class Config>
int64_t rotary_dim(const Config& c) {
  return static_cast<int64_t>(c.rotary_fraction * static_cast<double>(c.head_dim) + 1e-6);
}

/// Checks every field on its own and gives ffn_dim its default; `derived` fields may be 0.
template <class Config>
void resolve_sizes(Config& c, std::initializer_list<int64_t Config::*> derived) {
  check_ranges(c, derived);
  const bool divides = c.embed_dim % c.num_heads == 0;
  if constexpr (requires { c.head_dim; }) {
    MH_CHECK(c.head_dim > 0 || divides, ValueError, "config: embed_dim ", c.embed_dim,
             " is not divisible by num_heads ", c.num_heads, "; choose other sizes or give head_dim");
  } else {
    MH_CHECK(divides, ValueError, "config: embed_dim ", c.embed_dim, " is not divisible by num_heads ",
             c.num_heads);
  }
  if (c.ffn_dim == 0) c.ffn_dim = 4 * c.embed_dim;
}

template <class Config>
void check_labels(const Config& c) {
  MH_CHECK(c.labels.empty() || std::ssize(c.labels) == c.num_labels, ValueError, "config: ", c.labels.size(),
           " names for ", c.num_labels, " labels");
}

struct LayerBiases {
  bool qkv = true, out = true, ffn = true;
};

/// The options of a layer with all of its heads. Fields that a configuration lacks keep the layer's default.
template <class Config>
nn::TransformerLayerOptions layer_options(const Config& c, const LayerBiases& bias) {
  nn::TransformerLayerOptions o;
  o.attention = {.embed_dim = c.embed_dim,
                 .num_heads = c.num_heads,
                 .head_dim = size_of_head(c),
                 .query_bias = bias.qkv,
                 .key_bias = bias.qkv,
                 .value_bias = bias.qkv,
                 .out_bias = bias.out,
                 .dropout_p = c.attention_dropout_p};
  o.feed_forward = {
      .embed_dim = c.embed_dim, .hidden_dim = c.ffn_dim, .activation = c.activation, .bias = bias.ffn};
  o.norm.eps = c.norm_eps;
  o.dropout_p = c.dropout_p;
  if constexpr (requires { c.scale_scores; }) {
    if (!c.scale_scores) o.attention.scale = 1;
  }
  if constexpr (requires { c.norm_first; }) {
    o.feed_forward.gated = c.gated;
    o.feed_forward.dropout_p = c.ffn_dropout_p;
    o.norm.kind = c.norm;
    o.norm_first = c.norm_first;
  }
  return o;
}

/// The weights of a layer's matrices, of a decoder those of its cross-attention besides.
inline int64_t layer_weights(const nn::TransformerLayerOptions& o) {
  const nn::MultiHeadAttentionOptions& a = o.attention;
  const int64_t kv_heads = a.num_kv_heads > 0 ? a.num_kv_heads : a.num_heads,
                rows = checked_multiply(2 * (a.num_heads + kv_heads), a.head_dim, "config"),
                attention = o.latent.dim > 0 ? nn::matrix_weights(a, o.latent)
                                             : checked_multiply(rows, a.embed_dim, "config"),
                hidden = o.block == nn::Block::attention_only
                             ? 0
                             : (o.feed_forward.gated ? 3 : 2) * o.feed_forward.hidden_dim;
  const int64_t experts = o.experts.count,
                ffn = experts > 0 ? checked_multiply(hidden + 1, experts, "config") : hidden;
  return (o.cross_attention ? 2 : 1) * attention + checked_multiply(ffn, a.embed_dim, "config");
}

/// Throws ValueError for an impossible number of weights, before allocation.
inline void check_weights(int64_t embeddings, int64_t layer, int64_t layers) {
  constexpr int64_t kMost = int64_t{1} << 42;
  MH_CHECK(embeddings <= kMost && layer <= kMost / layers, ValueError, "config: ", embeddings,
           " weights of embeddings and ", layer, " in each of ", layers, " layers are more than 2^42");
}

/// Throws ValueError unless there are no buckets or they hold the distances.
inline void check_buckets(int64_t buckets, int64_t distance, bool bidirectional) {
  if (buckets == 0) return;
  MH_CHECK(std::max(buckets, distance) <= kBuckets.max, ValueError, "config: relative_buckets ", buckets,
           " and relative_distance ", distance, " must be at most ", kBuckets.max);
  nn::relative_buckets({buckets, distance, bidirectional});
}

/// Throws MemoryError unless this many f32 weights fit into available memory.
inline void check_weight_memory(int64_t weights) {
  check_memory(4.0 * static_cast<double>(weights), concat("model: ", weights, " weights"));
}

/// Matrices from N(0, std), those that write to the residual stream times `residual_scale`; biases 0. What has
/// `own` in its name stays as it is.
template <class Model>
void initialize_weights(Model& model, double std, Rng& rng, double residual_scale = 1,
                        std::string_view own = {}) {
  if (nn::UnfilledParameters::active()) return;
  for (auto& [name, tensor] : nn::named_parameters(model)) {
    if (!own.empty() && name.find(own) != name.npos) continue;
    if (tensor.rank() == 2) {
      const bool residual = name.ends_with("out_proj.weight") || name.ends_with("linear2.weight");
      fill_normal(tensor, 0, std * (residual ? residual_scale : 1), rng.next());
    } else if (name.ends_with("bias")) {
      tensor.fill(0);
    }
  }
}

/// nn::pack_matrices() of a model that is not packed yet.
template <class Model, class Make>
void pack_once(const char* who, Model& model, std::optional<nn::WeightDtype>& packed, nn::WeightDtype dtype,
               Make&& make) {
  MH_CHECK(!packed, ValueError, who, ": the weights are already packed, as ", kernels::name(*packed));
  for (const Tensor& parameter : nn::parameters(model)) {
    MH_CHECK(
        parameter.dtype() != Dtype::f64, ValueError, who,
        ": packed weights multiply f32 and 16-bit numbers, but the model is f64; convert it to f32 first");
  }
  const NoTape silent;
  nn::pack_matrices(model, make);
  packed = dtype;
}

}  // namespace multihead::models
