// Numbers as arguments. Included wherever functions are bound, before any is.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

namespace multihead::python {

/// Whether a tensor, ours or PyTorch's, requires a gradient, which would be lost where a number is taken out
/// of it.
inline bool loses_gradient(PyObject* object) noexcept {
  PyObject* flag = PyObject_GetAttrString(object, "requires_grad");
  const bool result = flag == Py_True;
  Py_XDECREF(flag);
  if (flag == nullptr) PyErr_Clear();
  return result;
}

/// A float from what Python's float() takes, except tensors that require a gradient.
inline std::optional<double> to_number(PyObject* object, bool convert) noexcept {
  if (!PyFloat_CheckExact(object)) {
    if (!convert || (!PyLong_CheckExact(object) && loses_gradient(object))) return std::nullopt;
  }
  const double value = PyFloat_AsDouble(object);
  if (value == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return std::nullopt;
  }
  return value;
}

inline std::string class_name(nanobind::handle object) {
  return nanobind::cast<std::string>(object.type().attr("__name__"));
}

}  // namespace multihead::python

namespace nanobind::detail {

template <class T>
struct number_caster {
  NB_TYPE_CASTER(T, const_name("float"))

  bool from_python(handle source, uint32_t flags, cleanup_list*) noexcept {
    const auto number = multihead::python::to_number(source.ptr(), (flags & cast_flags::convert) != 0);
    value = static_cast<T>(number.value_or(0));
    return number.has_value();
  }
  static handle from_cpp(T x, rv_policy, cleanup_list*) noexcept {
    return PyFloat_FromDouble(static_cast<double>(x));
  }
};

template <>
struct type_caster<double> : number_caster<double> {};
template <>
struct type_caster<float> : number_caster<float> {};

}  // namespace nanobind::detail
