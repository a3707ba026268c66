// What the cluster file says of Python kernels, as the kernels take it.
#pragma once

#include <functional>

#include "config/cluster_config.h"
#include "kernels/runtime.h"

namespace callboard::actors {

/// `on_loop`: see kernels::PythonOptions.
kernels::PythonOptions python_options(const config::PythonConfig& config, std::function<bool()> on_loop);

}  // namespace callboard::actors
