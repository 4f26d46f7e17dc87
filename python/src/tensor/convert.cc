#include "python/src/tensor/convert.h"

#include <nanobind/stl/string.h>

#include <array>
#include <bit>
#include <memory>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "python/src/tensor/dlpack.h"
#include "python/src/tensor/read_only.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

[[noreturn]] void raise(PyObject* type, const std::string& message) {
  PyErr_SetString(type, message.c_str());
  throw nb::python_error();
}

std::string prefix(Argument argument) { return std::string(argument.who) + ": " + argument.name; }

std::string text_of(nb::handle object) {
  nb::object text = nb::steal(PyObject_Str(object.ptr()));
  if (!text.is_valid()) throw nb::python_error();
  return nb::cast<std::string>(text);
}

std::string name_of_type(nb::handle object) { return text_of(nb::object(object.type().attr("__name__"))); }

constexpr const char* kDtypes = "float32, float64, bfloat16, float16, int64, int32 or bool";

// Calls f with the interpreter lock, wherever the last handle of a tensor is dropped. Nothing can be freed
// once the interpreter is gone.
template <class F>
void with_interpreter(F&& f) {
  if (!Py_IsInitialized()) return;
  const Locked locked;
  f();
}

// --- buffer protocol ------------------------------------------------------------------------------------

std::optional<Dtype> dtype_of_format(const char* format, Py_ssize_t size) {
  if (format == nullptr) return std::nullopt;
  if (*format == '@' || *format == '=' || (*format == '<' && std::endian::native == std::endian::little)) {
    ++format;
  }
  if (format[0] == '\0' || format[1] != '\0') return std::nullopt;
  switch (*format) {
    case 'f':
      return Dtype::f32;
    case 'd':
      return Dtype::f64;
    case 'e':
      return Dtype::f16;
    case '?':
      return Dtype::boolean;
    case 'l':
    case 'q':
    case 'i':
      return size == 8 ? Dtype::i64 : size == 4 ? std::optional(Dtype::i32) : std::nullopt;
    default:
      return std::nullopt;
  }
}

// An array or scalar of NumPy itself.
bool is_of_numpy(nb::handle object) {
  const nb::object module = nb::getattr(object.type(), "__module__", nb::none());
  return nb::isinstance<nb::str>(module) && module.equal(nb::str("numpy"));
}

bool is_numpy_subclass(nb::handle object) {
  return PyObject_CheckBuffer(object.ptr()) && nb::hasattr(object, "__array_interface__");
}

// The array as one that can be borrowed: native byte order, aligned, in memory of its own.
nb::object plain_copy(nb::handle array) {
  nb::object numpy = nb::module_::import_("numpy");
  nb::object native = array.attr("dtype").attr("newbyteorder")("=");
  return numpy.attr("array")(array, "dtype"_a = native, "copy"_a = true, "order"_a = "C");
}

bool numpy_needs_copy(nb::handle array) {
  if (!nb::cast<bool>(array.attr("dtype").attr("isnative"))) return true;
  return !nb::cast<bool>(array.attr("flags").attr("aligned"));
}

struct BufferOwner {
  Py_buffer view{};
  ~BufferOwner() {
    with_interpreter([this] { PyBuffer_Release(&view); });
  }
};

std::optional<Tensor> borrow_buffer(const std::shared_ptr<BufferOwner>& owner) {
  const Py_buffer& view = owner->view;
  const std::optional<Dtype> dtype = dtype_of_format(view.format, view.itemsize);
  if (!dtype || view.suboffsets != nullptr) return std::nullopt;
  if (reinterpret_cast<uintptr_t>(view.buf) % static_cast<size_t>(view.itemsize) != 0) return std::nullopt;
  Shape shape, strides;
  bool negative = false;
  MH_CHECK(view.ndim <= Shape::kMaxRank, ShapeError, "arrays have at most ", Shape::kMaxRank, " axes, got ",
           view.ndim);
  for (int i = 0; i < view.ndim; ++i) {
    if (view.strides[i] % view.itemsize != 0) return std::nullopt;
    shape.push_back(view.shape[i]);
    strides.push_back(view.strides[i] / view.itemsize);
    negative = negative || (view.strides[i] < 0 && view.shape[i] > 1);
  }
  Tensor tensor = Tensor::borrow(view.buf, shape, strides, *dtype, owner);
  return negative ? tensor.clone() : tensor;
}

