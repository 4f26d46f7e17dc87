// DLPack's C structures, as far as nanobind does not have them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

namespace multihead::python {

namespace nb = nanobind;

struct ManagedTensor {  // DLManagedTensor
  nb::dlpack::dltensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

constexpr int32_t kCpu = 1, kCudaHost = 3;

}  // namespace multihead::python
