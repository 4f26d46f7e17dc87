#include "python/src/attention/attention.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>

#include "multihead/core/error.h"
#include "multihead/ops/attention/inspect/profiles.h"
#include "python/src/attention/attention_keywords.h"
#include "python/src/bindings.h"
#include "python/src/interrupt.h"
#include "python/src/names.h"
#include "python/src/signature.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

// The captured tensors by name.
constexpr std::array<std::pair<const char*, Tensor AttentionCapture::*>, 5> kCaptured = {{
    {"weights", &AttentionCapture::weights},
    {"key_mass", &AttentionCapture::key_mass},
    {"entropy", &AttentionCapture::entropy},
    {"top_weights", &AttentionCapture::top_weights},
    {"top_keys", &AttentionCapture::top_keys},
}};

// How to make a capture again: (function, (the keyword arguments, what was captured)).
nb::tuple reduce_capture(const AttentionCapture& c) {
  nb::dict wanted, captured;
  wanted["weights"] = c.want_weights;
  wanted["stage"] = stage_name(c.stage);
  wanted["heads"] = c.heads;
  wanted["query_rows"] = c.query_rows;
  wanted["key_mass"] = c.want_key_mass;
  wanted["entropy"] = c.want_entropy;
  wanted["top_k"] = c.top_k;
  for (const auto& [name, member] : kCaptured) {
    if ((c.*member).defined()) captured[name] = (c.*member).detach();
  }
  return nb::make_tuple(nb::module_::import_("multihead._copies").attr("capture_of"),
                        nb::make_tuple(wanted, captured));
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
      .def_prop_ro("entropy", tensor(&C::entropy),
                   "[B, H, Tq], in nats: of all probabilities, that of a sink among them")
      .def_prop_ro("top_weights", tensor(&C::top_weights), "[B, H, Tq, top_k]")
      .def_prop_ro("top_keys", tensor(&C::top_keys), "int64, -1 where there are fewer keys")
      .def_ro("heads", &C::heads)
      .def_ro("query_rows", &C::query_rows)
      .def("__reduce__", &reduce_capture);
  m.def(
      "capture_of",
      [](nb::dict wanted, nb::dict captured) {
        nb::object result = nb::type<C>()(**wanted);
        for (const auto& [name, member] : kCaptured) {
          if (captured.contains(name)) nb::cast<C&>(result).*member = nb::cast<Tensor>(captured[name]);
        }
        return result;
      },
      "wanted"_a, "captured"_a, "An AttentionCapture by its keyword arguments, with what it captured.");
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
    "(value +\nrelative_value).\n\nShapes    query [B, H, Tq, D], key [B, Hkv, Tk, D], value [B, Hkv, Tk, "
    "Dv] -> [B, H, Tq, "
    "Dv];\n          layout='bthd' swaps H and T in all of them. H % Hkv == 0.\nDtypes    float32, float64, "
    "bfloat16, float16, the same for all three; of biases, tables and sinks\n          float64 with float64, "
    "else float32 or the type of 16-bit inputs\nGradient  query, key, value, biases, slopes, tables and "
    "sinks, from the output, the log-sum-exp\n          (return_lse) and what capture receives\nMemory    "
    "O(Tq + Tk) per head beyond inputs and output\nRows      without any allowed key give 0, see "
    "empty_row\ndropout_p of the weights; it acts only in a call with an rng\nrelative_bias, relative_key, "
    "relative_value\n          [H or 1, span], [H or 1, span, D] and "
    "[H or "
    "1, span, Dv]: a number and vectors per distance, that of query i and key\n          j at clamp(j - i - "
    "offset + relative_center, 0, "
    "span - 1);\n          offset: that of the mask's first part which aligns queries with keys\nsinks     "
    "[H]: one more score in every row's softmax, of no key; the log-sum-exp counts it, "
    "and is the sink\n          in a row without any key\nnormalise, weight\n          'sum', 'abs_sum', "
    "'none': the weights are weight(score with all terms), a score_mod(), or the\n          scores, over "
    "their sum, that of their absolute values, or nothing, instead of a softmax;\n          return_lse then "
    "returns what a row was divided by, 0 for rows without keys\nRaises    ShapeError, DtypeError, "
    "ValueError";

template <class T>
std::string signature_of(const Keyword<T>& k) {
  if constexpr (std::is_same_v<T, nb::handle>) return parameter(k.name, "object | None", nb::none());
  if constexpr (std::is_same_v<T, Rng*>) return parameter(k.name, "Rng | None", nb::none());
  if constexpr (std::is_same_v<T, AttentionCapture*>) {
    return parameter(k.name, "AttentionCapture | None", nb::none());
  }
  return parameter(k.name, type_text<T>(), nb::cast(k.preset));
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
}

}  // namespace

nb::object with_lse(Tensor out, AttentionArguments& arguments) {
  if (arguments.call.lse == nullptr) return nb::cast(std::move(out));
  return nb::make_tuple(std::move(out), std::move(arguments.lse));
}

void bind_attention(nb::module_& m) {
  bind_capture(m);
  bind_profiles(m);
  bind_function(m, kFunctionKeywords);
}

}  // namespace multihead::python
