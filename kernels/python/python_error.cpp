#include "kernels/python/python_error.h"

#include <utility>

#include "kernels/python/bootstrap.h"
#include "kernels/python/py_ref.h"
#include "messages/base/plain_text.h"

namespace callboard::kernels {

namespace {

/// What a kernel says by raising an error of the package `callboard`: its code arrives. Only of the kinds that a kernel
/// can know of; anything else is an exception like any other.
ErrorCode code_of(const std::string& name) {
  if (name == "memory") return ErrorCode::kOutOfMemory;
  for (const ErrorCode code : {ErrorCode::kUnsupported, ErrorCode::kBadArgument, ErrorCode::kBadInput,
                               ErrorCode::kOutputMismatch, ErrorCode::kOutOfMemory, ErrorCode::kEnvironment}) {
    if (name == error_name(code)) return code;
  }
  return ErrorCode::kPythonFailed;
}

}  // namespace

std::string text_of(PyObject* object) {
  if (object == nullptr || PyUnicode_Check(object) == 0) return object == nullptr ? "nothing" : type_name_of(object);
  const PyRef bytes = PyRef::steal(PyUnicode_AsEncodedString(object, "utf-8", "replace"));
  if (!bytes) {
    PyErr_Clear();
    return "?";
  }
  return std::string(PyBytes_AS_STRING(bytes.get()), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.get())));
}

std::string type_name_of(PyObject* object) { return Py_TYPE(object)->tp_name; }

Error take_python_error(const std::string& what) {
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  const PyRef kind = PyRef::steal(type);
  const PyRef error = PyRef::steal(value);
  PyRef traceback = PyRef::steal(trace);
  if (!error) return Error(ErrorCode::kPythonFailed, what + ": it failed without an exception");
  if (traceback) PyException_SetTraceback(error.get(), traceback.get());
  traceback = PyRef();

  const PyRef explain = bootstrap_function("explain");
  const PyRef told = explain ? PyRef::steal(PyObject_CallOneArg(explain.get(), error.get())) : PyRef();
  if (!told || PyTuple_Check(told.get()) == 0 || PyTuple_GET_SIZE(told.get()) != 5) {
    PyErr_Clear();  // no memory for it, say; the type is known all the same
    const bool memory = PyErr_GivenExceptionMatches(error.get(), PyExc_MemoryError) != 0;
    return Error(memory ? ErrorCode::kOutOfMemory : ErrorCode::kPythonFailed,
                 what + " raised " + type_name_of(error.get()));
  }
  const auto part = [&](Py_ssize_t index) { return PyTuple_GET_ITEM(told.get(), index); };
  const std::string name = plain_text(text_of(part(0)), kPythonNameBytesMax);
  const std::string text = plain_text(text_of(part(1)), kPythonTextBytesMax);
  Error made(code_of(text_of(part(3))), what + " raised " + name + (text.empty() ? "" : ": " + text),
             plain_text(text_of(part(4)), kPythonTextBytesMax));
  made.detail = plain_text(text_of(part(2)), kTracebackBytesMax);
  while (!made.detail.empty() && made.detail.back() == '\n') made.detail.pop_back();
  return made;
}

}  // namespace callboard::kernels
