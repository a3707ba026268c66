// What the parts of the native module share. Every function here is called with the GIL held unless it says otherwise.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "actors/client/client.h"
#include "actors/client/fragment_builder.h"

namespace callboard::python {

namespace py = pybind11;

// -- errors
// -----------------------------------------------------------------------------------------------------------------

void define_errors(py::module_& module);
py::dict error_dict(const Error& error);
[[noreturn]] void raise(const Error& error);

template <class T>
T value_or_raise(Result<T> result) {
  if (!result) raise(result.error());
  return std::move(*result);
}
inline void check_or_raise(const Status& status) {
  if (!status) raise(status.error());
}

/// Lets go of the GIL. A thread that wants it back while the interpreter ends never gets it: Python would end that
/// thread, whose C++ frames cannot be unwound in that way. It then waits for the end of the process.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  ~GilRelease();
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* const state_;
};
/// Makes that known when the interpreter begins to end (atexit).
void watch_interpreter_end();
/// Whether this thread must not ask for the GIL any more.
bool gil_is_gone();
/// Asks with the GIL on behalf of a thread that waits without it; false where the interpreter ends. Like a thread that
/// comes back for good, one that has begun to ask is waited for.
bool ask_with_gil(bool (*question)());

/// Runs `work`, which touches no Python, without the GIL.
template <class Work>
auto without_gil(Work work) {
  const GilRelease release;
  return work();
}

/// For Client::Options::interrupted: takes the GIL on the calling thread (never on the client's) and lets signal
/// handlers run. If one raised, its exception is set, and rethrow_signal() throws it once the C++ call has come back.
bool interrupted_by_signal();
void rethrow_signal();

// -- what dies later
// ----------------------------------------------------------------------------------------------------------

/// Keeps a Python object alive from C++. Its last copy may go on any thread: the reference is dropped at a later call
/// into the module (drop_deferred).
std::shared_ptr<void> keep_object(py::object object);
void drop_deferred();

// -- values
// ---------------------------------------------------------------------------------------------------------------------

Expr to_expr(py::handle value);
Argument to_argument(py::handle value);
ValueSpec to_spec(py::handle value);
std::vector<std::int64_t> to_int_list(py::handle value, const char* what);
ProgramOutput to_output(const std::string& name, py::handle value);
Placement to_placement(py::handle value);
ValueKind to_kind(const std::string& name);
DType to_dtype(const std::string& name);

/// Consumes a capsule only if it can be taken; `name` is for the error.
actors::ClientValue to_client_value(py::handle value, const std::string& name);
py::object from_client_value(const actors::ClientValue& value);

/// What from_client_value() makes of a result on a GPU.
void define_gpu_tensor(py::module_& module);

py::list plan_list(const actors::Program& program);
py::list input_list(const ProgramGraph& graph);
py::dict cluster_dict(const actors::ClusterRecord& record);

// -- classes
// ----------------------------------------------------------------------------------------------------------------

/// The graph builder behind a mutex, since its slow calls run without the GIL.
class PyFragmentBuilder {
 public:
  explicit PyFragmentBuilder(std::string name) : builder_(std::move(name)) {}
  ~PyFragmentBuilder();

  /// `work` gets the builder and touches no Python.
  template <class Work>
  auto use(Work work) {
    return without_gil([&] {
      std::lock_guard lock(mutex_);
      return work(builder_);
    });
  }

 private:
  std::mutex mutex_;
  actors::FragmentBuilder builder_;
};

void define_fragment_builder(py::module_& module);
void define_client(py::module_& module);

}  // namespace callboard::python
