// Between Python objects and mh::Tensor: NumPy by the buffer protocol, everything else by DLPack.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "multihead/core/tensor/tensor.h"
#include "python/src/gil.h"
#include "python/src/tensor/numbers.h"

namespace multihead::python {

namespace nb = nanobind;

/// Names the argument in messages: "attention: key".
struct Argument {
  const char* who;
  const char* name;
  bool allow_grad = false;  ///< take PyTorch tensors that require a gradient: the caller records it there
  bool is_plain = false;    ///< multihead._torch_guards has admitted it
};

/// A tensor over the object's own memory where that is possible (CPU, a dtype of ours, native byte order,
/// aligned, strides not negative), else over a copy. Takes Tensor, NumPy arrays and scalars, anything with
/// the buffer protocol or DLPack, numbers and nested lists. Raises TypeError, ValueError naming the argument.
Tensor to_tensor(nb::handle object, Argument argument);
/// Whether the object says that its memory must not be written to.
bool is_read_only(nb::handle object);
/// None gives an undefined tensor.
Tensor to_tensor_or_none(nb::handle object, Argument argument);
/// Numbers and lists become `like`'s dtype, everything else as to_tensor().
Tensor to_tensor_like(nb::handle object, const Tensor& like, Argument argument);
/// As `if` takes it.
bool is_true(nb::handle object);
/// Anything with __index__. Raises TypeError, and ValueError for what 64 bits do not hold.
int64_t to_integer(nb::handle object, Argument argument);
/// i64 from lists and integer arrays.
std::vector<int64_t> to_integers(nb::handle object, Argument argument);

/// A dtype from our name, NumPy's, PyTorch's, or an object that prints as one of them.
Dtype to_dtype(nb::handle object);
Shape to_shape(nb::handle object, Argument argument);
nb::tuple to_tuple(const Shape& shape);
/// Text; bytes that are not UTF-8 are replaced.
nb::str to_str(std::string_view bytes);

/// A DLPack capsule that shares the tensor's memory.
nb::object to_dlpack(const Tensor& tensor);
/// Fills a Py_buffer; raises BufferError for bf16, which has no format character.
int get_buffer(PyObject* exporter, Py_buffer* view, int flags);
void release_buffer(PyObject* exporter, Py_buffer* view);

/// Enum values by their names.
template <class Enum>
Enum to_enum(const std::string& text, const char* what,
             std::initializer_list<std::pair<const char*, Enum>> names) {
  std::string known;
  for (const auto& [name, value] : names) {
    if (text == name) return value;
    known += known.empty() ? "'" : ", '";
    known += std::string(name) + "'";
  }
  throw nb::value_error((std::string(what) + " must be one of " + known + ", got '" + text + "'").c_str());
}

}  // namespace multihead::python
