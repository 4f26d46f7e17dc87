#include "multihead/nn/attention.h"
#include "multihead/nn/embedding.h"
#include "multihead/nn/feed_forward.h"
#include "multihead/nn/linear.h"
#include "multihead/nn/norm.h"
#include "multihead/nn/positions.h"
#include "python/src/attention.h"
#include "python/src/bindings.h"
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
  linear.def("__call__", [](const nn::Linear& l, nb::handle x) {
    const Tensor t = to_tensor(x, {"Linear", "x"});
    return unlocked([&] { return l(t); });
  });
  linear.def_prop_ro("weight", [](const nn::Linear& l) { return l.weight; });
  linear.def_prop_ro("bias", [](const nn::Linear& l) { return optional_tensor(l.bias); });
  bind_module(linear, "Linear");

  nb::class_<nn::Embedding> embedding(m, "Embedding", "Rows of a table by number; initialised N(0, 1).");
  embedding.def(
      "__init__",
      [](nn::Embedding* self, int64_t count, int64_t embed_dim, Rng* rng) {
        if (count <= 0 || embed_dim <= 0) throw nb::value_error("Embedding: sizes must be positive");
        new (self) nn::Embedding(count, embed_dim, rng_or_default(rng));
      },
      "count"_a, "embed_dim"_a, nb::kw_only(), "rng"_a = nb::none());
  embedding.def("__call__", [](const nn::Embedding& e, nb::handle ids) {
    const Tensor t = to_tensor(ids, {"Embedding", "ids"});
    return unlocked([&] { return e(t); });
  });
  embedding.def_prop_ro("weight", [](const nn::Embedding& e) { return e.weight; });
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
  norm.def("__call__", [](const nn::Norm& n, nb::handle x) {
    const Tensor t = to_tensor(x, {"Norm", "x"});
    return unlocked([&] { return n(t); });
  });
  norm.def_prop_ro("weight", [](const nn::Norm& n) { return n.weight; });
  norm.def_prop_ro("bias", [](const nn::Norm& n) { return optional_tensor(n.bias); });
  bind_module(norm, "Norm");

  nb::class_<nn::FeedForward> ffn(m, "FeedForward", "fc2(activation(fc1(x)))");
  ffn.def(
      "__init__",
      [](nn::FeedForward* self, int64_t embed_dim, int64_t hidden_dim, const std::string& activation,
         bool gated, bool bias, double dropout_p, Rng* rng) {
        new (self) nn::FeedForward({embed_dim, hidden_dim, activation_of(activation), gated, bias, dropout_p},
                                   rng_or_default(rng));
      },
      "embed_dim"_a, "hidden_dim"_a, nb::kw_only(), "activation"_a = "gelu", "gated"_a = false,
      "bias"_a = true, "dropout_p"_a = 0.0, "rng"_a = nb::none());
  ffn.def(
      "__call__",
      [](const nn::FeedForward& f, nb::handle x, Rng* rng) {
        const Tensor t = to_tensor(x, {"FeedForward", "x"});
        return unlocked([&] { return f(t, rng); });
      },
      "x"_a, nb::kw_only(), "rng"_a = nb::none());
  bind_module(ffn, "FeedForward");
}

nn::SinusoidLayout sinusoid_layout_of(const std::string& name) {
  return to_enum<nn::SinusoidLayout>(
      name, "layout",
      {{"interleaved", nn::SinusoidLayout::interleaved}, {"halves", nn::SinusoidLayout::halves}});
}

