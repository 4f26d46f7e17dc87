// Operators and indices of Tensors, and numbers taken out of them.
#include "python/src/tensor/operators.h"

#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/operators.h"
#include "multihead/ops/shape.h"
#include "python/src/tensor/convert.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

// While a score or mask function is traced, on this thread. What would read a number out of a tensor that
// learns, or make another one of it outside every tape, would lose its gradient.
thread_local bool is_tracing = false;

bool is_traced(nb::handle x) { return nb::hasattr(x, "__multihead_traced__"); }

bool is_plain_index(nb::handle item) {
  return PyLong_Check(item.ptr()) || PySlice_Check(item.ptr()) || item.is_none() || item.ptr() == Py_Ellipsis;
}

bool is_numpy_scalar(nb::handle x) {
  static const nb::handle generic = nb::object(nb::module_::import_("numpy").attr("generic")).release();
  return nb::isinstance(x, generic);
}

bool is_kind(nb::handle x, const char* kinds) {
  return std::string(kinds).find(nb::cast<std::string>(x.attr("dtype").attr("kind"))) != std::string::npos;
}

// Whether it selects a view: not so with arrays and bools, nor with steps where a gradient is recorded.
bool is_view_index(const Tensor& x, nb::handle item) {
  if (PySlice_Check(item.ptr())) {
    nb::object step = item.attr("step");
    const bool plain = step.is_none() || (PyLong_Check(step.ptr()) && step.equal(nb::int_(1)));
    return plain || !x.requires_grad();
  }
  if (PyBool_Check(item.ptr()) || nb::isinstance<Tensor>(item)) return false;
  if (item.is_none() || item.ptr() == Py_Ellipsis || PyLong_Check(item.ptr())) return true;
  if (is_numpy_scalar(item)) return is_kind(item, "iu");
  return PyIndex_Check(item.ptr()) && !PyObject_CheckBuffer(item.ptr());
}

// Whether the index holds traced values, or the tensor learns while a function is traced.
bool is_captured(const Tensor& x, const nb::tuple& items) {
  if (is_tracing && x.requires_grad()) return true;
  for (nb::handle item : items) {
    if (!is_plain_index(item) && is_traced(item)) return true;
  }
  return false;
}

}  // namespace

void refuse_while_tracing(const Tensor& x) {
  if (is_tracing && x.requires_grad()) {
    throw nb::type_error(
        "Tensor: a traced function would take this number, of a tensor that requires a gradient, for a "
        "constant; index the tensor and go on with the traced value, or use tensor.detach()");
  }
}

double number_of(const Tensor& x) {
  refuse_while_tracing(x);
  return x.item();
}

// A Python number of the tensor's kind.
nb::object python_number(const Tensor& x) {
  const double value = number_of(x);
  if (is_floating(x.dtype())) return nb::float_(value);
  if (x.dtype() == Dtype::boolean) return nb::bool_(value != 0);
  return nb::int_(x.to(Dtype::i64).data<int64_t>()[0]);  // which a double may not hold
}

