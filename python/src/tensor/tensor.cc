#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <thread>

#include "multihead/autograd/autocast.h"
#include "multihead/autograd/pending-inl.h"
#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"
#include "python/src/bindings.h"
#include "python/src/tensor/convert.h"
#include "python/src/tensor/copies.h"
#include "python/src/tensor/operators.h"
#include "python/src/tensor/read_only.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

// A Tape records between __enter__ and __exit__ on the thread that entered.
class PyTape {
 public:
  PyTape* enter() {
    MH_CHECK(tape_ == nullptr, ValueError, "Tape: already recording; make a new Tape for a nested block");
    tape_ = std::make_unique<Tape>();
    thread_ = std::this_thread::get_id();
    return this;
  }
  void exit() {
    if (tape_ == nullptr) return;
    MH_CHECK(thread_ == std::this_thread::get_id() && Tape::current() == tape_.get(), ValueError,
             "Tape: blocks must end on the thread and in the order in which they began");
    tape_.reset();
  }
  Tape& get() const {
    MH_CHECK(tape_ != nullptr, ValueError, "Tape: not recording; call backward() inside the with block");
    MH_CHECK(thread_ == std::this_thread::get_id(), ValueError, "Tape: belongs to another thread");
    return *tape_;
  }
  // An abandoned tape of another thread, or out of order, cannot be taken out of that thread's stack.
  ~PyTape() {
    if (tape_ && (thread_ != std::this_thread::get_id() || Tape::current() != tape_.get())) {
      static_cast<void>(tape_.release());
    }
  }

 private:
  std::unique_ptr<Tape> tape_;
  std::thread::id thread_;
};

class PyNoTape {
 public:
  void enter() {
    MH_CHECK(hidden_ == nullptr, ValueError, "NoTape: already hiding; make a new NoTape for a nested block");
    hidden_ = std::make_unique<NoTape>();
    thread_ = std::this_thread::get_id();
  }
  void exit() {
    if (hidden_ == nullptr) return;
    MH_CHECK(is_innermost(), ValueError,
             "NoTape: blocks must end on the thread and in the order in which they began");
    hidden_.reset();
  }
  // As with a Tape: it would give one thread the tape of another.
  ~PyNoTape() {
    if (hidden_ && !is_innermost()) static_cast<void>(hidden_.release());
  }

 private:
  bool is_innermost() const { return thread_ == std::this_thread::get_id() && Tape::current() == nullptr; }

  std::unique_ptr<NoTape> hidden_;
  std::thread::id thread_;
};

// An Autocast between __enter__ and __exit__ on the thread that entered.
class PyAutocast {
 public:
  explicit PyAutocast(Dtype dtype) : dtype_(dtype) { const Autocast checked(dtype); }
  void enter() {
    MH_CHECK(scope_ == nullptr, ValueError, "autocast: already active; make a new one for a nested block");
    scope_ = std::make_unique<Autocast>(dtype_);
    thread_ = std::this_thread::get_id();
  }
  void exit() {
    if (scope_ == nullptr) return;
    MH_CHECK(thread_ == std::this_thread::get_id(), ValueError,
             "autocast: blocks must end on the thread on which they began");
    scope_.reset();
  }
  // As with a Tape: it would change another thread.
  ~PyAutocast() {
    if (scope_ && thread_ != std::this_thread::get_id()) static_cast<void>(scope_.release());
  }

 private:
  Dtype dtype_;
  std::unique_ptr<Autocast> scope_;
  std::thread::id thread_;
};

// As NumPy sees it: a view for every dtype that NumPy has.
nb::object to_numpy(nb::handle self) {
  const Tensor& x = nb::cast<const Tensor&>(self);
  refuse_while_tracing(x);
  nb::object numpy = nb::module_::import_("numpy");
  if (x.dtype() != Dtype::bf16) return numpy.attr("asarray")(nb::steal(PyMemoryView_FromObject(self.ptr())));
  nb::object bfloat16;
  try {
    bfloat16 = nb::module_::import_("ml_dtypes").attr("bfloat16");
  } catch (nb::python_error&) {
    throw nb::type_error("Tensor: NumPy has no bfloat16; install ml_dtypes or convert with to('float32')");
  }
  const Tensor wide = unlocked([&] { return x.to(Dtype::f32); });
  return to_numpy(nb::cast(wide)).attr("astype")(bfloat16);
}

