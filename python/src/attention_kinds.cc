// The relatives of attention(), which take the same keyword arguments.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>
#include <type_traits>

#include "multihead/ops/attention/composed.h"
#include "multihead/ops/attention/explain.h"
#include "python/src/attention.h"
#include "python/src/bindings.h"
#include "python/src/interrupt.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

// Defines name(lead…, *, attention's keywords) as f(lead…, options, score_mod), which gives a Tensor, then
// returned as Tensor or (Tensor, lse), or a text.
template <class... Lead>
struct Definition {
  template <class F, class... Names>
  static void add(nb::module_& m, const char* name, F f, const char* doc, const Names&... names) {
    m.def(
        name,
        [f](Lead... lead, nb::handle mask, std::optional<double> scale, float softcap, nb::handle bias,
            nb::handle alibi_slopes, nb::handle relative_bias, nb::handle relative_key,
            int64_t relative_center, float dropout_p, Rng* rng, const std::string& empty_row,
            const std::string& layout, AttentionCapture* capture, bool return_lse, bool allow_binary_bias,
            nb::handle score_mod, nb::handle sinks) -> nb::object {
          AttentionOptions options =
              to_options({mask, bias, alibi_slopes, relative_bias, relative_key, scale, softcap,
                          relative_center, dropout_p, rng, empty_row, layout, allow_binary_bias, sinks});
          options.capture = capture;
          Tensor lse;
          if (return_lse) options.lse = &lse;
          auto result = f(lead..., options, to_score_mod(score_mod));
          raise_faults("attention", options.mask, score_mod);
          if constexpr (std::is_same_v<decltype(result), Tensor>) {
            if (return_lse) return nb::make_tuple(std::move(result), std::move(lse));
          }
          return nb::cast(std::move(result));
        },
        names..., nb::kw_only(), "mask"_a = nb::none(), "scale"_a = nb::none(), "softcap"_a = 0.0f,
        "bias"_a = nb::none(), "alibi_slopes"_a = nb::none(), "relative_bias"_a = nb::none(),
        "relative_key"_a = nb::none(), "relative_center"_a = -1, "dropout_p"_a = 0.0f, "rng"_a = nb::none(),
        "empty_row"_a = "zero", "layout"_a = "bhtd", "capture"_a = nb::none(), "return_lse"_a = false,
        "allow_binary_bias"_a = false, "score_mod"_a = nb::none(), "sinks"_a = nb::none(), doc);
  }
};
using OfThree = Definition<nb::handle, nb::handle, nb::handle>;

struct Inputs {
  Tensor query, key, value;
};
Inputs to_inputs(const char* who, nb::handle query, nb::handle key, nb::handle value) {
  return {to_tensor(query, {who, "query"}), to_tensor(key, {who, "key"}), to_tensor(value, {who, "value"})};
}

void bind_packed_and_ragged(nb::module_& m) {
  Definition<nb::handle, int64_t, int64_t>::add(
      m, "attention_packed",
      [](nb::handle qkv, int64_t num_heads, int64_t num_kv_heads, const AttentionOptions& options,
         const ScoreMod& mod) {
        const Tensor x = to_tensor(qkv, {"attention_packed", "qkv"});
        return interruptible([&] { return attention_packed(x, {num_heads, num_kv_heads}, options, mod); });
      },
      "Self-attention on the output of one projection: qkv [B, T, (H + 2*Hkv)*D] -> [B, T, H*D], without "
      "copies;\notherwise as attention(). num_kv_heads 0 is num_heads.",
      "qkv"_a, "num_heads"_a, "num_kv_heads"_a = 0);
  Definition<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle>::add(
      m, "attention_ragged",
      [](nb::handle query, nb::handle key, nb::handle value, nb::handle cu_q, nb::handle cu_k,
         const AttentionOptions& options, const ScoreMod& mod) {
        constexpr const char* who = "attention_ragged";
        const Inputs x = to_inputs(who, query, key, value);
        const Tensor a = to_tensor(cu_q, {who, "cu_seqlens_q"}), b = to_tensor(cu_k, {who, "cu_seqlens_k"});
        return interruptible([&] { return attention_ragged(x.query, x.key, x.value, a, b, options, mod); });
      },
      "Sequences packed without padding: query [N, H, D], key [M, Hkv, D], value [M, Hkv, Dv] -> [N, H, "
      "Dv].\nSequence s has the query rows cu_seqlens_q[s] to cu_seqlens_q[s + 1], the keys likewise, and "
      "sees nothing of\nthe others. The log-sum-exp is [H, N]; otherwise as attention().",
      "query"_a.none(), "key"_a.none(), "value"_a.none(), "cu_seqlens_q"_a, "cu_seqlens_k"_a);
}

