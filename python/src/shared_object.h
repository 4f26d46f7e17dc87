// Python objects that C++ keeps.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

#include "python/src/gil.h"

namespace multihead::python {

/// A Python object that may be let go without the interpreter's lock. When the interpreter ends it stays.
inline std::shared_ptr<nanobind::object> shared(nanobind::object object) {
  return {new nanobind::object(std::move(object)), [](nanobind::object* held) {
            if (!Py_IsInitialized()) return;
            const Locked locked;
            delete held;
          }};
}

}  // namespace multihead::python
