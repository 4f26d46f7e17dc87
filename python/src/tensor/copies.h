// Deep copies that keep what is tied.
#pragma once

#include <nanobind/nanobind.h>

#include "multihead/core/tensor/tensor.h"

namespace multihead::python {

namespace nb = nanobind;

inline bool is_leaf(const Tensor& t) { return t.gradient_slot() == nullptr || t.gradient_slot()->leaf; }

/// The same for every handle of one tensor: (first element, gradient).
inline nb::tuple identity_of(const Tensor& t) {
  return nb::make_tuple(reinterpret_cast<uintptr_t>(t.raw()),
                        reinterpret_cast<uintptr_t>(t.gradient_slot().get()), t.numel());
}

/// The copy of a tensor in one copy.deepcopy(), whose memo holds those of all handles.
inline Tensor deep_copy(const Tensor& t, nb::dict& memo) {
  if (!is_leaf(t)) {
    throw nb::type_error(
        "Tensor: a result that a Tape has recorded has no copy with its gradient; copy tensor.detach()");
  }
  const nb::tuple key = nb::make_tuple("multihead", identity_of(t), to_string(t.shape()).c_str(),
                                       to_string(t.strides()).c_str(), static_cast<int>(t.dtype()));
  if (memo.contains(key)) return nb::cast<Tensor>(nb::object(nb::object(memo[key])[0]));
  Tensor copy = t.clone();
  copy.set_requires_grad(t.requires_grad());
  memo[key] = nb::make_tuple(copy, t);  // t stays alive, so that nothing else takes its place meanwhile
  return copy;
}

}  // namespace multihead::python
