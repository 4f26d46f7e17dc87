// Ctrl-C during long work: Python's handler only sets a flag, which has to be polled.
#pragma once

#include <atomic>
#include <chrono>

#include "multihead/core/threads/interrupt.h"
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

/// Releases the interpreter lock around f(), which Ctrl-C ends between two tasks of a kernel: for calls whose
/// results are thrown away then.
template <class F>
auto interruptible(F&& f) {
  struct Stopped {};
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kBetween(50);  // asking takes the interpreter's lock
  Interrupt interrupt;
  Clock::time_point next = Clock::now() + kBetween;
  const auto check = [&] {
    if (Clock::now() < next) return;
    if (interrupt.came()) throw Stopped();
    next = Clock::now() + kBetween;
  };
  try {
    return unlocked([&] {
      const InterruptScope scope(check);
      return f();
    });
  } catch (const Stopped&) {
    interrupt.raise_if_any();
    throw;
  }
}

}  // namespace multihead::python