std::optional<Tensor> from_buffer(nb::handle object) {
  auto owner = std::make_shared<BufferOwner>();
  // Kernels only read their inputs, so read-only memory is welcome.
  if (PyObject_GetBuffer(object.ptr(), &owner->view, PyBUF_FULL_RO) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  return borrow_buffer(owner);
}

// --- DLPack ---------------------------------------------------------------------------------------------

std::optional<Dtype> dtype_of_dlpack(nb::dlpack::dtype dtype) {
  if (dtype.lanes != 1) return std::nullopt;
  switch (static_cast<nb::dlpack::dtype_code>(dtype.code)) {
    case nb::dlpack::dtype_code::Float:
      return dtype.bits == 32   ? std::optional(Dtype::f32)
             : dtype.bits == 64 ? std::optional(Dtype::f64)
             : dtype.bits == 16 ? std::optional(Dtype::f16)
                                : std::nullopt;
    case nb::dlpack::dtype_code::Bfloat:
      return dtype.bits == 16 ? std::optional(Dtype::bf16) : std::nullopt;
    case nb::dlpack::dtype_code::Int:
      return dtype.bits == 64   ? std::optional(Dtype::i64)
             : dtype.bits == 32 ? std::optional(Dtype::i32)
                                : std::nullopt;
    case nb::dlpack::dtype_code::Bool:
      return dtype.bits == 8 ? std::optional(Dtype::boolean) : std::nullopt;
    default:
      return std::nullopt;
  }
}

// torch.Tensor; null until PyTorch is imported.
PyTypeObject* torch_tensor() {
  static PyTypeObject* known = nullptr;
  if (known != nullptr) return known;
  PyObject* torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  if (torch == nullptr) return nullptr;
  nb::object type = nb::steal(PyObject_GetAttrString(torch, "Tensor"));
  if (!type.is_valid()) PyErr_Clear();
  if (type.is_valid() && PyType_Check(type.ptr()))
    known = reinterpret_cast<PyTypeObject*>(type.release().ptr());
  return known;
}

// Subclasses too: what they export is not what they mean.
bool is_torch(nb::handle object) {
  PyTypeObject* type = torch_tensor();
  return type != nullptr && PyType_IsSubtype(Py_TYPE(object.ptr()), type) != 0;
}

nb::object capsule_of_torch(nb::handle tensor, Argument argument) {
  nb::object plain = nb::borrow(tensor);
  if (!argument.is_plain) {
    plain =
        nb::module_::import_("multihead._torch_guards").attr("admit")(argument.who, argument.name, tensor);
  }
  if (!argument.allow_grad && nb::cast<bool>(tensor.attr("requires_grad"))) {
    raise(PyExc_TypeError, prefix(argument) +
                               " is a PyTorch tensor that requires a gradient: use multihead.torch, or pass "
                               "tensor.detach()");
  }
  return nb::module_::import_("torch").attr("_C").attr("_to_dlpack")(plain);
}

// A capsule, or an error that says why there is none.
nb::object capsule_of(nb::handle object, Argument argument) {
  if (is_torch(object)) return capsule_of_torch(object, argument);
  try {
    const auto device = nb::cast<nb::tuple>(object.attr("__dlpack_device__")());
    const int type = nb::cast<int>(nb::int_(device[0]));
    if (type != kCpu && type != kCudaHost) {
      raise(PyExc_ValueError,
            prefix(argument) + " must be in CPU memory, got DLPack device type " + std::to_string(type));
    }
    return object.attr("__dlpack__")();
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;
    if (error.matches(PyExc_ValueError)) throw;
    const std::string why = text_of(error.value());
    std::string kind = name_of_type(object);
    if (nb::hasattr(object, "layout")) kind += " with layout " + text_of(nb::object(object.attr("layout")));
    raise(PyExc_TypeError, prefix(argument) + " must be a dense CPU array, got " + kind + ": " + why);
  }
}

Tensor from_capsule(nb::object capsule, Argument argument) {
  auto* managed = static_cast<ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (managed == nullptr) throw nb::python_error();
  PyCapsule_SetName(capsule.ptr(), "used_dltensor");
  std::shared_ptr<void> owner(managed, [](void* p) {
    with_interpreter([p] {
      auto* m = static_cast<ManagedTensor*>(p);
      if (m->deleter != nullptr) m->deleter(m);
    });
  });
  return from_dltensor(managed->tensor, std::move(owner), argument);
}

// --- numbers, lists, everything NumPy makes an array of ---------------------------------------------------

Tensor from_numpy(nb::object array, Argument argument) {
  const std::string dtype = text_of(nb::object(array.attr("dtype")));
  if (dtype == "bfloat16") {  // ml_dtypes: NumPy exports no buffer for it
    Tensor bits = to_tensor(array.attr("astype")("float32"), argument);
    return bits.to(Dtype::bf16);
  }
  if (auto tensor = from_buffer(array)) return *tensor;
  if (numpy_needs_copy(array)) {
    nb::object copy = plain_copy(array);
    if (auto tensor = from_buffer(copy)) return *tensor;
  }
  raise(PyExc_TypeError, prefix(argument) + " must be " + kDtypes + ", got an array of " + dtype);
}

// Calls use(item) for what lists and tuples hold, as deep as NumPy's arrays are, until it returns true.
template <class Use>
bool any_item(nb::handle object, const Use& use, int depth = 64) {
  const bool list = PyList_Check(object.ptr());
  if (!list && !PyTuple_Check(object.ptr())) return use(object);
  const auto size = list ? PyList_Size : PyTuple_Size;
  const auto item = list ? PyList_GetItem : PyTuple_GetItem;
  for (Py_ssize_t i = 0; depth > 0 && i < size(object.ptr()); ++i) {
    if (any_item(nb::borrow(item(object.ptr(), i)), use, depth - 1)) return true;
  }
  return false;
}

bool is_learned(nb::handle item) {
  Tensor* ours = nullptr;
  return nb::try_cast(item, ours, false) && ours != nullptr && ours->requires_grad();
}

// Python's own numbers have no width; arrays and NumPy's scalars have.
bool is_double(nb::handle item) {
  if (PyFloat_CheckExact(item.ptr()) || PyLong_Check(item.ptr()) || !nb::hasattr(item, "dtype")) return false;
  return text_of(nb::object(item.attr("dtype"))) == "float64";
}

// A list, tuple or number of Python, or something that NumPy can make an array of.
Tensor from_python_values(nb::handle object, Argument argument) {
  if (Tape::current() != nullptr && any_item(object, is_learned)) {
    raise(PyExc_TypeError,
          prefix(argument) + " is a " + name_of_type(object) +
              " with a tensor that requires a gradient, which would be lost; join tensors by "
              "concat(), or take their detach()");
  }
  nb::object numpy = nb::module_::import_("numpy");
  nb::object array;
  try {
    array = or_sleep([&] { return nb::object(numpy.attr("asarray")(object)); });
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;
    raise(PyExc_TypeError, prefix(argument) + " must be an array of " + kDtypes + ", got " +
                               name_of_type(object) + " (" + text_of(error.value()) + ")");
  }
  // Python's real numbers become f32, as everywhere in this library.
  const bool is_wide = text_of(nb::object(array.attr("dtype"))) == "float64";
  if (is_wide && !nb::hasattr(object, "__array__") && !any_item(object, is_double)) {
    array = array.attr("astype")("float32");
  }
  if (is_read_only(array)) array = array.attr("copy")();  // of an object that writable() does not know
  return from_numpy(array, argument);
}

}  // namespace

