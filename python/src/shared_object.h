// Python objects that C++ keeps.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

#include "python/src/gil.h"

namespace multihead::python {

/// A Python object that may be let go without the interpreter's lock.
inline std::shared_ptr<nanobind::object> shared(nanobind::object object) {
  return {new nanobind::object(std::move(object)), [](nanobind::object* held) {
            const Locked locked;
            delete held;
          }};
}

}  // namespace multihead::python
