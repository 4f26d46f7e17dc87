// From mh::Tensor to DLPack capsules and Python buffers, sharing the memory.
#include <array>
#include <memory>

#include "python/src/tensor/convert.h"
#include "python/src/tensor/dlpack.h"
#include "python/src/tensor/operators.h"

namespace multihead::python {
namespace {

// Lives as long as an exported view.
struct BufferSizes {
  Tensor kept;
  std::array<Py_ssize_t, 2 * Shape::kMaxRank> values;
};

nb::dlpack::dtype dlpack_dtype(Dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  const Code code = dtype == Dtype::bf16      ? Code::Bfloat
                    : dtype == Dtype::boolean ? Code::Bool
                    : is_floating(dtype)      ? Code::Float
                                              : Code::Int;
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(8 * size_of(dtype)), 1};
}

// A structure of DLPack with what it points to.
template <class Managed>
struct Export : Managed {
  Tensor kept;
  std::array<int64_t, 2 * Shape::kMaxRank> sizes;
};

template <class Managed>
Managed* exported(const Tensor& tensor) {
  auto* to = new Export<Managed>();
  to->kept = tensor;
  const int rank = tensor.rank();
  for (int i = 0; i < rank; ++i) {
    to->sizes[static_cast<size_t>(i)] = tensor.size(i);
    to->sizes[static_cast<size_t>(Shape::kMaxRank + i)] = tensor.strides()[i];
  }
  nb::dlpack::dltensor& t = to->tensor;
  t.data = tensor.raw();
  t.device = {kCpu, 0};
  t.ndim = rank;
  t.dtype = dlpack_dtype(tensor.dtype());
  t.shape = to->sizes.data();
  t.strides = to->sizes.data() + Shape::kMaxRank;
  t.byte_offset = 0;
  to->context = nullptr;
  to->deleter = [](Managed* m) { delete static_cast<Export<Managed>*>(m); };
  return to;
}

}  // namespace

std::unique_ptr<VersionedTensor, VersionedDeleter> to_versioned_dlpack(const Tensor& tensor) {
  auto* to = exported<VersionedTensor>(tensor);
  to->version = {1, 0};
  to->flags = 0;
  return std::unique_ptr<VersionedTensor, VersionedDeleter>(to);
}

nb::object to_dlpack(const Tensor& tensor) {
  auto* managed = exported<ManagedTensor>(tensor);
  PyObject* capsule = PyCapsule_New(managed, "dltensor", [](PyObject* self) {
    if (!PyCapsule_IsValid(self, "dltensor")) return;  // it has been consumed
    auto* m = static_cast<ManagedTensor*>(PyCapsule_GetPointer(self, "dltensor"));
    m->deleter(m);
  });
  if (capsule == nullptr) {
    managed->deleter(managed);
    throw nb::python_error();
  }
  return nb::steal(capsule);
}

int get_buffer(PyObject* exporter, Py_buffer* view, int flags) {
  const Tensor& tensor = *nb::inst_ptr<Tensor>(exporter);
  try {
    refuse_while_tracing(tensor);
  } catch (const nb::builtin_exception& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
    view->obj = nullptr;
    return -1;
  }
  static const char* const formats[] = {"f", "d", nullptr, "e", "q", "i", "?"};
  const char* format = formats[static_cast<int>(tensor.dtype())];
  if (format == nullptr || ((flags & PyBUF_STRIDES) != PyBUF_STRIDES && !tensor.is_contiguous())) {
    PyErr_SetString(PyExc_BufferError,
                    format == nullptr ? "Tensor: bfloat16 has no buffer format; use to('float32') or DLPack"
                                      : "Tensor: the memory is strided, but a plain buffer was requested");
    view->obj = nullptr;
    return -1;
  }
  auto* sizes = new BufferSizes{tensor, {}};
  const auto item = static_cast<Py_ssize_t>(size_of(tensor.dtype()));
  for (int i = 0; i < tensor.rank(); ++i) {
    sizes->values[static_cast<size_t>(i)] = tensor.size(i);
    sizes->values[static_cast<size_t>(Shape::kMaxRank + i)] = tensor.strides()[i] * item;
  }
  view->obj = exporter;
  Py_INCREF(exporter);
  view->buf = tensor.raw();
  view->len = static_cast<Py_ssize_t>(tensor.bytes());
  view->itemsize = item;
  view->readonly = 0;
  view->ndim = tensor.rank();
  view->format = (flags & PyBUF_FORMAT) != 0 ? const_cast<char*>(format) : nullptr;
  view->shape = sizes->values.data();
  view->strides = sizes->values.data() + Shape::kMaxRank;
  view->suboffsets = nullptr;
  view->internal = sizes;
  return 0;
}

void release_buffer(PyObject*, Py_buffer* view) { delete static_cast<BufferSizes*>(view->internal); }

}  // namespace multihead::python