void bind_definition(nb::module_& m) {
  OfThree::add(
      m, "attention_composed",
      [](nb::handle query, nb::handle key, nb::handle value, const AttentionOptions& options,
         const ScoreMod& mod) {
        const Inputs x = to_inputs("attention_composed", query, key, value);
        return interruptible([&] { return attention_composed(x.query, x.key, x.value, options, mod); });
      },
      "attention() by its definition: plain loops in f64 over the whole [Tq, Tk] matrix, slow and easy to "
      "trust.\nSame arguments, shapes and gradients; layout 'bhtd' only.",
      "query"_a.none(), "key"_a.none(), "value"_a.none());
  m.def(
      "merge_attention",
      [](nb::handle a_out, nb::handle a_lse, nb::handle b_out, nb::handle b_lse) {
        constexpr const char* who = "merge_attention";
        const AttentionPart a{to_tensor(a_out, {who, "a_out"}), to_tensor(a_lse, {who, "a_lse"})};
        const AttentionPart b{to_tensor(b_out, {who, "b_out"}), to_tensor(b_lse, {who, "b_lse"})};
        AttentionPart part = unlocked([&] { return merge_attention(a, b); });
        return nb::make_tuple(std::move(part.out), std::move(part.lse));
      },
      "a_out"_a, "a_lse"_a, "b_out"_a, "b_lse"_a,
      "(out [..., Dv], lse [...]) of attention over the union of two disjoint key sets, from those of each "
      "(return_lse).\nfloat32, no gradient.");
}

void bind_explanations(nb::module_& m) {
  OfThree::add(
      m, "explain",
      [](nb::handle query, nb::handle key, nb::handle value, const AttentionOptions& options,
         const ScoreMod& mod) {
        const Inputs x = to_inputs("explain", query, key, value);
        return explain(x.query, x.key, x.value, options, mod).to_string();
      },
      "Which rule attention() follows and how it would run, as text; runs nothing.", "query"_a.none(),
      "key"_a.none(), "value"_a.none());
  Definition<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, nb::handle>::add(
      m, "plan",
      [](int64_t queries, int64_t head_dim, int64_t batch, int64_t heads, int64_t kv_heads, int64_t keys,
         int64_t value_dim, nb::handle dtype, const AttentionOptions& options, const ScoreMod& mod) {
        const AttentionShape shape{batch, heads,    kv_heads,  queries,
                                   keys,  head_dim, value_dim, to_dtype(dtype)};
        return plan(shape, options, mod).to_string();
      },
      "explain() from sizes, before any memory is taken: query [batch, heads, queries, head_dim], key "
      "[batch, kv_heads,\nkeys, head_dim], value [batch, kv_heads, keys, value_dim]; 0 is the query's "
      "number.",
      "queries"_a, "head_dim"_a, "batch"_a = 1, "heads"_a = 1, "kv_heads"_a = 0, "keys"_a = 0,
      "value_dim"_a = 0, "dtype"_a = "float32");
}

}  // namespace

void bind_attention_kinds(nb::module_& m) {
  bind_packed_and_ragged(m);
  bind_definition(m);
  bind_explanations(m);
}

}  // namespace multihead::python
