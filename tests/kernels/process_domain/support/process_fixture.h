// GIL domains in processes, over the module tests/python/standin_kernels.py and the device program's child role.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/gil_domain.h"
#include "kernels/runtime.h"

namespace callboard::testing {

/// One child, no spare, of this process's test memory; constants are found in the store of test_device.h.
kernels::PythonOptions process_options(const std::vector<std::string>& functions);
std::unique_ptr<kernels::GilDomain> make_process_domain(kernels::PythonOptions options);

/// Of its children, by describe(): those that are idle now.
std::vector<std::int64_t> idle_children(const kernels::GilDomain& domain);
/// Waits, with a deadline, until `count` children are idle.
bool await_idle(const kernels::GilDomain& domain, std::size_t count);

}  // namespace callboard::testing
