#include "python/src/models/stack_options.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <span>
#include <variant>

#include "python/src/names.h"
#include "python/src/signature.h"

namespace multihead::python {
namespace {

using Given = StackArguments;
template <class T>
using StackMember = T& (*)(Given&);
struct StackOption {
  const char* name;
  std::variant<StackMember<int64_t>, StackMember<double>, StackMember<bool>,
               StackMember<std::optional<int64_t>>, StackMember<std::optional<double>>,
               StackMember<std::optional<bool>>, StackMember<Activation>, StackMember<nn::NormKind>>
      at;
};

// clang-format off
#define MH_OPTION(name, member) {#name, +[](Given& a) -> decltype((a.member)) { return a.member; }}
// clang-format on
const StackOption kLayerOptions[] = {
    MH_OPTION(embed_dim, stack.layer.attention.embed_dim),  // these two must be given
    MH_OPTION(num_heads, stack.layer.attention.num_heads),
    MH_OPTION(num_kv_heads, stack.layer.attention.num_kv_heads),
    MH_OPTION(head_dim, stack.layer.attention.head_dim),
    MH_OPTION(value_head_dim, stack.layer.attention.value_head_dim),
    MH_OPTION(attention_bias, attention_bias),
    MH_OPTION(query_bias, query_bias),
    MH_OPTION(key_bias, key_bias),
    MH_OPTION(value_bias, value_bias),
    MH_OPTION(out_bias, stack.layer.attention.out_bias),
    MH_OPTION(scale, stack.layer.attention.scale),
    MH_OPTION(attention_dropout_p, stack.layer.attention.dropout_p),
    MH_OPTION(qk_norm, stack.layer.attention.qk_norm),
    MH_OPTION(qk_norm_eps, stack.layer.attention.qk_norm_eps),
    MH_OPTION(zero_attn, stack.layer.attention.zero_attn),
    MH_OPTION(hidden_dim, hidden_dim),
    MH_OPTION(activation, stack.layer.feed_forward.activation),
    MH_OPTION(gated, stack.layer.feed_forward.gated),
    MH_OPTION(ffn_bias, stack.layer.feed_forward.bias),
    MH_OPTION(ffn_dropout_p, stack.layer.feed_forward.dropout_p),
    MH_OPTION(norm, stack.layer.norm.kind),
    MH_OPTION(norm_eps, stack.layer.norm.eps),
    MH_OPTION(norm_bias, stack.layer.norm.bias),
    MH_OPTION(norm_first, stack.layer.norm_first),
    MH_OPTION(cross_attention, stack.layer.cross_attention),
    MH_OPTION(dropout_p, stack.layer.dropout_p),
};
const StackOption kStackOptions[] = {
    MH_OPTION(num_layers, stack.num_layers),
    MH_OPTION(final_norm, stack.final_norm),
};
#undef MH_OPTION
constexpr size_t kRequired = 2;

template <class T>
T taken(const char* who, const char* name, nb::handle value) {
  T result{};
  if (!nb::try_cast(value, result))
    throw nb::type_error(concat(who, ": ", name, " has the wrong type").c_str());
  return result;
}

// Sets the options that are given, and takes them out of `words`.
void take_options(const char* who, nb::dict& words, std::span<const StackOption> options, Given& to) {
  for (const StackOption& option : options) {
    if (!words.contains(option.name)) continue;
    const nb::object value = words[option.name];
    nb::del(words[option.name]);
    const auto set = [&]<class T>(StackMember<T> at) {
      if constexpr (std::is_enum_v<T>) {
        at(to) = to_enum<T>(taken<std::string>(who, option.name, value), option.name);
      } else {
        at(to) = taken<T>(who, option.name, value);
      }
    };
    std::visit(set, option.at);
  }
}

Given read_words(const char* who, const nb::dict& given, std::span<const StackOption> more) {
  nb::dict words = nb::cast<nb::dict>(given.attr("copy")());
  for (size_t i = 0; i < kRequired; ++i) {
    const char* name = kLayerOptions[i].name;
    if (!words.contains(name)) throw nb::type_error(concat(who, ": ", name, " is missing").c_str());
  }
  Given to;
  take_options(who, words, kLayerOptions, to);
  take_options(who, words, more, to);
  if (words.contains("rng")) {
    to.rng = taken<Rng*>(who, "rng", words["rng"]);
    nb::del(words["rng"]);
  }
  for (auto [name, value] : words) {
    throw nb::type_error(concat(who, ": unknown option '", nb::cast<std::string>(name), "'").c_str());
  }
  nn::TransformerLayerOptions& layer = to.stack.layer;
  layer.attention.query_bias = to.query_bias.value_or(to.attention_bias);
  layer.attention.key_bias = to.key_bias.value_or(to.attention_bias);
  layer.attention.value_bias = to.value_bias.value_or(to.attention_bias);
  layer.feed_forward.embed_dim = layer.attention.embed_dim;
  layer.feed_forward.hidden_dim = to.hidden_dim.value_or(4 * layer.attention.embed_dim);
  return to;
}

std::string signature_of(std::span<const StackOption> more) {
  std::string text = "def __init__(self, *";
  Given preset;
  const auto add = [&](const StackOption& option, bool required) {
    const auto one = [&]<class T>(StackMember<T> at) {
      nb::object value;
      if constexpr (std::is_enum_v<T>) {
        value = nb::cast(std::string(word_of(at(preset))));
      } else {
        value = nb::cast(at(preset));
      }
      text += parameter(option.name, type_text<T>(), required ? nb::handle() : value);
    };
    std::visit(one, option.at);
  };
  for (size_t i = 0; i < std::size(kLayerOptions); ++i) add(kLayerOptions[i], i < kRequired);
  for (const StackOption& option : more) add(option, false);
  return text + ", rng: Rng | None = None) -> None";
}

}  // namespace

StackArguments layer_arguments(const char* who, const nb::dict& words) { return read_words(who, words, {}); }
StackArguments stack_arguments(const char* who, const nb::dict& words) {
  return read_words(who, words, kStackOptions);
}

const char* layer_signature() {
  static const std::string text = signature_of({});
  return text.c_str();
}
const char* stack_signature() {
  static const std::string text = signature_of(kStackOptions);
  return text.c_str();
}

}  // namespace multihead::python
