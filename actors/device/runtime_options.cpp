#include "actors/device/runtime_options.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "config/installation.h"
#include "messages/base/own_program.h"

namespace callboard::actors {

namespace {

/// A build tree has it in python/ beside bin/; in a wheel bin/ is inside the package, which the environment finds.
std::string package_folder() {
  std::error_code failed;
  const std::filesystem::path folder = std::filesystem::path(own_program_folder()).parent_path() / "python";
  return std::filesystem::is_directory(folder / "callboard", failed) ? folder.string() : std::string();
}

}  // namespace

kernels::PythonOptions python_options(const config::PythonConfig& config, std::function<bool()> on_loop) {
  kernels::PythonOptions python;
  python.executable = config.executable.empty() ? config::interpreter_beside(own_program()) : config.executable;
  python.path = config.path;
  if (std::string package = package_folder(); !package.empty()) python.path.push_back(std::move(package));
  for (const config::PythonKernelConfig& kernel : config.kernels) {
    python.kernels.push_back({kernel.target, kernel.schema, kernel.random, kernel.warm_up});
  }
  python.on_loop = std::move(on_loop);
  return python;
}

kernels::DomainProcesses domain_processes(const config::PythonConfig& config) {
  kernels::DomainProcesses processes;
  processes.count = config.count;
  processes.spare = config.spare;
  processes.watchdog = config.watchdog;
  processes.start_timeout = config.start_timeout;
  processes.memory_limit = config.memory_limit;
  return processes;
}

Result<std::vector<kernels::OperatorLibrary>> operator_libraries(
    const std::vector<config::OperatorLibraryConfig>& config) {
  std::vector<kernels::OperatorLibrary> libraries;
  for (const config::OperatorLibraryConfig& library : config) {
    kernels::OperatorLibrary one{library.path, {}};
    if (!library.sha256.empty()) {
      CALLBOARD_ASSIGN(one.hash, ContentHash::from_hex(library.sha256));
    }
    libraries.push_back(std::move(one));
  }
  return libraries;
}

}  // namespace callboard::actors
