// The functions that a domain may call: found, imported and checked once, at start.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/gil_domain.h"
#include "kernels/python/convert.h"
#include "kernels/python/py_ref.h"

namespace callboard::kernels {

/// Python objects in it are kept for the process's life: they are never given back, so it may be destroyed without the
/// GIL.
class FunctionTable {
 public:
  struct Function {
    PyObject* callable = nullptr;       ///< the plain function, not torch.library's operator around it
    PyObject* keyword_names = nullptr;  ///< tuple of the keyword-only arguments' names; nullptr: none
    std::vector<PythonValue> values;    ///< by argument
    std::vector<bool> written;          ///< by argument: the schema says that the function writes to it
  };
  struct WarmUp {
    PyObject* callable = nullptr;  ///< takes a torch.device
    std::string target;
  };

  /// The GIL is held. `step` hears of each module before it is imported. Errors as make_inline_domain().
  static Result<FunctionTable> make(const std::vector<PythonKernelEntry>& entries,
                                    const std::function<void(const std::string& step)>& step);

  const std::vector<PythonOperator>& operators() const { return operators_; }
  const Function& function(const PythonOperator& op) const { return functions_[op.function]; }
  const std::vector<WarmUp>& warm_ups() const { return warm_ups_; }
  /// Operator → target of the decorated functions that were seen, on the list or not.
  const std::map<std::string, std::string, std::less<>>& declared() const { return declared_; }
  /// See GilDomain::why_not.
  std::string why_not(std::string_view op) const;

 private:
  Status add(const PythonKernelEntry& entry, const std::function<void(const std::string&)>& step);
  Status add_operator(const PythonKernelEntry& entry, PyObject* object);
  Status add_warm_up(const PythonKernelEntry& entry, PyObject* object, PyObject* module);
  Status note_declared(PyObject* module, const std::string& module_name);

  std::vector<PythonOperator> operators_;
  std::vector<Function> functions_;
  std::vector<WarmUp> warm_ups_;
  std::map<std::string, std::string, std::less<>> declared_;  // operator → target of decorated functions that were seen
};

}  // namespace callboard::kernels
