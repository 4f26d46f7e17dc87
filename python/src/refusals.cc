// Rewrites nanobind's error about arguments that fit no overload in the library's words.
#include <nanobind/nanobind.h>

#include <string_view>

// In nanobind's own sources this stands for PyErr_SetString (CMakeLists.txt): there is no other way to change
// a message that lists C++ bindings.
extern "C" void multihead_set_error(PyObject* type, const char* message);

void multihead_set_error(PyObject* type, const char* message) {
  constexpr std::string_view kNoOverload = "(): incompatible function arguments. The following";
  PyErr_SetString(type, message);
  if (std::string_view(message).find(kNoOverload) == std::string_view::npos) return;
  PyObject *kind = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&kind, &value, &traceback);
  PyObject* module = PyImport_ImportModule("multihead._refusals");
  PyObject* text = module != nullptr ? PyObject_CallMethod(module, "explain", "s", message) : nullptr;
  Py_XDECREF(module);
  if (text == nullptr) {  // the package is being imported, or the interpreter ends
    PyErr_Clear();
    PyErr_Restore(kind, value, traceback);
    return;
  }
  Py_XDECREF(kind);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
  PyErr_SetObject(PyExc_TypeError, text);
  Py_DECREF(text);
}
