#include "config/machine.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <system_error>

#include <unistd.h>

#include "config/installation.h"

namespace callboard::config {
namespace {

std::uint64_t installed_bytes() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page) : 0;
}

/// The smallest memory.max from our cgroup (version 2) up to the root; the highest value where there is none.
std::uint64_t cgroup_bytes() {
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  std::ifstream self("/proc/self/cgroup");
  std::string line;
  std::string path;
  while (std::getline(self, line)) {
    if (line.rfind("0::", 0) == 0) path = line.substr(3);
  }
  while (true) {
    std::ifstream limit("/sys/fs/cgroup" + path + "/memory.max");
    std::uint64_t bytes = 0;
    if (limit >> bytes) least = std::min(least, bytes);  // "max" does not convert: no limit
    if (path.empty() || path == "/") return least;
    path.resize(path.rfind('/'));
  }
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::string run_root_rule() {
  if (const std::string given = environment("CALLBOARD_RUN_DIR"); !given.empty()) {
    std::error_code error;
    const std::filesystem::path absolute = std::filesystem::absolute(given, error);
    std::string path = (error ? std::filesystem::path(given) : absolute).lexically_normal().string();
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
  }
  const std::string runtime = environment("XDG_RUNTIME_DIR");
  std::error_code error;
  if (!runtime.empty() && runtime.front() == '/' && std::filesystem::is_directory(runtime, error))
    return runtime + "/callboard";
  return "/tmp/callboard-" + std::to_string(geteuid());
}

/// Beside the device actor's program, as kernels/plugin.h looks for it.
bool has_plugin(const std::string& name) {
  std::error_code error;
  const std::filesystem::path program = device_program();
  return !program.empty() && std::filesystem::exists(program.parent_path() / ("callboard_" + name + ".so"), error);
}

}  // namespace

Machine Machine::here() {
  Machine machine;
  const std::uint64_t installed = installed_bytes();
  machine.memory_bytes = installed == 0 ? 0 : std::min(installed, cgroup_bytes());
  machine.run_root = run_root_rule();
  machine.device_kinds = {"cpu"};
  machine.python = has_plugin("python");
  if (has_plugin("cuda")) machine.device_kinds.emplace_back("cuda");
  return machine;
}

}  // namespace callboard::config
