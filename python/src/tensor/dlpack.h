// DLPack's C structures, as far as nanobind does not have them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>

#include "python/src/tensor/convert.h"

namespace multihead::python {

namespace nb = nanobind;

struct ManagedTensor {  // DLManagedTensor
  nb::dlpack::dltensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

struct VersionedTensor {  // DLManagedTensorVersioned
  struct {
    uint32_t major, minor;
  } version;
  void* context;
  void (*deleter)(VersionedTensor*);
  uint64_t flags;
  nb::dlpack::dltensor tensor;
};

struct VersionedDeleter {
  void operator()(VersionedTensor* t) const { t->deleter(t); }
};

constexpr int32_t kCpu = 1, kCudaHost = 3;

/// The memory that a structure of DLPack describes, kept alive by `owner`. Raises TypeError, ValueError.
Tensor from_dltensor(const nb::dlpack::dltensor& t, std::shared_ptr<void> owner, Argument argument);
/// The tensor for a consumer of DLPack 1.x, which releases it by its deleter.
std::unique_ptr<VersionedTensor, VersionedDeleter> to_versioned_dlpack(const Tensor& tensor);

}  // namespace multihead::python