void check_gradient(const Tensor& t, const Tensor& gradient) {
  MH_CHECK(gradient.shape() == t.shape(), ShapeError, "Tensor: grad must be ", t.shape(), ", got ",
           gradient.shape());
  const Dtype dtype = detail::arithmetic_dtype(t.dtype());
  MH_CHECK(gradient.dtype() == dtype, DtypeError, "Tensor: grad of ", t.dtype(), " must be ", dtype, ", got ",
           gradient.dtype());
}

void bind_gradients(nb::class_<Tensor>& c) {
  c.def_prop_ro("is_leaf", &is_leaf, "False for a result that a Tape has recorded.");
  c.def_prop_ro("_identity", &identity_of, "The same for every handle of one tensor.");
  c.def_prop_rw(
      "requires_grad", [](const Tensor& t) { return t.requires_grad(); },
      [](Tensor& t, bool value) { t.set_requires_grad(value); },
      "True for a leaf that accumulates a gradient and for results computed from one under a Tape.");
  c.def(
      "requires_grad_",
      [](nb::object self, bool value) {
        nb::cast<Tensor&>(self).set_requires_grad(value);
        return self;
      },
      "value"_a = true);
  c.def_prop_rw(
      "grad",
      [](const Tensor& t) -> std::optional<Tensor> {
        if (!t.requires_grad()) return std::nullopt;
        Tensor g = t.grad();
        return g.defined() ? std::optional(g) : std::nullopt;
      },
      [](Tensor& t, nb::handle g) {
        const Tensor gradient = writable(to_tensor_or_none(g, {"Tensor", "grad"}), g);
        if (gradient.defined()) check_gradient(t, gradient);
        t.set_grad(gradient);
      },
      nb::for_setter(nb::arg("value").none()), "None until Tape.backward() has reached this tensor.");
}

void bind_shapes(nb::class_<Tensor>& c) {
  c.def(
      "reshape",
      [](const Tensor& t, nb::args shape) {
        nb::handle sizes = shape.size() == 1 && !PyLong_Check(nb::handle(shape[0]).ptr())
                               ? nb::handle(shape[0])
                               : nb::handle(shape);
        const Shape target = to_shape(sizes, {"reshape", "shape"});
        return unlocked([&] { return reshape(t, target); });
      },
      "The same elements in another shape; one size may be -1. A view if the strides allow it.");
  c.def(
      "transpose", [](const Tensor& t, int a, int b) { return transpose(t, a, b); }, "a"_a, "b"_a,
      "View with two axes swapped.");
  c.def(
      "expand",
      [](const Tensor& t, nb::handle shape) {
        return expand(t, to_shape(shape, {"expand", "shape"}));
      },
      "shape"_a, "View with axes of size 1 repeated.");
  c.def("contiguous", [](const Tensor& t) { return unlocked([&] { return contiguous(t); }); });
  c.def(
      "clone",
      [](const Tensor& t) {
        const Tensor copy = unlocked([&] { return t.clone(); });
        return record({t}, copy, [](const Tensor& d) -> Gradients { return {d}; });
      },
      "A row-major copy. Differentiable.");
  c.def("_copy_from", [](const Tensor& t, const Tensor& source) {  // in t's dtype
    detail::refuse_pending_backward("load_state_dict");
    t.copy_from(source);
  });
  c.def("detach", &Tensor::detach, "Same memory, no gradient.");
  c.def(
      "to",
      [](const Tensor& t, nb::handle dtype) {
        const Dtype d = to_dtype(dtype);
        return unlocked([&] { return cast(t, d); });
      },
      "dtype"_a, "Converted copy, or this tensor if it already has the dtype. Differentiable.");
}

