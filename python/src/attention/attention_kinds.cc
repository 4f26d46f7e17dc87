// The relatives of attention(), which take the same keyword arguments.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include "multihead/ops/attention/composed.h"
#include "multihead/ops/attention/inspect/explain.h"
#include "python/src/attention/attention_keywords.h"
#include "python/src/bindings.h"
#include "python/src/def_op.h"
#include "python/src/interrupt.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

struct Inputs {
  Tensor query, key, value;
};
Inputs to_inputs(const char* who, nb::handle query, nb::handle key, nb::handle value) {
  return {to_tensor(query, {who, "query"}), to_tensor(key, {who, "key"}), to_tensor(value, {who, "value"})};
}

void bind_packed_and_ragged(nb::module_& m) {
  Attention<nb::handle, int64_t, int64_t>::bind(
      m, "attention_packed", "attention", kFunctionKeywords,
      [](nb::handle qkv, int64_t num_heads, int64_t num_kv_heads, AttentionArguments& to) {
        const Tensor x = to_tensor(qkv, {"attention_packed", "qkv"});
        return with_lse(interruptible([&] {
                          return attention_packed(x, {num_heads, num_kv_heads}, to.call, to.call.score_mod);
                        }),
                        to);
      },
      "Self-attention on the output of one projection: qkv [B, T, (H + 2*Hkv)*D] -> [B, T, H*D], without "
      "copies;\notherwise as attention(). num_kv_heads 0 is num_heads.",
      "qkv"_a, "num_heads"_a, "num_kv_heads"_a = 0, nb::kw_only());
  Attention<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle>::bind(
      m, "attention_ragged", "attention", kFunctionKeywords,
      [](nb::handle query, nb::handle key, nb::handle value, nb::handle cu_q, nb::handle cu_k,
         AttentionArguments& to) {
        constexpr const char* who = "attention_ragged";
        const Inputs x = to_inputs(who, query, key, value);
        const Tensor a = to_tensor(cu_q, {who, "cu_seqlens_q"}), b = to_tensor(cu_k, {who, "cu_seqlens_k"});
        return with_lse(interruptible([&] {
                          return attention_ragged(x.query, x.key, x.value, a, b, to.call, to.call.score_mod);
                        }),
                        to);
      },
      "Sequences packed without padding: query [N, H, D], key [M, Hkv, D], value [M, Hkv, Dv] -> [N, H, "
      "Dv].\nSequence s has the query rows cu_seqlens_q[s] to cu_seqlens_q[s + 1], the keys likewise, and "
      "sees nothing of\nthe others. The log-sum-exp is [H, N]; otherwise as attention().",
      "query"_a.none(), "key"_a.none(), "value"_a.none(), "cu_seqlens_q"_a, "cu_seqlens_k"_a, nb::kw_only());
}

void bind_definition(nb::module_& m) {
  Attention<nb::handle, nb::handle, nb::handle>::bind(
      m, "attention_composed", "attention", kFunctionKeywords,
      [](nb::handle query, nb::handle key, nb::handle value, AttentionArguments& to) {
        const Inputs x = to_inputs("attention_composed", query, key, value);
        return with_lse(interruptible([&] {
                          return attention_composed(x.query, x.key, x.value, to.call, to.call.score_mod);
                        }),
                        to);
      },
      "attention() composed of plain ops in f64 over the whole [Tq, Tk] matrix, slow and easy to trust.\n"
      "Same arguments, shapes and gradients; layout 'bhtd' only, neither sparsemax nor entmax15, and of a "
      "capture all\nweights alone.",
      "query"_a.none(), "key"_a.none(), "value"_a.none(), nb::kw_only());
  def_op(
      m, "merge_attention",
      [](const Tensor& a_out, const Tensor& a_lse, const Tensor& b_out, const Tensor& b_lse) {
        AttentionPart part = merge_attention({a_out, a_lse}, {b_out, b_lse});
        return std::pair(std::move(part.out), std::move(part.lse));
      },
      "a_out"_a, "a_lse"_a, "b_out"_a, "b_lse"_a,
      "(out [..., Dv], lse [...]) of attention over the union of two disjoint key sets, from those of each "
      "(return_lse).\nfloat32 or float64; a sink counts in one of the two. Gradient: all four.");
}

void bind_explanations(nb::module_& m) {
  Attention<nb::handle, nb::handle, nb::handle>::bind(
      m, "explain", "attention", kFunctionKeywords,
      [](nb::handle query, nb::handle key, nb::handle value, AttentionArguments& to) {
        const Inputs x = to_inputs("explain", query, key, value);
        return nb::cast(explain(x.query, x.key, x.value, to.call, to.call.score_mod).to_string());
      },
      "Which rule attention() follows and how it would run, as text; runs nothing.", "query"_a.none(),
      "key"_a.none(), "value"_a.none(), nb::kw_only());
  Attention<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, nb::handle>::bind(
      m, "plan", "attention", kFunctionKeywords,
      [](int64_t queries, int64_t head_dim, int64_t batch, int64_t heads, int64_t kv_heads, int64_t keys,
         int64_t value_dim, nb::handle dtype, AttentionArguments& to) {
        const AttentionShape shape{batch, heads,    kv_heads,  queries,
                                   keys,  head_dim, value_dim, to_dtype(dtype)};
        return nb::cast(plan(shape, to.call, to.call.score_mod).to_string());
      },
      "explain() from sizes, before any memory is taken: query [batch, heads, queries, head_dim], key "
      "[batch, kv_heads,\nkeys, head_dim], value [batch, kv_heads, keys, value_dim]; 0 is the query's "
      "number.",
      "queries"_a, "head_dim"_a, "batch"_a = 1, "heads"_a = 1, "kv_heads"_a = 0, "keys"_a = 0,
      "value_dim"_a = 0, "dtype"_a = "float32", nb::kw_only());
}

}  // namespace

void bind_attention_kinds(nb::module_& m) {
  bind_packed_and_ragged(m);
  bind_definition(m);
  bind_explanations(m);
}

}  // namespace multihead::python
