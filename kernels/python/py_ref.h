// Python's own reference counting, by scope.
#pragma once

#include <string>
#include <utility>

#include <torch/csrc/python_headers.h>

namespace callboard::kernels {

/// Owns one reference to a Python object, or none. Made, moved, read and destroyed with the GIL held.
class PyRef {
 public:
  PyRef() = default;
  /// Takes over a reference that the caller owns (a new one, as most of Python's functions return).
  static PyRef steal(PyObject* object) { return PyRef(object); }
  /// Adds a reference to a borrowed object.
  static PyRef share(PyObject* object) {
    Py_XINCREF(object);
    return PyRef(object);
  }
  ~PyRef() { Py_XDECREF(object_); }
  PyRef(PyRef&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  PyRef& operator=(PyRef&& other) noexcept {
    // The old object last: its end may run any Python code.
    PyRef old(std::exchange(object_, std::exchange(other.object_, nullptr)));
    return *this;
  }
  PyRef(const PyRef&) = delete;
  PyRef& operator=(const PyRef&) = delete;

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  explicit PyRef(PyObject* object) : object_(object) {}
  PyObject* object_ = nullptr;
};

/// The text of a str, with '?' for what is no Unicode; of anything else its type's name. The GIL is held.
std::string text_of(PyObject* object);
/// "list", "numpy.ndarray". The GIL is held.
std::string type_name_of(PyObject* object);

}  // namespace callboard::kernels