void bind_positions(nb::module_& m) {
  using Encoding = nn::SinusoidalPositionalEncoding;
  nb::class_<Encoding> c(m, "SinusoidalPositionalEncoding",
                         "x + sinusoids, then dropout: x [B, T, embed_dim] of any length. Nothing to train.");
  c.def(
      "__init__",
      [](Encoding* self, int64_t embed_dim, double dropout_p, const std::string& layout) {
        new (self) Encoding(embed_dim, dropout_p, sinusoid_layout_of(layout));
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
  m.def(
      "position_ids",
      [](int64_t batch, int64_t length, nb::handle starts, std::optional<int64_t> limit) {
        const auto from = to_integers(starts, {"position_ids", "starts"});
        return limit ? nn::position_ids(batch, length, from, *limit) : nn::position_ids(batch, length, from);
      },
      "batch"_a, "length"_a, "starts"_a = 0, "limit"_a = nb::none(),
      "[B, T] position ids: row b counts from starts[b], up to `limit`.");
  m.def(
      "sinusoidal_positions",
      [](int64_t length, int64_t embed_dim, int64_t start, const std::string& layout, double base) {
        return nn::sinusoidal_positions(length, embed_dim, start, sinusoid_layout_of(layout), base);
      },
      "length"_a, "embed_dim"_a, "start"_a = 0, "layout"_a = "interleaved", "base"_a = 10000.0,
      "Positions start, start + 1, … as rows of sines and cosines: [length, embed_dim].");
}

using Options = nn::MultiHeadAttentionOptions;

void construct_attention(nn::MultiHeadAttention* self, int64_t embed_dim, int64_t num_heads,
                         int64_t num_kv_heads, int64_t head_dim, int64_t value_head_dim, int64_t query_dim,
                         int64_t key_dim, int64_t value_dim, bool query_bias, bool key_bias, bool value_bias,
                         bool out_bias, std::optional<double> scale, double dropout_p, bool qk_norm,
                         double qk_norm_eps, bool zero_attn, Rng* rng) {
  new (self) nn::MultiHeadAttention(
      Options{embed_dim, num_heads, num_kv_heads, head_dim, value_head_dim, query_dim, key_dim, value_dim,
              query_bias, key_bias, value_bias, out_bias, scale, dropout_p, qk_norm, qk_norm_eps, zero_attn},
      rng_or_default(rng));
}

Tensor call_attention(const nn::MultiHeadAttention& a, nb::handle query, nb::handle key, nb::handle value,
                      nb::handle mask, Rng* rng, const RotaryTable* rotary, nb::handle bias,
                      nb::handle alibi_slopes, nb::handle relative_bias, float softcap, nb::handle score_mod,
                      const std::string& empty_row, AttentionCapture* capture, nb::handle residual,
                      nb::handle sinks) {
  constexpr const char* who = "MultiHeadAttention";
  const Tensor q = to_tensor(query, {who, "query"});
  const Tensor k = key.is_none() ? q : to_tensor(key, {who, "key"});
  const Tensor v = value.is_none() || value.is(key) ? k : to_tensor(value, {who, "value"});
  nn::AttentionCall call;
  call.mask = to_mask(mask);
  call.rng = rng;
  call.rotary = rotary;
  call.bias = to_tensor_or_none(bias, {who, "bias"});
  call.alibi_slopes = to_tensor_or_none(alibi_slopes, {who, "alibi_slopes"});
  call.relative_bias = to_tensor_or_none(relative_bias, {who, "relative_bias"});
  call.sinks = to_tensor_or_none(sinks, {who, "sinks"});
  call.softcap = softcap;
  call.score_mod = to_score_mod(score_mod);
  call.empty_row = empty_row_of(empty_row);
  call.capture = capture;
  call.residual = to_tensor_or_none(residual, {who, "residual"});
  return unlocked([&] { return a(q, k, v, call); });
}

void bind_attention_module(nb::module_& m) {
  nb::class_<nn::MultiHeadAttention> c(m, "MultiHeadAttention",
                                       "Project, attend per head, concatenate, project.\n\n"
                                       "Shapes    query [B, Tq, query_dim], key [B, Tk, key_dim], value [B, "
                                       "Tk, value_dim] -> [B, Tq, embed_dim]\n"
                                       "Weights   as torch.nn.MultiheadAttention: in_proj_weight, "
                                       "in_proj_bias, or q_proj, k_proj, v_proj; out_proj");
  c.def("__init__", &construct_attention, "embed_dim"_a, "num_heads"_a, nb::kw_only(), "num_kv_heads"_a = 0,
        "head_dim"_a = 0, "value_head_dim"_a = 0, "query_dim"_a = 0, "key_dim"_a = 0, "value_dim"_a = 0,
        "query_bias"_a = true, "key_bias"_a = true, "value_bias"_a = true, "out_bias"_a = true,
        "scale"_a = nb::none(), "dropout_p"_a = 0.0, "qk_norm"_a = false, "qk_norm_eps"_a = 1e-6,
        "zero_attn"_a = false, "rng"_a = nb::none());
  c.def("__call__", &call_attention, "query"_a, "key"_a = nb::none(), "value"_a = nb::none(), nb::kw_only(),
        "mask"_a = nb::none(), "rng"_a = nb::none(), "rotary"_a = nb::none(), "bias"_a = nb::none(),
        "alibi_slopes"_a = nb::none(), "relative_bias"_a = nb::none(), "softcap"_a = 0.0f,
        "score_mod"_a = nb::none(), "empty_row"_a = "zero", "capture"_a = nb::none(),
        "residual"_a = nb::none(), "sinks"_a = nb::none(),
        "key and value default to query and key. Dropout acts exactly when rng is given.");
  c.def_prop_ro("embed_dim", [](const nn::MultiHeadAttention& a) { return a.options().embed_dim; });
  c.def_prop_ro("num_heads", [](const nn::MultiHeadAttention& a) { return a.options().num_heads; });
  c.def_prop_ro("num_kv_heads", [](const nn::MultiHeadAttention& a) { return a.options().num_kv_heads; });
  c.def_prop_ro("head_dim", [](const nn::MultiHeadAttention& a) { return a.options().head_dim; });
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
