// Paths as Python has them: str, bytes or anything with __fspath__, whatever bytes they are.
#pragma once

#include <nanobind/nanobind.h>

#include <filesystem>
#include <string>
#include <utility>

namespace multihead::python {

/// The bytes of a path. Python sees a str that os.fsencode() turns into these bytes.
struct Path : std::string {
  using std::string::string;
  Path(std::string bytes) : std::string(std::move(bytes)) {}  // NOLINT(google-explicit-constructor)
  operator std::filesystem::path() const {                    // NOLINT(google-explicit-constructor)
    return std::filesystem::path(begin(), end());
  }
};

}  // namespace multihead::python

namespace nanobind::detail {

template <>
struct type_caster<multihead::python::Path> {
  NB_TYPE_CASTER(multihead::python::Path, const_name("str | bytes | os.PathLike"))

  bool from_python(handle from, uint8_t /*flags*/, cleanup_list* /*cleanup*/) noexcept {
    PyObject* bytes = nullptr;
    if (PyUnicode_FSConverter(from.ptr(), &bytes) == 0) {
      PyErr_Clear();
      return false;
    }
    value.assign(PyBytes_AsString(bytes), static_cast<size_t>(PyBytes_Size(bytes)));
    Py_DECREF(bytes);
    return true;
  }

  static handle from_cpp(const multihead::python::Path& path, rv_policy /*policy*/,
                         cleanup_list* /*cleanup*/) noexcept {
    return PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size()));
  }
};

}  // namespace nanobind::detail