Tensor from_dltensor(const nb::dlpack::dltensor& t, std::shared_ptr<void> owner, Argument argument) {
  if (t.device.device_type != kCpu && t.device.device_type != kCudaHost) {
    raise(PyExc_ValueError,
          prefix(argument) + " must be in CPU memory, got a tensor on device " +
              (t.device.device_type == 2 ? "cuda:" : "type " + std::to_string(t.device.device_type) + ":") +
              std::to_string(t.device.device_id) + "; move it with .cpu()");
  }
  const std::optional<Dtype> dtype = dtype_of_dlpack(t.dtype);
  if (!dtype) {
    raise(PyExc_TypeError, prefix(argument) + " must be " + kDtypes + ", got DLPack type code " +
                               std::to_string(t.dtype.code) + " with " + std::to_string(t.dtype.bits) +
                               " bits");
  }
  MH_CHECK(t.ndim <= Shape::kMaxRank, ShapeError, prefix(argument), " has ", t.ndim, " axes; at most ",
           Shape::kMaxRank, " are supported");
  Shape shape;
  for (int i = 0; i < t.ndim; ++i) shape.push_back(t.shape[i]);
  Shape strides = contiguous_strides(shape);
  bool negative = false;
  for (int i = 0; t.strides != nullptr && i < t.ndim; ++i) {
    strides[i] = t.strides[i];
    negative = negative || (t.strides[i] < 0 && t.shape[i] > 1);
  }
  auto* data = static_cast<std::byte*>(t.data) + t.byte_offset;
  Tensor tensor = Tensor::borrow(data, shape, strides, *dtype, std::move(owner));
  return negative ? tensor.clone() : tensor;
}

