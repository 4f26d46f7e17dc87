// Signatures as text, where the parameters come from a list: editors and type checkers read them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "multihead/core/error.h"

namespace multihead::python {

namespace nb = nanobind;

template <class T>
struct OptionalOf : std::false_type {
  using Type = T;
};
template <class T>
struct OptionalOf<std::optional<T>> : std::true_type {
  using Type = T;
};

/// The type of an argument that becomes a T; of an enum, a word.
template <class T>
std::string type_text() {
  using Plain = typename OptionalOf<T>::Type;
  std::string text = "str";
  if constexpr (std::is_same_v<Plain, bool>) {
    text = "bool";
  } else if constexpr (std::is_integral_v<Plain>) {
    text = "int";
  } else if constexpr (std::is_floating_point_v<Plain>) {
    text = "float";
  }
  return OptionalOf<T>::value ? text + " | None" : text;
}

/// ", name: type = preset", or without a default.
inline std::string parameter(const char* name, const std::string& type, nb::handle preset = {}) {
  const std::string text = concat(", ", name, ": ", type);
  return preset.is_valid() ? concat(text, " = ", nb::repr(preset).c_str()) : text;
}

}  // namespace multihead::python
