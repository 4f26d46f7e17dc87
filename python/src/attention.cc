#include "python/src/attention.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <string_view>

#include "multihead/core/error.h"
#include "multihead/nn/positions.h"
#include "multihead/ops/attention/mask.h"
#include "multihead/ops/attention/profiles.h"
#include "python/src/attention_keywords.h"
#include "python/src/bindings.h"
#include "python/src/interrupt.h"
#include "python/src/names.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

Diagonal to_diagonal(nb::handle align) {
  if (PyUnicode_Check(align.ptr())) {
    return to_enum<Align>(nb::cast<std::string>(align), "align",
                          {{"end", Align::end}, {"start", Align::start}});
  }
  if (PyLong_Check(align.ptr())) return Diagonal(to_integer(align, {"mask", "align"}));
  return Diagonal(to_tensor(align, {"mask", "align"}));
}

Mask documents_mask(nb::handle query_ids, nb::handle key_ids) {
  const Tensor q = to_tensor(query_ids, {"documents", "query_ids"});
  return key_ids.is_none() ? documents(q) : documents(q, to_tensor(key_ids, {"documents", "key_ids"}));
}

void bind_masks(nb::module_& m) {
  nb::class_<Mask>(m, "Mask", "A set of allowed (query, key) pairs; parts are combined with &.")
      .def(nb::init<>())
      .def("__and__", [](const Mask& a, const Mask& b) { return a & b; })
      .def("__repr__", &Mask::to_string)
      .def("__bool__", [](const Mask&) -> bool {
        throw nb::type_error("Mask: has no truth value; compose masks with &, not with 'and'");
      });
  m.def(
      "keep",
      [](nb::handle f) {
        return keep(to_tensor(f, {"keep", "flags"}));
      },
      "flags"_a, "True = may attend; bool, broadcast right-aligned to [B, H, Tq, Tk].");
  m.def(
      "drop",
      [](nb::handle f) {
        return drop(to_tensor(f, {"drop", "flags"}));
      },
      "flags"_a, "True = may not attend; bool, broadcast right-aligned to [B, H, Tq, Tk].");
  m.def(
      "causal", [](nb::handle align) { return causal(to_diagonal(align)); }, "align"_a = "end",
      "Query i sees keys j <= i + offset. align: 'end' (the last query sees the last key), 'start', an "
      "offset, or\n"
      "one offset per sample.");
  m.def(
      "window",
      [](int64_t left, int64_t right, nb::handle align) { return window(left, right, to_diagonal(align)); },
      "left"_a, "right"_a, "align"_a = "end",
      "Keys from left before to right after the diagonal; -1 leaves a side open.");
  m.def(
      "prefix",
      [](nb::handle length, nb::handle align) {
        if (PyLong_Check(length.ptr()))
          return prefix(to_integer(length, {"prefix", "length"}), to_diagonal(align));
        return prefix(to_tensor(length, {"prefix", "length"}), to_diagonal(align));
      },
      "length"_a, "align"_a = "end", "Causal, except that everybody sees the first keys.");
  m.def(
      "lengths",
      [](nb::handle n) {
        return lengths(to_tensor(n, {"lengths", "valid_lens"}));
      },
      "valid_lens"_a, "Keys j < valid_lens: integers [B] per sample or [B, Tq] per query.");
  m.def(
      "query_lengths",
      [](nb::handle n) {
        return query_lengths(to_tensor(n, {"query_lengths", "valid_lens"}));
      },
      "valid_lens"_a, "Queries i < valid_lens [B]; later rows are empty.");
  m.def("documents", &documents_mask, "query_ids"_a, "key_ids"_a = nb::none(),
        "Query and key of the same document: integer ids [T] or [B, T].");
  m.def(
      "blocks",
      [](nb::handle f, int64_t q, int64_t k) {
        return blocks(to_tensor(f, {"blocks", "flags"}), q, k);
      },
      "flags"_a, "query_block"_a, "key_block"_a, "Block-sparse: bool flags select the allowed blocks.");
  m.def("alibi_slopes", &nn::alibi_slopes, "num_heads"_a, "Slopes [H] of attention with linear biases.");
}

