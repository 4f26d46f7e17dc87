#pragma once

#include <nanobind/nanobind.h>

#include "multihead/core/tensor/tensor.h"
#include "python/src/tensor/convert.h"

namespace multihead::python {

/// Throws TypeError where a traced function would take the elements of a tensor that learns for constants.
void refuse_while_tracing(const Tensor& x);
/// The value of a tensor with one element, unless a traced function would take it for a constant.
double number_of(const Tensor& x);
/// The same as a Python number of the tensor's kind.
nb::object python_number(const Tensor& x);

/// tensor[key]
nb::object get_item(nb::handle self, nb::handle key);

void bind_operators(nb::class_<Tensor>& c);
void bind_tracing(nb::module_& m);

}  // namespace multihead::python
