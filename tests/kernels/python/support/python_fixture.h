// A GIL domain and devices with one, over the module tests/python/standin_kernels.py.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/gil_domain.h"
#include "tests/kernels/support/test_device.h"

namespace callboard::testing {

/// "scale" → the entry standin_kernels:scale. Several at once.
std::vector<kernels::PythonKernelEntry> standin(const std::vector<std::string>& functions);
kernels::PythonOptions python_options(std::vector<kernels::PythonKernelEntry> entries);

/// One domain at a time; the interpreter stays for the next one.
std::unique_ptr<kernels::GilDomain> make_domain(std::vector<kernels::PythonKernelEntry> entries);
/// Why there is none.
Error domain_error(std::vector<kernels::PythonKernelEntry> entries);

/// Calls one of its operators ("scale") as a KernelStream's thread does, in InferenceMode; gives the results.
std::vector<c10::IValue> call(kernels::GilDomain& domain, const std::string& function,
                              std::vector<c10::IValue> arguments);
/// The error of a call that must fail.
Error call_error(kernels::GilDomain& domain, const std::string& function, std::vector<c10::IValue> arguments);

/// A device with these functions of the module; the arena allocator is installed first.
kernels::RuntimeOptions with_python(const std::vector<std::string>& functions);

/// Runs Python code in the module's namespace, and gives the text of an expression there.
void run_python(const std::string& code);
std::string python_text(const std::string& expression);

}  // namespace callboard::testing
