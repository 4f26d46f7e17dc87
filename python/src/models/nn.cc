#include "multihead/nn/attention.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include <cmath>

#include "multihead/nn/embedding.h"
#include "multihead/nn/feed_forward.h"
#include "multihead/nn/linear.h"
#include "multihead/nn/norm.h"
#include "multihead/nn/positions.h"
#include "python/src/attention/attention_keywords.h"
#include "python/src/bindings.h"
#include "python/src/def_op.h"
#include "python/src/models/decoding.h"
#include "python/src/modules.h"
#include "python/src/names.h"

namespace multihead::python {
namespace {

void bind_linear(nb::module_& m) {
  nb::class_<nn::Linear> linear(m, "Linear", "y = x @ weight.T + bias; initialised as PyTorch's.");
  linear.def(
      "__init__",
      [](nn::Linear* self, int64_t in_features, int64_t out_features, bool bias, Rng* rng) {
        if (in_features <= 0 || out_features <= 0) throw nb::value_error("Linear: sizes must be positive");
        new (self) nn::Linear(in_features, out_features, rng_or_default(rng), {.bias = bias});
      },
      "in_features"_a, "out_features"_a, nb::kw_only(), "bias"_a = true, "rng"_a = nb::none());
  def_op(
      linear, "__call__", "Linear", [](const nn::Linear& l, const Tensor& x) { return l(x); }, "x"_a);
  linear.def_prop_ro("in_features", &nn::Linear::in_features);
  linear.def_prop_ro("out_features", &nn::Linear::out_features);
  bind_weight(linear, "weight", &nn::Linear::weight);
  bind_weight(linear, "bias", &nn::Linear::bias);
  bind_module(linear, "Linear");

  nb::class_<nn::Embedding> embedding(m, "Embedding", "Rows of a table by number; initialised N(0, 1).");
  embedding.def(
      "__init__",
      [](nn::Embedding* self, int64_t count, int64_t embed_dim, Rng* rng) {
        if (count <= 0 || embed_dim <= 0) throw nb::value_error("Embedding: sizes must be positive");
        new (self) nn::Embedding(count, embed_dim, rng_or_default(rng));
      },
      "count"_a, "embed_dim"_a, nb::kw_only(), "rng"_a = nb::none());
  def_op(
      embedding, "__call__", "Embedding", [](const nn::Embedding& e, const Tensor& ids) { return e(ids); },
      "ids"_a);
  bind_weight(embedding, "weight", &nn::Embedding::weight);
  bind_module(embedding, "Embedding");
}

void bind_norms(nb::module_& m) {
  nb::class_<nn::Norm> norm(m, "Norm", "Layer norm or RMS norm over the last axis.");
  norm.def(
      "__init__",
      [](nn::Norm* self, int64_t size, const std::string& kind, double eps, bool bias) {
        new (self) nn::Norm(size, {.kind = norm_kind_of(kind), .eps = eps, .bias = bias});
      },
      "size"_a, nb::kw_only(), "kind"_a = "layer", "eps"_a = 1e-5, "bias"_a = true);
  def_op(
      norm, "__call__", "Norm", [](const nn::Norm& n, const Tensor& x) { return n(x); }, "x"_a);
  bind_weight(norm, "weight", &nn::Norm::weight);
  bind_weight(norm, "bias", &nn::Norm::bias);
  bind_module(norm, "Norm");

  nb::class_<nn::FeedForward> ffn(m, "FeedForward", "fc2(activation(fc1(x)))");
  ffn.def(
      "__init__",
      [](nn::FeedForward* self, int64_t embed_dim, int64_t hidden_dim, const std::string& activation,
         bool gated, bool bias, double dropout_p, Rng* rng) {
        new (self) nn::FeedForward({.embed_dim = embed_dim,
                                    .hidden_dim = hidden_dim,
                                    .activation = activation_of(activation),
                                    .gated = gated,
                                    .bias = bias,
                                    .dropout_p = dropout_p},
                                   rng_or_default(rng));
      },
      "embed_dim"_a, "hidden_dim"_a, nb::kw_only(), "activation"_a = "gelu", "gated"_a = false,
      "bias"_a = true, "dropout_p"_a = 0.0, "rng"_a = nb::none());
  def_op(
      ffn, "__call__", "FeedForward",
      [](const nn::FeedForward& f, const Tensor& x, Rng* rng) { return f(x, rng); }, "x"_a, nb::kw_only(),
      "rng"_a = nb::none());
  bind_part(ffn, "fc1", &nn::FeedForward::fc1);
  bind_part(ffn, "fc2", &nn::FeedForward::fc2);
  bind_module(ffn, "FeedForward");
}

void bind_positions(nb::module_& m) {
  using Encoding = nn::SinusoidalPositionalEncoding;
  nb::class_<Encoding> c(m, "SinusoidalPositionalEncoding",
                         "x + sinusoids, then dropout: x [B, T, embed_dim] of any length. Nothing to train.");
  c.def(
      "__init__",
      [](Encoding* self, int64_t embed_dim, double dropout_p, const std::string& layout) {
        new (self) Encoding(embed_dim, dropout_p, to_enum<nn::SinusoidLayout>(layout, "layout"));
      },
      "embed_dim"_a, nb::kw_only(), "dropout_p"_a = 0.0, "layout"_a = "interleaved");
  c.def(
      "__call__",
      [](const Encoding& encoding, nb::handle x, nb::handle starts, Rng* rng) {
        const Tensor t = to_tensor(x, {"SinusoidalPositionalEncoding", "x"});
        const auto from = to_integers(starts, {"SinusoidalPositionalEncoding", "starts"});
        return unlocked([&] { return encoding(t, from, rng); });
      },
      "x"_a, "starts"_a = 0, "rng"_a = nb::none(),
      "starts: position of the first token, one for all or one per row. Dropout acts exactly when rng is "
      "given.");
  c.def("__getstate__", [](const Encoding& e) {
    return nb::make_tuple(e.embed_dim(), e.dropout_p(), std::string(word_of(e.layout())));
  });
  c.def("__setstate__", [](Encoding& e, const std::tuple<int64_t, double, std::string>& state) {
    const auto& [embed_dim, dropout_p, layout] = state;
    new (&e) Encoding(embed_dim, dropout_p, to_enum<nn::SinusoidLayout>(layout, "layout"));
  });
  c.def("__repr__", [](const Encoding& e) {
    return concat("SinusoidalPositionalEncoding(", e.embed_dim(), ", dropout_p=", e.dropout_p(), ", layout='",
                  word_of(e.layout()), "')");
  });
  nb::class_<nn::RelativeBias> relative(
      m, "RelativeBias",
      "A bias of the scores for each head and bucket of distances (T5), for attention's relative_bias.");
  relative.def(
      "__init__",
      [](nn::RelativeBias* self, int64_t num_heads, int64_t buckets, int64_t max_distance, bool bidirectional,
         Rng* rng) {
        if (num_heads <= 0) throw nb::value_error("RelativeBias: num_heads must be positive");
        new (self) nn::RelativeBias({buckets, max_distance, bidirectional}, num_heads, rng_or_default(rng));
      },
      "num_heads"_a, nb::kw_only(), "buckets"_a = 32, "max_distance"_a = 128, "bidirectional"_a = true,
      "rng"_a = nb::none());
  relative.def(
      "__call__", [](const nn::RelativeBias& bias) { return bias(); }, "[num_heads, 2 * max_distance + 1]");
  bind_weight(relative, "weight", &nn::RelativeBias::weight);
  bind_module(relative, "RelativeBias");
  m.def(
      "relative_buckets",
      [](int64_t count, int64_t max_distance, bool bidirectional) {
        return nn::relative_buckets({count, max_distance, bidirectional});
      },
      "count"_a = 32, nb::kw_only(), "max_distance"_a = 128, "bidirectional"_a = true,
      "T5's bucket of key position - query position from -max_distance to max_distance: int64.");
  m.def(
      "position_ids",
      [](int64_t batch, int64_t length, nb::handle starts, std::optional<int64_t> limit) {
        const auto from = to_integers(starts, {"position_ids", "starts"});
        return limit ? nn::position_ids(batch, length, from, *limit) : nn::position_ids(batch, length, from);
      },
      "batch"_a, "length"_a, "starts"_a = 0, "limit"_a = nb::none(),
      "[B, T] position ids: row b counts from starts[b], up to `limit`.");
  def_op(m, "sinusoidal_positions", &nn::sinusoidal_positions, "length"_a, "embed_dim"_a, "start"_a = 0,
         "layout"_a = "interleaved", "base"_a = 10000.0,
         "Positions start, start + 1, … as rows of sines and cosines: [length, embed_dim], float32.");
}

using Options = nn::MultiHeadAttentionOptions;

void construct_attention(nn::MultiHeadAttention* self, int64_t embed_dim, int64_t num_heads,
                         int64_t num_kv_heads, int64_t head_dim, int64_t value_head_dim, int64_t query_dim,
                         int64_t key_dim, int64_t value_dim, bool query_bias, bool key_bias, bool value_bias,
                         bool out_bias, std::optional<double> scale, double dropout_p, bool qk_norm,
                         double qk_norm_eps, bool zero_attn, Rng* rng) {
  new (self) nn::MultiHeadAttention(Options{.embed_dim = embed_dim,
                                            .num_heads = num_heads,
                                            .num_kv_heads = num_kv_heads,
                                            .head_dim = head_dim,
                                            .value_head_dim = value_head_dim,
                                            .query_dim = query_dim,
                                            .key_dim = key_dim,
                                            .value_dim = value_dim,
                                            .query_bias = query_bias,
                                            .key_bias = key_bias,
                                            .value_bias = value_bias,
                                            .out_bias = out_bias,
                                            .scale = scale,
                                            .dropout_p = dropout_p,
                                            .qk_norm = qk_norm,
                                            .qk_norm_eps = qk_norm_eps,
                                            .zero_attn = zero_attn},
                                    rng_or_default(rng));
}

using Call = nn::AttentionCall;
const auto kModuleKeywords =
    std::tuple_cat(kLayerKeywords, std::make_tuple(option<&Call::residual>("residual")));
const auto kDecodeKeywords =
    std::tuple_cat(kAttentionKeywords, std::make_tuple(option<&Call::rotary>("rotary")));
const auto kAttendKeywords = std::tuple_cat(kAttentionKeywords, std::make_tuple(option<&Call::rng>("rng")));

Tensor call_attention(const nn::MultiHeadAttention& a, nb::handle query, nb::handle key, nb::handle value,
                      const AttentionArguments& to) {
  const Tensor q = to_tensor(query, {to.who, "query"});
  const Tensor k = key.is_none() ? q : to_tensor(key, {to.who, "key"});
  const Tensor v = value.is_none() || value.is(key) ? k : to_tensor(value, {to.who, "value"});
  return unlocked([&] { return a(q, k, v, to.call); });
}

// Decoding: new tokens against a state, and queries against a memory that was projected once.
void bind_attention_steps(nb::class_<nn::MultiHeadAttention>& c) {
  using Memory = std::pair<Tensor, Tensor>;
  c.def(
      "make_state",
      [](const nn::MultiHeadAttention& a, int64_t batch, int64_t capacity, int64_t window, nb::handle dtype) {
        return make_layer_state(a, batch, capacity, window, dtype);
      },
      "batch"_a, "capacity"_a, nb::kw_only(), "window"_a = 0, "dtype"_a = nb::none(),
      "A DecodeState of one layer with room for `capacity` tokens per row. window > 0: a ring for tokens "
      "that see that\nmany keys.");
  Attention<const nn::MultiHeadAttention&, nb::handle, nn::DecodeState&, nb::handle>::bind(
      c, "decode", "MultiHeadAttention.decode", kDecodeKeywords,
      [](const nn::MultiHeadAttention& a, nb::handle x, nn::DecodeState& state, nb::handle counts,
         const AttentionArguments& to) {
        const Tensor t = to_tensor(x, {to.who, "x"});
        const std::vector<int64_t> fresh = to_counts(counts, to.who);
        return unlocked([&] {
          return move_on(to.who, t, state, fresh, [&](const nn::CacheUpdate& update) {
            check_positions(to.who, state, to.call);
            return a.decode(t, update, to.call);
          });
        });
      },
      "Self-attention of the next tokens x [B, T, embed_dim] to those of the state and, causally, to "
      "themselves; then they\njoin it: counts[b] of row b, all by default. Nothing is recorded.",
      "x"_a, "state"_a, nb::kw_only(), "counts"_a = nb::none());
  c.def(
      "project_memory",
      [](const nn::MultiHeadAttention& a, nb::handle key, nb::handle value) {
        const Tensor k = to_tensor(key, {"project_memory", "key"});
        const Tensor v = value.is_none() ? k : to_tensor(value, {"project_memory", "value"});
        const nn::KvCache memory = unlocked([&] { return a.project_memory(k, v); });
        return Memory{memory.key, memory.value};
      },
      "key"_a, "value"_a = nb::none(),
      "(keys, values) of a memory [B, Tk, dim], [B, Hkv, Tk, D] each: for attend(), as often as wanted.");
  Attention<const nn::MultiHeadAttention&, nb::handle, const Memory&>::bind(
      c, "attend", "MultiHeadAttention.attend", kAttendKeywords,
      [](const nn::MultiHeadAttention& a, nb::handle query, const Memory& memory,
         const AttentionArguments& to) {
        const Tensor q = to_tensor(query, {to.who, "query"});
        return unlocked([&] { return a.attend(q, {memory.first, memory.second}, to.call); });
      },
      "Attention of query [B, Tq, query_dim] to a memory from project_memory(); each of its rows may be used "
      "by several\nconsecutive rows of queries.",
      "query"_a, "memory"_a, nb::kw_only());
}

void bind_attention_parts(nb::class_<nn::MultiHeadAttention>& c) {
  using A = nn::MultiHeadAttention;
  bind_weight(c, "in_proj_weight", &A::in_proj_weight);
  bind_weight(c, "in_proj_bias", &A::in_proj_bias);
  bind_part(c, "q_proj", &A::q_proj);
  bind_part(c, "k_proj", &A::k_proj);
  bind_part(c, "v_proj", &A::v_proj);
  bind_part(c, "out_proj", &A::out_proj);
  bind_part(c, "q_norm", &A::q_norm);
  bind_part(c, "k_norm", &A::k_norm);
#define MH_OPTION(name) c.def_prop_ro(#name, [](const A& a) { return a.options().name; })
  MH_OPTION(embed_dim), MH_OPTION(num_heads), MH_OPTION(num_kv_heads), MH_OPTION(head_dim);
  MH_OPTION(value_head_dim), MH_OPTION(query_dim), MH_OPTION(key_dim), MH_OPTION(value_dim);
  MH_OPTION(dropout_p), MH_OPTION(qk_norm), MH_OPTION(zero_attn);
#undef MH_OPTION
  c.def_prop_ro(
      "scale",
      [](const A& a) {
        return a.options().scale.value_or(1 / std::sqrt(static_cast<double>(a.options().head_dim)));
      },
      "What scores are multiplied by, 1/sqrt(head_dim) unless given.");
}

void bind_attention_module(nb::module_& m) {
  nb::class_<nn::MultiHeadAttention> c(
      m, "MultiHeadAttention",
      "Project, attend per head, concatenate, project.\n\nShapes    query [B, Tq, query_dim], key [B, Tk, "
      "key_dim], value [B, Tk, value_dim] -> [B, Tq, embed_dim]\nWeights   in_proj_weight, in_proj_bias, as "
      "torch.nn.MultiheadAttention, or q_proj, k_proj, v_proj where sizes or biases differ (torch's go "
      "through "
      "multihead.torch.from_torch); out_proj");
  c.def("__init__", &construct_attention, "embed_dim"_a, "num_heads"_a, nb::kw_only(), "num_kv_heads"_a = 0,
        "head_dim"_a = 0, "value_head_dim"_a = 0, "query_dim"_a = 0, "key_dim"_a = 0, "value_dim"_a = 0,
        "query_bias"_a = true, "key_bias"_a = true, "value_bias"_a = true, "out_bias"_a = true,
        "scale"_a = nb::none(), "dropout_p"_a = 0.0, "qk_norm"_a = false, "qk_norm_eps"_a = 1e-6,
        "zero_attn"_a = false, "rng"_a = nb::none());
  Attention<const nn::MultiHeadAttention&, nb::handle, nb::handle, nb::handle>::bind(
      c, "__call__", "MultiHeadAttention", kModuleKeywords, &call_attention,
      "key and value default to query and key. Dropout acts exactly when rng is given.", "query"_a,
      "key"_a = nb::none(), "value"_a = nb::none(), nb::kw_only());
  bind_attention_parts(c);
  bind_attention_steps(c);
  bind_module(c, "MultiHeadAttention");
}

}  // namespace

Rng& default_rng() {
  static Rng rng(0);
  return rng;
}

void bind_nn(nb::module_& m) {
  m.def(
      "manual_seed", [](uint64_t seed) { default_rng() = Rng(seed); }, "seed"_a,
      "Restarts the generator of modules that are made without rng.");
  bind_linear(m);
  bind_norms(m);
  bind_positions(m);
  bind_attention_module(m);
}

}  // namespace multihead::python