void bind_tapes(nb::module_& m) {
  nb::class_<PyTape>(m, "Tape",
                     "Records operations inside its with block, on this thread.\n\n    with Tape() as "
                     "tape:\n        loss = cross_entropy(model(x), y)\n        tape.backward(loss)")
      .def(nb::init<>())
      .def("__enter__", &PyTape::enter, nb::rv_policy::reference)
      .def("__exit__", [](PyTape& t, nb::args) { t.exit(); })
      .def("__len__", [](const PyTape& t) { return t.get().size(); })
      .def(
          "backward",
          [](PyTape& t, const Tensor& loss, nb::handle seed) {
            const Tensor d = to_tensor_or_none(seed, {"backward", "seed"});
            Tape& tape = t.get();
            const Unlocked without;
            tape.backward(loss, d);
          },
          "loss"_a, "seed"_a = nb::none(),
          "Accumulates d(sum(seed * loss))/d(leaf) into leaf.grad of every leaf and clears the tape.");
  nb::class_<PyNoTape>(m, "NoTape", "Disables recording on this thread inside its with block.")
      .def(nb::init<>())
      .def("__enter__",
           [](nb::object self) {
             nb::cast<PyNoTape&>(self).enter();
             return self;
           })
      .def("__exit__", [](PyNoTape& t, nb::args) { t.exit(); });
  nb::class_<PyAutocast>(m, "autocast",
                         "Mixed precision on this thread inside its with block, by the rules of PyTorch's "
                         "autocast: linear, matmul and attention in bf16 (dtype \"float32\": off), norms, "
                         "softmax and losses in f32. Weights and gradients stay f32.")
      .def(
          "__init__", [](PyAutocast* self, nb::handle dtype) { new (self) PyAutocast(to_dtype(dtype)); },
          "dtype"_a = "bfloat16")
      .def("__enter__",
           [](nb::object self) {
             nb::cast<PyAutocast&>(self).enter();
             return self;
           })
      .def("__exit__", [](PyAutocast& t, nb::args) { t.exit(); });
}

void bind_makers(nb::module_& m) {
  m.def(
      "tensor",
      [](nb::handle data, nb::handle dtype, bool requires_grad) {
        Tensor t = to_tensor(data, {"tensor", "data"});
        if (t.requires_grad() && Tape::current() != nullptr) {
          throw nb::type_error(
              "tensor: data is a Tensor that requires a gradient, which would be lost; use it as it is, "
              "to() or clone() of it, or take its detach()");
        }
        t = t.detach();
        if (is_read_only(data)) t = t.clone();  // a Tensor can be written to
        if (!dtype.is_none()) t = t.to(to_dtype(dtype));
        if (requires_grad) t.set_requires_grad();
        return t;
      },
      "data"_a.none(), nb::kw_only(), "dtype"_a = nb::none(), "requires_grad"_a = false,
      "A Tensor over the memory of a NumPy array, a PyTorch or JAX CPU tensor, any DLPack or buffer object; "
      "a\ncopy where sharing is impossible (lists, negative strides, non-native byte order) or dtype "
      "differs.");
  m.def(
      "zeros",
      [](nb::handle s, nb::handle d) {
        return Tensor::zeros(to_shape(s, {"zeros", "shape"}), to_dtype(d));
      },
      "shape"_a, "dtype"_a = "float32", "A new Tensor filled with one number.");
  m.def(
      "ones",
      [](nb::handle s, nb::handle d) {
        return Tensor::ones(to_shape(s, {"ones", "shape"}), to_dtype(d));
      },
      "shape"_a, "dtype"_a = "float32", "A new Tensor filled with one number.");

  nb::class_<Rng>(m, "Rng", "Counter-based random numbers (Philox): a seed and the number of streams drawn.")
      .def(nb::init<uint64_t, uint64_t>(), "seed"_a, "drawn"_a = 0)
      .def_prop_ro("seed", &Rng::seed)
      .def_prop_ro("drawn", &Rng::drawn)
      .def("__repr__",
           [](const Rng& r) { return concat("Rng(seed=", r.seed(), ", drawn=", r.drawn(), ")"); });
  m.def(
      "rand",
      [](nb::handle s, Rng& rng, nb::handle d) {
        return rand(to_shape(s, {"rand", "shape"}), rng, to_dtype(d));
      },
      "shape"_a, "rng"_a, "dtype"_a = "float32", "Uniform numbers in [0, 1).");
  m.def(
      "randn",
      [](nb::handle s, Rng& rng, nb::handle d) {
        return randn(to_shape(s, {"randn", "shape"}), rng, to_dtype(d));
      },
      "shape"_a, "rng"_a, "dtype"_a = "float32", "Normal numbers.");
}

