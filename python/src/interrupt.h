// Ctrl-C during long work: Python's handler only sets a flag, which somebody has to look at.
#pragma once

#include <atomic>

#include "python/src/gil.h"

namespace multihead::python {

namespace nb = nanobind;

class Interrupt {
 public:
  /// Whether it came. Asked by any thread, without the interpreter's lock; the main thread is the one that
  /// hears.
  bool came() {
    if (came_.load()) return true;
    const Locked locked;
    if (PyErr_CheckSignals() != 0) take(nb::python_error());
    return came_.load();
  }
  /// Keeps what a callback was interrupted with.
  void take(const nb::python_error& error) {
    error_ = nb::borrow(error.value());
    came_.store(true);
  }
  /// Raises it, once the work has ended; with the interpreter's lock.
  void raise_if_any() const {
    if (!error_.is_valid()) return;
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error_.ptr())), error_.ptr());
    throw nb::python_error();
  }

 private:
  std::atomic<bool> came_{false};
  nb::object error_;
};

}  // namespace multihead::python
