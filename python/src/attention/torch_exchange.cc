#include "python/src/attention/torch_exchange.h"

#include "python/src/tensor/dlpack.h"

namespace multihead::python {
namespace {

// DLPackExchangeAPI of DLPack 1.x, as far as it is used.
struct ExchangeTable {
  struct {
    uint32_t major, minor;
  } version;
  const void* previous;
  void* allocate;
  void* export_managed;
  int (*import_managed)(VersionedTensor*, void** object);
  int (*view)(void* object, nb::dlpack::dltensor*);
};

const ExchangeTable* exchange = nullptr;
PyTypeObject* exchanged_type = nullptr;  // torch.Tensor

bool is_exchanged(nb::handle object) {
  return exchange != nullptr && PyType_IsSubtype(Py_TYPE(object.ptr()), exchanged_type) != 0;
}

}  // namespace

void find_torch_exchange(nb::handle tensor_type) {
  nb::object capsule = nb::steal(PyObject_GetAttrString(tensor_type.ptr(), "__dlpack_c_exchange_api__"));
  if (!capsule.is_valid()) return PyErr_Clear();
  const auto* table =
      static_cast<const ExchangeTable*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (table == nullptr) return PyErr_Clear();
  if (table->version.major != 1 || table->view == nullptr || table->import_managed == nullptr) return;
  exchanged_type = reinterpret_cast<PyTypeObject*>(nb::object(nb::borrow(tensor_type)).release().ptr());
  exchange = table;
}

Tensor borrow_from_torch(nb::handle object, Argument argument) {
  if (!is_exchanged(object)) return to_tensor(object, argument);
  nb::dlpack::dltensor view;
  if (exchange->view(object.ptr(), &view) != 0) throw nb::python_error();
  return from_dltensor(view, nullptr, argument);
}

nb::object give_to_torch(const Tensor& tensor) {
  if (!tensor.defined()) return nb::none();
  if (exchange == nullptr) {
    return nb::module_::import_("torch").attr("_C").attr("_from_dlpack")(to_dlpack(tensor));
  }
  auto exported = to_versioned_dlpack(tensor);
  void* object = nullptr;
  if (exchange->import_managed(exported.get(), &object) != 0) throw nb::python_error();
  exported.release();
  return nb::steal(static_cast<PyObject*>(object));
}

}  // namespace multihead::python
