// Memory that a Python object lends for reading only. Functions read it where it lies; what they return can be written to.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "multihead/core/tensor/tensor.h"

namespace multihead::python {

namespace nb = nanobind;

/// A copy, with its gradient, of a tensor in memory that `source` says must not be written to; else the tensor itself.
Tensor writable(const Tensor& tensor, nb::handle source);

/// The same in place, for a result of a function that was given `source`.
inline void make_writable(Tensor& result, nb::handle source) {
  if (result.defined() && !result.is_unique()) result = writable(result, source);
}
inline void make_writable(std::vector<Tensor>& results, nb::handle source) {
  for (Tensor& result : results) make_writable(result, source);
}
template <class Result>
void make_writable(Result&, nb::handle) {}  // in memory of its own

}  // namespace multihead::python