void bind_capture(nb::module_& m) {
  using C = AttentionCapture;
  const auto tensor = [](Tensor C::*member) {
    return [member](const C& c) { return (c.*member).defined() ? std::optional(c.*member) : std::nullopt; };
  };
  nb::class_<C>(m, "AttentionCapture",
                "What to look at inside attention; pass it as capture= and read it after the call.")
      .def(
          "__init__",
          [](C* self, bool weights, const std::string& stage, std::vector<int64_t> heads,
             std::vector<int64_t> rows, bool key_mass, bool entropy, int64_t top_k) {
            new (self) C{weights,
                         stage_of(stage),
                         std::move(heads),
                         std::move(rows),
                         key_mass,
                         entropy,
                         top_k,
                         {},
                         {},
                         {},
                         {},
                         {}};
          },
          nb::kw_only(), "weights"_a = true, "stage"_a = "probabilities", "heads"_a = std::vector<int64_t>(),
          "query_rows"_a = std::vector<int64_t>(), "key_mass"_a = false, "entropy"_a = false, "top_k"_a = 0)
      .def_prop_ro("weights", tensor(&C::weights), "[B, heads, query_rows, Tk]")
      .def_prop_ro("key_mass", tensor(&C::key_mass), "[B, H, Tk]")
      .def_prop_ro("entropy", tensor(&C::entropy), "[B, H, Tq], in nats")
      .def_prop_ro("top_weights", tensor(&C::top_weights), "[B, H, Tq, top_k]")
      .def_prop_ro("top_keys", tensor(&C::top_keys), "int64, -1 where there are fewer keys")
      .def_ro("heads", &C::heads)
      .def_ro("query_rows", &C::query_rows);
}

// PyTorch's names are the likely mistakes.
void refuse_unknown(const nb::kwargs& unknown) {
  if (unknown.size() == 0) return;
  const std::string name = nb::cast<std::string>((*unknown.begin()).first);
  constexpr std::array<std::array<const char*, 2>, 4> kHints = {{
      {"is_causal", "; say mask=causal(align='start'), or causal() to let the last query see the last key"},
      {"attn_mask", "; say mask=keep(m) for a bool mask where True may attend, bias=m for numbers to add"},
      {"key_padding_mask", "; say mask=drop(m[:, None, None, :]), or lengths(n)"},
      {"enable_gqa", "; key heads are shared wherever there are fewer of them"},
  }};
  std::string hint;
  for (const auto& [theirs, ours] : kHints) {
    if (name == theirs) hint = ours;
  }
  throw nb::type_error(concat("attention: no argument '", name, "'", hint).c_str());
}

constexpr const char* kAttentionDoc =
    "softmax(softcap(scale * query @ (key + relative_key).T) + biases, over the keys the mask allows) @ "
    "value.\n\n"
    "Shapes    query [B, H, Tq, D], key [B, Hkv, Tk, D], value [B, Hkv, Tk, Dv] -> [B, H, Tq, Dv];\n"
    "          layout='bthd' swaps H and T in all of them. H % Hkv == 0.\n"
    "Dtypes    float32, float64, bfloat16, float16, the same for all three\n"
    "Gradient  query, key, value, bias, alibi_slopes, relative_bias, relative_key, sinks\n"
    "Memory    O(Tq + Tk) per head beyond inputs and output\n"
    "Rows      without any allowed key give 0, see empty_row\n"
    "relative_bias, relative_key\n"
    "          [H or 1, span] and [H or 1, span, D]: a number and a vector per distance, that of query i and "
    "key\n"
    "          j at clamp(j - i - offset + relative_center, 0, span - 1)\n"
    "sinks     [H]: one more score in every row's softmax, of no key\n"
    "Raises    ShapeError, DtypeError, ValueError";