Tensor to_tensor(nb::handle object, Argument argument) {
  Tensor* ours = nullptr;
  if (nb::try_cast(object, ours, false) && ours != nullptr) return *ours;
  const bool is_plain = is_of_numpy(object);
  if (is_plain || is_numpy_subclass(object)) {
    if (!is_plain && nb::hasattr(object, "mask") && nb::hasattr(object, "filled")) {
      raise(PyExc_TypeError,
            prefix(argument) + " is a masked array, whose mask would be lost; take its filled()");
    }
    if (auto tensor = from_buffer(object)) return *tensor;
    return from_numpy(nb::module_::import_("numpy").attr("asarray")(object), argument);
  }
  if (object.is_none()) raise(PyExc_TypeError, prefix(argument) + " must be an array, got None");
  if (is_torch(object) || nb::hasattr(object, "__dlpack__")) {
    return from_capsule(or_sleep([&] { return capsule_of(object, argument); }), argument);
  }
  if (PyLong_Check(object.ptr()) || PyFloat_Check(object.ptr()) || PyBool_Check(object.ptr()) ||
      PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())) {
    return from_python_values(object, argument);
  }
  if (auto tensor = from_buffer(object)) return *tensor;
  if (PyObject_CheckBuffer(object.ptr()) || nb::hasattr(object, "__array__")) {
    return from_python_values(object, argument);
  }
  raise(PyExc_TypeError,
        prefix(argument) + " must be an array of " + kDtypes + ", got " + name_of_type(object));
}

bool is_read_only(nb::handle object) {
  if (nb::isinstance<Tensor>(object) || !PyObject_CheckBuffer(object.ptr())) return false;
  Py_buffer view;
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_FULL_RO) != 0) {
    PyErr_Clear();
    return false;
  }
  const bool result = view.readonly != 0;
  PyBuffer_Release(&view);
  return result;
}

Tensor writable(const Tensor& tensor, nb::handle source) {
  if (!tensor.defined() || !is_read_only(source)) return tensor;
  Py_buffer view;
  if (PyObject_GetBuffer(source.ptr(), &view, PyBUF_FULL_RO) != 0) throw nb::python_error();
  const auto* begin = static_cast<const std::byte*>(view.buf);
  const std::byte* end = begin + (view.len > 0 ? view.itemsize : 0);
  for (int i = 0; i < view.ndim && view.len > 0; ++i) end += (view.shape[i] - 1) * view.strides[i];
  PyBuffer_Release(&view);
  const auto* first = static_cast<const std::byte*>(tensor.raw());
  if (first < begin || first >= end) return tensor;
  Tensor copy = unlocked([&] { return tensor.clone(); });
  copy.set_gradient_slot(tensor.gradient_slot());
  return copy;
}

