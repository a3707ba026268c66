// What the cluster file says of operators and Python kernels, as the kernels take it.
#pragma once

#include <functional>
#include <vector>

#include "config/cluster_config.h"
#include "kernels/runtime.h"

namespace callboard::actors {

/// The folder of the package `callboard`, where it is beside this program, comes last of the paths: it brings kernels
/// of its own. `on_loop`: see kernels::PythonOptions.
kernels::PythonOptions python_options(const config::PythonConfig& config, std::function<bool()> on_loop);

/// Without the functions, which are the device actor's.
kernels::DomainProcesses domain_processes(const config::PythonConfig& config);

/// kMalformed where a hash is none.
Result<std::vector<kernels::OperatorLibrary>> operator_libraries(
    const std::vector<config::OperatorLibraryConfig>& config);

}  // namespace callboard::actors