void bind_tensor_class(nb::module_& m) {
  bind_tracing(m);
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                                {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
                                {0, nullptr}};
  nb::class_<Tensor> c(
      m, "Tensor", nb::type_slots(slots),
      "A handle to typed, strided memory with an optional gradient.\n\nCreate one with "
      "multihead.tensor(array); numpy.asarray(tensor) and torch.from_dlpack(tensor) share its memory.");
  c.def_prop_ro("shape", [](const Tensor& t) { return to_tuple(t.shape()); });
  c.def_prop_ro(
      "strides", [](const Tensor& t) { return to_tuple(t.strides()); }, "In elements.");
  c.def_prop_ro("dtype", [](const Tensor& t) {
    static const char* const names[] = {"float32", "float64", "bfloat16", "float16",
                                        "int64",   "int32",   "bool"};
    return names[static_cast<int>(t.dtype())];
  });
  c.def_prop_ro("ndim", &Tensor::rank);
  c.def_prop_ro("size", &Tensor::numel);
  c.def_prop_ro("nbytes", &Tensor::bytes);
  c.def_prop_ro("is_contiguous", &Tensor::is_contiguous);
  c.def_prop_ro("data_ptr", [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.raw()); });
  c.def("item", &python_number, nb::sig("def item(self) -> float"),
        "The value of a tensor with one element.");
  c.def("__float__", &number_of);
  c.def("__len__", [](const Tensor& t) {
    if (t.rank() == 0) throw nb::type_error("len() of a tensor without axes");
    return t.size(0);
  });
  c.def("__getitem__", &get_item, nb::arg().none(),
        nb::sig("def __getitem__(self, key: object, /) -> Tensor"));
  c.def("numpy", &to_numpy, nb::sig("def numpy(self) -> numpy.ndarray"),
        "A NumPy array over the same memory (for bfloat16 a copy, which needs the package ml_dtypes).");
  c.def(
      "__array__",
      [](nb::object self, nb::object dtype, nb::object copy) {
        nb::object array = to_numpy(self);
        if (!dtype.is_none()) array = array.attr("astype")(dtype, "copy"_a = false);
        return is_true(copy) ? array.attr("copy")() : array;
      },
      "dtype"_a = nb::none(), "copy"_a = nb::none());
  c.def(
      "__dlpack__",
      [](const Tensor& t, nb::handle stream, nb::handle, nb::handle device, nb::handle copy) {
        if (!stream.is_none()) throw nb::buffer_error("Tensor: stream must be None: the memory is the CPU's");
        if (!device.is_none() && !device.equal(nb::make_tuple(1, 0)))
          throw nb::buffer_error("Tensor: dl_device must be (1, 0), the CPU, or None");
        const bool is_copy = !copy.is_none() && is_true(copy);
        return to_dlpack(is_copy ? unlocked([&] { return t.clone(); }) : t);
      },
      nb::kw_only(), "stream"_a = nb::none(), "max_version"_a = nb::none(), "dl_device"_a = nb::none(),
      "copy"_a = nb::none(), "A DLPack capsule that shares the memory, unless copy is true.");
  c.def("__dlpack_device__", [](const Tensor&) { return nb::make_tuple(1, 0); });
  c.def("tolist", [](const Tensor& t) {  // of bfloat16, too, which NumPy may lack
    refuse_while_tracing(t);
    return to_numpy(nb::cast(t.dtype() == Dtype::bf16 ? t.detach().to(Dtype::f32) : t)).attr("tolist")();
  });
  c.def(
      "__deepcopy__", [](const Tensor& t, nb::dict memo) { return deep_copy(t, memo); },
      "A leaf of its own; handles of one tensor in one deepcopy are handles of one copy, views of it are "
      "not.");
  bind_operators(c);
  bind_gradients(c);
  bind_shapes(c);
}

}  // namespace

void bind_tensor(nb::module_& m) {
  bind_tensor_class(m);
  bind_makers(m);
  bind_tapes(m);
}

}  // namespace multihead::python