template <class T>
std::string signature_of(const Keyword<T>& k) {
  const char* type = std::is_same_v<T, nb::handle>          ? "object | None"
                     : std::is_same_v<T, Rng*>              ? "Rng | None"
                     : std::is_same_v<T, AttentionCapture*> ? "AttentionCapture | None"
                     : std::is_same_v<T, const char*>       ? "str"
                     : std::is_same_v<T, bool>              ? "bool"
                     : std::is_same_v<T, int64_t>           ? "int"
                     : std::is_same_v<T, float>             ? "float"
                                                            : "float | None";
  const std::string preset =
      std::string_view(type).ends_with("None") ? "None" : nb::repr(nb::cast(k.preset)).c_str();
  return concat(", ", k.name, ": ", type, " = ", preset);
}

// attention() itself also takes what it does not know, to say what that should have been; its signature hides
// that.
template <class... T>
void bind_function(nb::module_& m, const std::tuple<Keyword<T>...>& keywords) {
  static std::string signature =
      "def attention(query: object | None, key: object | None, value: object | None, *";
  std::apply([&](const Keyword<T>&... k) { ((signature += signature_of(k)), ...); }, keywords);
  signature += ") -> object";
  const auto call = [&keywords](nb::handle query, nb::handle key, nb::handle value, T... given,
                                const nb::kwargs& unknown) {
    constexpr const char* who = "attention";
    refuse_unknown(unknown);
    const Tensor q = to_tensor(query, {who, "query"});
    const Tensor k = to_tensor(key, {who, "key"});
    const Tensor v = to_tensor(value, {who, "value"});
    AttentionArguments to{who};
    std::apply([&](const Keyword<T>&... each) { (each.set(to, given, each.name), ...); }, keywords);
    Tensor out = interruptible([&] { return attention(q, k, v, to.call, to.call.score_mod); });
    raise_faults(who, to.call.mask, to.score_mod);
    return with_lse(std::move(out), to);
  };
  std::apply(
      [&](const Keyword<T>&... k) {
        m.def("attention", call, "query"_a.none(), "key"_a.none(), "value"_a.none(), nb::kw_only(),
              argument(k)..., "unknown"_a, nb::sig(signature.c_str()), kAttentionDoc);
      },
      keywords);
}

void bind_profiles(nb::module_& m) {
  m.def(
      "attention_profile",
      [](const std::string& name, int64_t embed_dim) {
        return attention_profile(parse_profile(name), embed_dim).to_string();
      },
      "name"_a, "embed_dim"_a = 0,
      "The rule of 'labml', 'blog', 'lecture', 'd2l', 'torch_mha', 'torch_sdpa' or 'onnx' as text.");
  const auto from = [&](const char* name, Mask (*f)(const Tensor&), const char* doc) {
    m.def(
        name,
        [f, name](nb::handle x) {
          return f(to_tensor(x, {name, "mask"}));
        },
        "mask"_a, doc);
  };
  from("from_labml_mask", &from_labml_mask, "[Tq or 1, Tk, B or 1], every non-zero element may attend.");
  from("from_torch_mha_mask", &from_torch_mha_mask,
       "attn_mask of torch.nn.MultiheadAttention: True may NOT attend.");
  from("from_torch_key_padding_mask", &from_torch_key_padding_mask, "bool [B, Tk]: True is padding.");
  from("from_torch_sdpa_mask", &from_torch_sdpa_mask,
       "attn_mask of scaled_dot_product_attention: True may attend.");
}

}  // namespace

Mask to_mask(nb::handle object) {
  if (!object.is_valid() || object.is_none()) return {};
  Mask* mask = nullptr;
  if (nb::try_cast(object, mask, false) && mask != nullptr) return *mask;
  throw nb::type_error(
      "attention: mask must be a Mask: keep(array) where True may attend, drop(array) where True may not, "
      "causal(), "
      "lengths(n), … joined with &");
}

nb::object with_lse(Tensor out, AttentionArguments& arguments) {
  if (arguments.call.lse == nullptr) return nb::cast(std::move(out));
  return nb::make_tuple(std::move(out), std::move(arguments.lse));
}

void bind_attention(nb::module_& m) {
  bind_masks(m);
  bind_capture(m);
  bind_profiles(m);
  bind_function(m, kFunctionKeywords);
}

}  // namespace multihead::python