Tensor to_tensor_or_none(nb::handle object, Argument argument) {
  return object.is_none() ? Tensor() : to_tensor(object, argument);
}

Tensor to_tensor_like(nb::handle object, const Tensor& like, Argument argument) {
  const bool plain = PyLong_Check(object.ptr()) || PyFloat_Check(object.ptr()) || PyList_Check(object.ptr());
  Tensor tensor = to_tensor(object, argument);
  return plain ? tensor.to(like.dtype()) : tensor;
}

bool is_true(nb::handle object) {
  const int answer = PyObject_IsTrue(object.ptr());
  if (answer < 0) throw nb::python_error();
  return answer != 0;
}

int64_t to_integer(nb::handle object, Argument argument) {
  const bool whole = PyIndex_Check(object.ptr()) && !PyBool_Check(object.ptr());
  const nb::object index = nb::steal(whole ? PyNumber_Index(object.ptr()) : nullptr);
  if (!index.is_valid()) {
    PyErr_Clear();
    raise(PyExc_TypeError, prefix(argument) + " must be an integer, got " + name_of_type(object));
  }
  const long long value = PyLong_AsLongLong(index.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    raise(PyExc_ValueError, prefix(argument) + " must be an integer of 64 bits, got a larger one");
  }
  return value;
}

std::vector<int64_t> to_integers(nb::handle object, Argument argument) {
  if (PyLong_Check(object.ptr())) return {to_integer(object, argument)};
  const Tensor tensor = to_tensor(object, argument);
  if (tensor.numel() == 0) return {};
  if (is_floating(tensor.dtype()) || tensor.rank() > 1) {
    raise(PyExc_TypeError, prefix(argument) + " must be a list of integers");
  }
  return tensor.to_vector<int64_t>();
}

Dtype to_dtype(nb::handle object) {
  std::string text;
  if (PyType_Check(object.ptr())) {
    text = text_of(nb::object(object.attr("__name__")));
  } else {
    text = text_of(object);
  }
  if (text.starts_with("torch.")) text = text.substr(6);
  const std::array<std::pair<const char*, Dtype>, 12> names = {{{"float32", Dtype::f32},
                                                                {"float", Dtype::f32},
                                                                {"float64", Dtype::f64},
                                                                {"double", Dtype::f64},
                                                                {"bfloat16", Dtype::bf16},
                                                                {"float16", Dtype::f16},
                                                                {"half", Dtype::f16},
                                                                {"int64", Dtype::i64},
                                                                {"int", Dtype::i64},
                                                                {"long", Dtype::i64},
                                                                {"int32", Dtype::i32},
                                                                {"bool_", Dtype::boolean}}};
  for (const auto& [name, dtype] : names) {
    if (text == name) return dtype;
  }
  return parse_dtype(text);
}

Shape to_shape(nb::handle object, Argument argument) {
  Shape shape;
  if (PyLong_Check(object.ptr())) {
    shape.push_back(to_integer(object, argument));
    return shape;
  }
  for (nb::handle size : object) {
    MH_CHECK(shape.rank() < Shape::kMaxRank, ShapeError, prefix(argument), " has more than ", Shape::kMaxRank,
             " axes");
    shape.push_back(to_integer(size, argument));
  }
  return shape;
}

nb::str to_str(std::string_view bytes) {
  return nb::steal<nb::str>(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

nb::tuple to_tuple(const Shape& shape) {
  PyObject* tuple = PyTuple_New(shape.rank());
  if (tuple == nullptr) throw nb::python_error();
  for (int i = 0; i < shape.rank(); ++i) PyTuple_SetItem(tuple, i, PyLong_FromLongLong(shape[i]));
  return nb::steal<nb::tuple>(tuple);
}

}  // namespace multihead::python
