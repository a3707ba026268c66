#include "actors/device/python_options.h"

#include <utility>

namespace callboard::actors {

kernels::PythonOptions python_options(const config::PythonConfig& config, std::function<bool()> on_loop) {
  kernels::PythonOptions python;
  python.executable = config.executable;
  python.path = config.path;
  for (const config::PythonKernelConfig& kernel : config.kernels) {
    python.kernels.push_back({kernel.target, kernel.schema, kernel.random, kernel.warm_up});
  }
  python.on_loop = std::move(on_loop);
  return python;
}

}  // namespace callboard::actors
