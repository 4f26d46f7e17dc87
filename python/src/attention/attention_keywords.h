// The keyword arguments of attention, once: every function and module that takes them reads these lists.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "multihead/core/error.h"
#include "python/src/attention/attention.h"
#include "python/src/names.h"

namespace multihead::python {

/// The options that the keywords of one call are turned into.
struct AttentionArguments {
  const char* who;
  nn::AttentionCall call = {};
  nb::handle score_mod = {};  ///< as given, for raise_faults(), or weight
  bool weight = false;        ///< that is
  Tensor lse = {};            ///< call.lse, if anything
};

/// A keyword: what it does with what was given, and its default (None for objects and pointers).
template <class T>
struct Keyword {
  const char* name;
  void (*set)(AttentionArguments& to, T given, const char* name);
  T preset = {};
};

template <class Class, class T>
T member_type(T Class::*);

/// A keyword for a member of the options, with its default: a tensor from any array, others as they are.
template <auto kMember>
auto option(const char* name) {
  using T = decltype(member_type(kMember));
  if constexpr (std::is_same_v<T, Tensor>) {
    return Keyword<nb::handle>{name, [](AttentionArguments& to, nb::handle given, const char* own_name) {
                                 to.call.*kMember = to_tensor_or_none(given, {to.who, own_name});
                               }};
  } else {
    return Keyword<T>{name, [](AttentionArguments& to, T given, const char*) { to.call.*kMember = given; },
                      nn::AttentionCall().*kMember};
  }
}

/// The options of a score, by their names there.
inline const auto kScoreKeywords = []<size_t... kIndex>(std::index_sequence<kIndex...>) {
  constexpr auto kOptions = multihead::detail::kScoreOptions;
  return std::tuple(option<std::get<kIndex>(kOptions).second>(std::get<kIndex>(kOptions).first)...);
}
(std::make_index_sequence<std::tuple_size_v<decltype(multihead::detail::kScoreOptions)>>());

/// What makes weights is named weight, what makes scores score_mod.
inline void set_normalise(AttentionArguments& to, const char* given, const char*) {
  if (std::string_view(given) != "softmax") to.call.normalise = normalise_of(given);
  const bool softmax = to.call.normalise == Normalise::softmax;
  MH_CHECK(!softmax || !to.weight, ValueError, to.who,
           ": weight= takes normalise='sum', 'abs_sum' or 'none'; what changes the scores of a softmax is "
           "score_mod=");
  const bool threshold =
      to.call.normalise == Normalise::sparsemax || to.call.normalise == Normalise::entmax15;
  MH_CHECK(!threshold || !to.weight, ValueError, to.who, ": normalise='", given, "' takes no weight=");
  MH_CHECK(
      softmax || threshold || to.weight || !to.call.score_mod, ValueError, to.who, ": with normalise='",
      given,
      "' the function is weight=, which has the scores with all terms and makes weights; not score_mod=");
}

/// The keywords of attention() and of every module.
inline const auto kAttentionKeywords = [] {
  using To = AttentionArguments;
  using O = AttentionOptions;
  return std::tuple_cat(
      std::tuple(Keyword<nb::handle>{
          "mask", [](To& to, nb::handle given, const char*) { to.call.mask = to_mask(given); }}),
      kScoreKeywords,
      std::tuple(Keyword<nb::handle>{"score_mod",
                                     [](To& to, nb::handle given, const char*) {
                                       to.score_mod = given;
                                       to.call.score_mod = to_score_mod(given);
                                     }},
                 Keyword<nb::handle>{
                     "weight",
                     [](To& to, nb::handle given, const char*) {
                       if (given.is_none()) return;
                       MH_CHECK(!to.call.score_mod, ValueError, to.who,
                                ": weight and score_mod are one function: weight=score_mod(lambda s, "
                                "b, h, i, j: weight(score(s, b, h, i, j)))");
                       to.score_mod = given, to.weight = true;
                       to.call.score_mod = to_score_mod(given);
                     }},
                 Keyword<const char*>{"normalise", set_normalise, "softmax"},
                 Keyword<const char*>{"empty_row",
                                      [](To& to, const char* given, const char*) {
                                        if (std::string_view(given) != "zero")
                                          to.call.empty_row = empty_row_of(given);
                                      },
                                      "zero"},
                 option<&O::capture>("capture")));
}();

/// The keywords of the functions, which have some more than the modules.
inline const auto kFunctionKeywords = [] {
  using To = AttentionArguments;
  using O = AttentionOptions;
  const auto scale = [](To& to, std::optional<double> given, const char*) {
    MH_CHECK(!given || !std::isnan(*given), ValueError, to.who, ": scale must be a number, got NaN");
    to.call.scale = given;
  };
  const auto layout = [](To& to, const char* given, const char*) {
    if (std::string_view(given) == "bhtd") return;
    to.call.layout =
        to_enum<Layout>(given, "attention: layout", {{"bhtd", Layout::bhtd}, {"bthd", Layout::bthd}});
  };
  const auto return_lse = [](To& to, bool given, const char*) { to.call.lse = given ? &to.lse : nullptr; };
  return std::tuple_cat(
      kAttentionKeywords,
      std::make_tuple(Keyword<std::optional<double>>{"scale", scale}, option<&O::dropout_p>("dropout_p"),
                      option<&O::rng>("rng"), Keyword<const char*>{"layout", layout, "bhtd"},
                      Keyword<bool>{"return_lse", return_lse},
                      option<&O::allow_binary_bias>("allow_binary_bias")));
}();

/// The keywords of a transformer layer.
inline const auto kLayerKeywords = std::tuple_cat(
    kAttentionKeywords,
    std::make_tuple(option<&AttentionOptions::rng>("rng"), option<&nn::AttentionCall::rotary>("rotary")));

/// nanobind's form of a keyword.
template <class T>
auto argument(const Keyword<T>& k) {
  if constexpr (std::is_same_v<T, nb::handle> || std::is_same_v<T, std::optional<double>> ||
                (std::is_pointer_v<T> && !std::is_same_v<T, const char*>)) {
    return nb::arg(k.name) = nb::none();
  } else {
    return nb::arg(k.name) = k.preset;
  }
}

/// Binds name(lead…, keywords…) of a module or class. `names` are the annotations of Lead, after which there
/// must be nb::kw_only(), and the documentation.
template <class... Lead>
struct Attention {
  template <class Target, class F, class... T, class... Names>
  static void bind(Target& target, const char* name, const char* who,
                   const std::tuple<Keyword<T>...>& keywords, F f, const char* doc, const Names&... names) {
    std::apply(
        [&](const Keyword<T>&... k) {
          target.def(
              name,
              [f, who, &keywords](Lead... lead, T... given) {
                AttentionArguments to{who};
                std::apply([&](const Keyword<T>&... each) { (each.set(to, given, each.name), ...); },
                           keywords);
                auto result = f(lead..., to);
                raise_faults(who, to.call.mask, to.score_mod);
                return result;
              },
              names..., argument(k)..., doc);
        },
        keywords);
  }
};

/// A Tensor as the functions return it: with return_lse (Tensor, lse).
nb::object with_lse(Tensor out, AttentionArguments& arguments);

}  // namespace multihead::python
