// Reports the progress of long calls.
#pragma once

#include <functional>

#include "python/src/bindings.h"
#include "python/src/modules.h"

namespace multihead::python {

/// Calls `progress`, unless it is None, with what is done and all of it, and notices an interrupt.
inline std::function<void(int64_t, int64_t)> reporter(nb::object progress) {
  return [progress](int64_t done, int64_t total) {
    const Locked locked;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (!progress.is_none()) progress(done, total);
  };
}

}  // namespace multihead::python
