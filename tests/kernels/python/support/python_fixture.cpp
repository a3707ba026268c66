#include "tests/kernels/python/support/python_fixture.h"

#include <stdexcept>
#include <utility>

#include <c10/core/InferenceMode.h>

#include "kernels/kernel_failure.h"
#include "kernels/python/gil.h"
#include "kernels/python/inline_domain.h"
#include "kernels/python/py_ref.h"
#include "kernels/python/python_error.h"

namespace callboard::testing {

using namespace kernels;

namespace {

constexpr const char* kModule = "standin_kernels";

PyRef evaluated(const std::string& code, int kind) {
  const PyRef module = PyRef::steal(PyImport_ImportModule(kModule));
  PyObject* names = module ? PyModule_GetDict(module.get()) : nullptr;
  PyRef result = names == nullptr ? PyRef() : PyRef::steal(PyRun_String(code.c_str(), kind, names, names));
  if (!result) throw std::runtime_error(take_python_error(code).to_string());
  return result;
}

}  // namespace

std::vector<PythonKernelEntry> standin(const std::vector<std::string>& functions) {
  std::vector<PythonKernelEntry> entries;
  for (const std::string& function : functions)
    entries.push_back({std::string(kModule) + ":" + function, "", false, ""});
  return entries;
}

PythonOptions python_options(std::vector<PythonKernelEntry> entries) {
  register_gil_domain(make_inline_domain);
  PythonOptions options;
  options.path = {CALLBOARD_TEST_MODULES};
  options.kernels = std::move(entries);
  return options;
}

std::unique_ptr<GilDomain> make_domain(std::vector<PythonKernelEntry> entries) {
  test_memory();
  auto made = make_gil_domain(python_options(std::move(entries)), c10::Device(c10::DeviceType::CPU));
  if (!made) throw std::runtime_error(made.error().to_string());
  return std::move(*made);
}

Error domain_error(std::vector<PythonKernelEntry> entries) {
  test_memory();
  auto made = make_gil_domain(python_options(std::move(entries)), c10::Device(c10::DeviceType::CPU));
  if (made) throw std::runtime_error("the domain was made");
  return made.error();
}

std::vector<c10::IValue> call(GilDomain& domain, const std::string& function, std::vector<c10::IValue> arguments) {
  const c10::InferenceMode inference;
  for (const PythonOperator& op : domain.operators()) {
    if (op.op != "standin::" + function) continue;
    torch::jit::Stack stack(std::move(arguments));
    std::vector<GilDomain::Undeclared> undeclared;
    domain.call(op, stack, undeclared);
    if (!undeclared.empty()) throw std::runtime_error("it wrote to what it did not declare");
    return stack;
  }
  throw std::runtime_error("no operator standin::" + function);
}

Error call_error(GilDomain& domain, const std::string& function, std::vector<c10::IValue> arguments) {
  try {
    call(domain, function, std::move(arguments));
  } catch (const KernelFailure& failure) {
    return failure.error();
  }
  throw std::runtime_error(function + " did not fail");
}

RuntimeOptions with_python(const std::vector<std::string>& functions) {
  RuntimeOptions options;
  options.python = python_options(standin(functions));
  return options;
}

void run_python(const std::string& code) {
  const GilScopedAcquire gil(GilSite::kCall);
  evaluated(code, Py_file_input);
}

std::string python_text(const std::string& expression) {
  const GilScopedAcquire gil(GilSite::kCall);
  const PyRef value = evaluated(expression, Py_eval_input);
  const PyRef text = PyRef::steal(PyObject_Str(value.get()));
  if (!text) throw std::runtime_error(take_python_error(expression).to_string());
  return text_of(text.get());
}

}  // namespace callboard::testing
