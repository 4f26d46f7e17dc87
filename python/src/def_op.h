// Functions bound by their C++ signatures: what Python gives for a Tensor, an enum, a shape or a dtype is converted
// and named in messages by the keywords, and the call runs without the interpreter's lock.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "python/src/gil.h"
#include "python/src/names.h"
#include "python/src/tensor/convert.h"
#include "python/src/tensor/read_only.h"

namespace multihead::python {

/// An argument: its keyword, and whether None is its default, which for a Tensor is an undefined one.
struct NamedArgument {
  const char* name = nullptr;
  bool is_optional = false;
};

/// What Python passes for a parameter of type T, and how it becomes one.
template <class T>
struct Passed {
  using From = T;
  static T to(From x, const char*, const NamedArgument&) { return static_cast<T>(x); }
};
template <>
struct Passed<const Tensor&> {
  using From = nb::handle;
  static Tensor to(From x, const char* who, const NamedArgument& k) {
    return k.is_optional ? to_tensor_or_none(x, {who, k.name}) : to_tensor(x, {who, k.name});
  }
};
template <HasWords Enum>
struct Passed<Enum> {
  using From = const std::string&;
  static Enum to(From x, const char*, const NamedArgument& k) { return to_enum<Enum>(x, k.name); }
};
template <>
struct Passed<const Shape&> {
  using From = nb::handle;
  static Shape to(From x, const char* who, const NamedArgument& k) { return to_shape(x, {who, k.name}); }
};
template <>
struct Passed<Dtype> {
  using From = nb::handle;
  static Dtype to(From x, const char*, const NamedArgument&) { return to_dtype(x); }
};
template <class T>
struct Passed<std::span<const T>> {
  using From = const std::vector<T>&;
  static std::span<const T> to(From x, const char*, const NamedArgument&) { return x; }
};

template <size_t N, class... Extra>
std::array<NamedArgument, N> keywords_of(size_t first, const Extra&... extra) {
  std::array<NamedArgument, N> all = {};
  const auto add = [&](const auto& one) {
    if constexpr (requires { one.name_; }) {
      all.at(first).name = one.name_;
      if constexpr (requires { one.value; }) all.at(first).is_optional = one.value.is_none();
      ++first;
    }
  };
  (add(extra), ...);
  return all;
}

template <class Indices, class R, class... P>
struct OpCall;
template <size_t... I, class R, class... P>
struct OpCall<std::index_sequence<I...>, R, P...> {
  R (*f)(P...);
  const char* who;
  std::array<NamedArgument, sizeof...(P)> keywords;

  R operator()(typename Passed<P>::From... given) const {
    std::tuple<decltype(Passed<P>::to(given, who, NamedArgument()))...> converted = {
        Passed<P>::to(given, who, keywords[I])...};
    auto result = unlocked([&] { return std::apply(f, converted); });
    const auto own = [&]<class T>(const T& source) {
      if constexpr (std::is_same_v<T, nb::handle>) make_writable(result, source);
    };
    (own(given), ...);
    return result;
  }
};

template <class Scope, class R, class... P, class... Extra>
void def_call(Scope& scope, const char* who, const char* name, size_t first, R (*f)(P...),
              const Extra&... extra) {
  using Call = OpCall<std::index_sequence_for<P...>, R, P...>;
  scope.def(name, Call{f, who, keywords_of<sizeof...(P)>(first, extra...)}, extra...);
}

/// A function of the module, with its keywords and its text as nb::module_::def() takes them.
template <class F, class... Extra>
void def_op(nb::module_& m, const char* name, F f, const Extra&... extra) {
  def_call(m, name, name, 0, +f, extra...);
}

/// The same of a method, whose object comes first. `who` is its name in messages.
template <class Class, class F, class... Extra>
void def_op(nb::class_<Class>& c, const char* name, const char* who, F f, const Extra&... extra) {
  def_call(c, who, name, 1, +f, extra...);
}

}  // namespace multihead::python
