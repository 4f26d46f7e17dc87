// Operations whose result and gradient are Python functions.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "multihead/autograd/custom_op.h"
#include "python/src/gil.h"
#include "python/src/shared_object.h"
#include "python/src/tensor/bindings.h"
#include "python/src/tensor/convert.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

// A list of tensors, None where one is undefined.
nb::list to_list(const std::vector<Tensor>& tensors) {
  nb::list list;
  for (const Tensor& x : tensors) list.append(x.defined() ? nb::cast(x) : nb::none());
  return list;
}

// Arrays are copied: their owner may write to them before the backward ends.
std::vector<Tensor> from_tuple(const nb::object& given, const char* what) {
  std::vector<Tensor> tensors;
  for (nb::handle x : nb::cast<nb::tuple>(given)) {
    const Tensor found = to_tensor_or_none(x, {"custom_op", what});
    tensors.push_back(nb::isinstance<Tensor>(x) || !found.defined() ? found : found.clone());
  }
  return tensors;
}

std::vector<Tensor> python_op(const std::vector<Tensor>& inputs, const nb::object& forward,
                              const nb::object& backward) {
  return custom_op(
      inputs, [&](const std::vector<Tensor>& in) { return from_tuple(forward(to_list(in)), "a result"); },
      [held = shared(backward)](const std::vector<Tensor>& d, const std::vector<Tensor>& in,
                                const std::vector<Tensor>& results) -> Gradients {
        const Locked locked;
        return from_tuple((*held)(to_list(d), to_list(in), to_list(results)), "a gradient");
      });
}

}  // namespace

void bind_custom_op(nb::module_& m) {
  m.def("custom_op", &python_op, "inputs"_a, "forward"_a, "backward"_a,
        "The results of one call of an operation that multihead.custom_op made.");
}

}  // namespace multihead::python
