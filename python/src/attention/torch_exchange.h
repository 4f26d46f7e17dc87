// PyTorch's tensors in and out of C++ by DLPack's table of C functions (PyTorch 2.10 and later; capsules
// before).
#pragma once

#include "python/src/tensor/convert.h"

namespace multihead::python {

/// Looks for the table of `tensor_type`, torch.Tensor; until it is found everything goes through capsules.
void find_torch_exchange(nb::handle tensor_type);

/// The tensor's memory, of which the Python object stays the owner: only for as long as the caller holds it.
Tensor borrow_from_torch(nb::handle object, Argument argument);

/// A torch.Tensor that shares the memory; None for an undefined one.
nb::object give_to_torch(const Tensor& tensor);

}  // namespace multihead::python