namespace {

nb::object methods() { return nb::module_::import_("multihead._tensor_methods"); }

bool is_number(nb::handle x) {
  if (PyFloat_Check(x.ptr()) || PyLong_Check(x.ptr())) return true;
  return is_numpy_scalar(x) && is_kind(x, "fiub");
}

double to_double(nb::handle x) {
  const double value = PyFloat_AsDouble(x.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return value;
}

// One element of an index: integers drop their axis, slices keep it.
Tensor take(const Tensor& x, nb::handle item, int& axis) {
  const int64_t size = x.size(axis);
  if (PySlice_Check(item.ptr())) {
    Py_ssize_t begin, end, step;
    if (PySlice_Unpack(item.ptr(), &begin, &end, &step) < 0) throw nb::python_error();
    const Py_ssize_t count = PySlice_AdjustIndices(size, &begin, &end, step);
    if (step == 1) return slice(x, axis++, begin, begin + count);
    Shape shape = x.shape(), strides = x.strides();
    const int64_t offset = count > 0 ? begin * strides[axis] : 0;
    shape[axis] = count;
    if (count > 1) strides[axis] *= step;
    const Tensor view = x.as_strided(shape, strides, offset);
    ++axis;
    return step > 0 ? view : view.clone();
  }
  const Py_ssize_t i = PyNumber_AsSsize_t(item.ptr(), PyExc_IndexError);
  if (i == -1 && PyErr_Occurred()) throw nb::python_error();
  const int64_t at = i < 0 ? i + size : i;
  if (at < 0 || at >= size) {
    throw nb::index_error(
        concat("Tensor: index ", i, " is out of range for axis ", axis, " of size ", size).c_str());
  }
  return reshape(slice(x, axis, at, at + 1), x.shape().erased(axis));
}

}  // namespace

nb::object get_item(nb::handle self, nb::handle key) {
  const Tensor& x = nb::cast<const Tensor&>(self);
  nb::tuple items = PyTuple_Check(key.ptr()) ? nb::borrow<nb::tuple>(key) : nb::make_tuple(key);
  if (is_captured(x, items)) return nb::module_::import_("multihead._trace").attr("index")(self, key);
  for (nb::handle item : items) {
    if (!is_view_index(x, item)) return methods().attr("index")(self, key);
  }
  int used = 0;
  for (nb::handle item : items) used += item.is_none() || item.ptr() == Py_Ellipsis ? 0 : 1;
  if (used > x.rank()) throw nb::index_error("Tensor: too many indices");
  Tensor result = x;
  int axis = 0;
  for (nb::handle item : items) {
    if (item.is_none()) {
      result = reshape(result, result.shape().inserted(axis++, 1));
    } else if (item.ptr() == Py_Ellipsis) {
      axis += x.rank() - used;
    } else {
      result = take(result, item, axis);
    }
  }
  return nb::cast(std::move(result));
}

namespace {

using Arithmetic = Tensor (*)(const Tensor&, const Tensor&);

// a op b, or b op a if swapped. NumPy computes with whole numbers.
nb::object arithmetic(nb::handle self, nb::handle b, Arithmetic op, const char* ufunc, bool swapped) {
  Tensor a = nb::cast<Tensor>(self), other;
  const auto by_numpy = [&] {
    return swapped ? methods().attr("by_numpy")(ufunc, b, self) : methods().attr("by_numpy")(ufunc, self, b);
  };
  if (nb::isinstance<Tensor>(b) || (nb::hasattr(b, "__dlpack__") && !is_numpy_scalar(b))) {
    other = to_tensor(b, {"arithmetic", "other"});
    if (!is_floating(a.dtype()) && !is_floating(other.dtype())) return by_numpy();
  } else if (is_number(b)) {
    if (!is_floating(a.dtype())) {
      if (!PyFloat_Check(b.ptr())) return by_numpy();
      a = a.to(Dtype::f32);
    }
    const double number = to_double(b);
    return nb::cast(unlocked([&] {
      return detail::with_number(
          a, number, [&](const Tensor& x, const Tensor& y) { return swapped ? op(y, x) : op(x, y); });
    }));
  } else if (PyList_Check(b.ptr()) || PyTuple_Check(b.ptr()) || PyUnicode_Check(b.ptr()) ||
             PyBytes_Check(b.ptr())) {
    // Python would repeat it as often as an integer tensor says.
    throw nb::type_error(concat("Tensor: a ", nb::cast<std::string>(b.type().attr("__name__")),
                                " is no operand; write tensor(...)")
                             .c_str());
  } else {
    return nb::borrow(nb::handle(Py_NotImplemented));
  }
  return nb::cast(unlocked([&] { return swapped ? op(other, a) : op(a, other); }));
}

}  // namespace

void bind_operators(nb::class_<Tensor>& c) {
  const auto define = [&](const char* name, const char* reflected, Arithmetic op, const char* ufunc) {
    for (const bool swapped : {false, true}) {
      c.def(
          swapped ? reflected : name,
          [=](nb::handle a, nb::handle b) { return arithmetic(a, b, op, ufunc, swapped); }, "other"_a,
          nb::is_operator());
    }
  };
  define("__add__", "__radd__", &add, "add");
  define("__sub__", "__rsub__", &sub, "subtract");
  define("__mul__", "__rmul__", &mul, "multiply");
  define("__truediv__", "__rtruediv__", &div, "divide");
  define("__matmul__", "__rmatmul__", &matmul, "matmul");
  c.def("__neg__", [](const Tensor& a) {
    if (!is_floating(a.dtype())) return nb::cast<Tensor>(methods().attr("by_numpy")("negative", a));
    return unlocked([&] { return neg(a); });
  });
}

void bind_tracing(nb::module_& m) {
  m.def("is_recording", [] { return is_tracing || Tape::current() != nullptr; });
  m.def(
      "refuse_while_tracing", [](const Tensor& x) { refuse_while_tracing(x); }, "x"_a,
      "Raises TypeError if the tensor requires a gradient and a function is traced.");
  m.def("has_tape", [] { return Tape::current() != nullptr; });
  m.def(
      "set_tracing", [](bool tracing) { return std::exchange(is_tracing, tracing); }, "tracing"_a,
      "Whether a function is traced on this thread from now on; returns what was.");
}

}  // namespace multihead::python
