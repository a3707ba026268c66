#include "python/bindings/bindings.h"

#include <array>
#include <mutex>

namespace callboard::python {
namespace {

PyObject* native_error = nullptr;  // set once, by the module's init; lives as long as the interpreter

const char* class_name(ErrorCode code) {
  switch (error_class(code)) {
    case ErrorClass::kMessage:
      return "message";
    case ErrorClass::kConfig:
      return "config";
    case ErrorClass::kProgram:
      return "program";
    case ErrorClass::kRequest:
      return "request";
    case ErrorClass::kActor:
      return "actor";
    case ErrorClass::kEnvironment:
      return "environment";
    case ErrorClass::kInternal:
      return "internal";
  }
  return "internal";
}

/// Text of any origin; what is not UTF-8 is replaced, so that an error can always be raised.
py::str text(const std::string& bytes) {
  PyObject* decoded = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

/// References that C++ threads let go. Leaked at exit on purpose: the interpreter may be gone by then.
struct Deferred {
  std::mutex mutex;
  std::vector<PyObject*> objects;  // guarded by mutex
};
Deferred& deferred() {
  static auto* all = new Deferred;
  return *all;
}

}  // namespace

void define_errors(py::module_& module) {
  native_error =
      PyErr_NewExceptionWithDoc("callboard._native.NativeError", "A failure; `error` describes it.", nullptr, nullptr);
  if (native_error == nullptr) throw py::error_already_set();
  module.attr("NativeError") = py::reinterpret_borrow<py::object>(native_error);
}

py::dict error_dict(const Error& error) {
  py::dict dict;
  dict["code"] = static_cast<int>(error.code);
  dict["name"] = std::string(error_name(error.code));
  dict["kind"] = class_name(error.code);
  dict["message"] = text(error.message);
  dict["hint"] = text(error.hint);
  dict["actor"] = text(error.actor);
  dict["op"] = text(error.op);
  dict["node"] = error.node;
  dict["detail"] = text(error.detail);
  py::list causes;
  for (const auto& cause : error.causes) causes.append(error_dict(cause));
  dict["causes"] = causes;
  dict["text"] = text(error.to_string());
  return dict;
}

void raise(const Error& error) {
  const auto type = py::reinterpret_borrow<py::object>(native_error);
  py::object exception = type(text(error.to_string()));
  exception.attr("error") = error_dict(error);
  PyErr_SetObject(native_error, exception.ptr());
  throw py::error_already_set();
}

bool interrupted_by_signal() {
  return ask_with_gil([] { return PyErr_CheckSignals() != 0; });
}

void rethrow_signal() {
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
}

std::shared_ptr<void> keep_object(py::object object) {
  if (object.is_none()) return nullptr;
  return std::shared_ptr<void>(object.release().ptr(), [](void* pointer) {
    Deferred& all = deferred();
    std::lock_guard lock(all.mutex);
    all.objects.push_back(static_cast<PyObject*>(pointer));
  });
}

void drop_deferred() {
  std::vector<PyObject*> objects;
  {
    Deferred& all = deferred();
    std::lock_guard lock(all.mutex);
    objects.swap(all.objects);
  }
  // Outside the lock: a finaliser may come back here.
  for (PyObject* object : objects) Py_DECREF(object);
}

}  // namespace callboard::python
