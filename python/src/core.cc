#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <new>
#include <string>
#include <string_view>

#include "cli/program.h"
#include "multihead/core/error.h"
#include "multihead/core/memory/memory.h"
#include "multihead/core/memory/storage.h"
#include "multihead/core/tensor/tensor.h"
#include "multihead/core/text/json.h"
#include "multihead/core/text/utf8.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/core/threads/threads.h"
#include "multihead/core/version.h"
#include "multihead/kernels/amx/precision.h"
#include "multihead/kernels/cpu/isa.h"
#include "python/src/bindings.h"
#include "python/src/path.h"
#include "python/src/tensor/convert.h"

namespace multihead::python {
namespace {

struct Exceptions {
  nb::object shape, dtype, io, format, numeric;
};

Exceptions& exceptions() {
  static Exceptions* instance = new Exceptions;  // never freed: the interpreter is gone before statics are
  return *instance;
}

nb::object make_exception(nb::module_& m, const char* name, const char* doc, PyObject* base) {
  const std::string full = std::string("multihead.") + name;
  nb::object type = nb::steal(PyErr_NewExceptionWithDoc(full.c_str(), doc, base, nullptr));
  m.attr(name) = type;
  return type;
}

// Names of files and arguments may not be UTF-8, which Python would refuse, and may hold control characters
// for a terminal. Lists have a line for each member.
void raise(PyObject* type, const std::exception& error) {
  std::string shown;
  for (std::string_view rest = error.what(); !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    shown += printable(rest.substr(0, end));
    rest.remove_prefix(end);
    if (!rest.empty()) shown += '\n', rest.remove_prefix(1);
  }
  PyErr_SetString(type, shown.c_str());
}

void translate(const std::exception_ptr& pointer, void*) {
  const Exceptions& known = exceptions();
  try {
    std::rethrow_exception(pointer);
  } catch (const ShapeError& e) {
    raise(known.shape.ptr(), e);
  } catch (const DtypeError& e) {
    raise(known.dtype.ptr(), e);
  } catch (const ValueError& e) {
    raise(PyExc_ValueError, e);
  } catch (const IoError& e) {
    raise(known.io.ptr(), e);
  } catch (const FormatError& e) {
    raise(known.format.ptr(), e);
  } catch (const NumericError& e) {
    raise(known.numeric.ptr(), e);
  } catch (const MemoryError& e) {
    raise(PyExc_MemoryError, e);
  } catch (const std::bad_alloc&) {
    PyErr_SetString(PyExc_MemoryError, "multihead: out of memory");
  } catch (const std::bad_cast&) {
    PyErr_SetString(PyExc_TypeError, "multihead: a value has an unexpected type or size");
  }
}

}  // namespace

void bind_core(nb::module_& m) {
  // Creates the lazily made objects here, where no other thread can fork: a fork while one is being made
  // would leave its guard locked in the child for ever.
  Tensor::zeros({1}).set_requires_grad(true).grad();  // the storage, the pool, the gradients' locks
  kernels::bf16_dots();
  kernels::int8_dots();
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] { is_finalizing = true; }));
  Exceptions& e = exceptions();
  e.shape =
      make_exception(m, "ShapeError", "A tensor has the wrong rank, sizes or strides.", PyExc_ValueError);
  e.dtype = make_exception(m, "DtypeError", "A tensor has a dtype the operation does not support.",
                           PyExc_TypeError);
  e.io = make_exception(m, "IoError", "Reading or writing failed.", PyExc_OSError);
  e.format = make_exception(m, "FormatError", "A file violates its format.", PyExc_ValueError);
  e.numeric = make_exception(m, "NumericError", "NaN or Inf in a computation.", PyExc_FloatingPointError);
  nb::register_exception_translator(translate);

  m.attr("__version__") = std::string(version());
  m.def(
      "git_hash", [] { return std::string(git_hash()); }, "Commit the library was built from, or ''.");
  m.def(
      "run_program",
      [](const std::vector<Path>& arguments) {
        return cli::program({arguments.begin(), arguments.end()});
      },
      nb::arg("arguments"), "The command line; the exit code. For python -m multihead.");
  m.def("num_threads", &num_threads, "Number of threads of the kernels, the caller included.");
  m.def("missing_threads", &missing_threads,
        "Threads that the system could not start (a limit on processes or address space); the others do "
        "their work. 0 before the first call that needs them; set_num_threads() retries.");
  m.def("set_num_threads", &set_num_threads, nb::arg("threads"), nb::call_guard<Unlocked>(),
        "Sets the number of threads; ValueError unless 1 <= threads <= 1024.");
  m.def(
      "set_float32_matmul_precision",
      [](const std::string& precision) {
        kernels::set_float32_matmul_precision(kernels::parse_precision(precision));
      },
      nb::arg("precision"),
      "Precision of f32 matrix products on CPUs with AMX: 'highest' (the default), 'high', 'medium' or "
      "'highest_tiles'. No effect on other CPUs.");
  m.def(
      "float32_matmul_precision",
      [] { return std::string(kernels::precision_name(kernels::float32_matmul_precision())); },
      "The current setting of set_float32_matmul_precision().");
  m.def("has_tiles", &kernels::has_tiles, "Whether f32 matrix products can run on AMX tiles here.");
  m.def(
      "isa", [] { return std::string(kernels::isa_name(kernels::current_isa())); },
      "The instruction set of the kernels: 'baseline', 'avx2', 'avx512' or, on ARM, 'neon'. MULTIHEAD_ISA "
      "caps it.");
  m.def(
      "cpu_name", [] { return std::string(kernels::cpu_name()); }, "The CPU's name.");
  m.def(
      "memory_stats",
      [] {
        const MemoryStats s = memory_stats();
        nb::dict d;
        d["live_bytes"] = s.live_bytes;
        d["peak_bytes"] = s.peak_bytes;
        d["cached_bytes"] = s.cached_bytes;
        d["system_allocations"] = s.system_allocations;
        return d;
      },
      "Current and peak bytes of tensors, and free bytes kept for reuse.");
  m.def("release_cached_memory", &release_cached_memory, "Returns cached memory to the system.");
  if (const std::string missing = kernels::missing_vectors();
      !missing.empty() && PyErr_WarnEx(PyExc_RuntimeWarning, missing.c_str(), 1) != 0) {
    throw nb::python_error();
  }
}

}  // namespace multihead::python
