#include "config/installation.h"

#include <cstdlib>
#include <system_error>
#include <vector>

#include "messages/base/own_program.h"

namespace callboard::config {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDeviceProgram = "callboard-device";

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

/// Debian's own Python keeps what pip installs in dist-packages.
bool holds_packages(const fs::path& folder) {
  return folder.filename() == "site-packages" || folder.filename() == "dist-packages";
}

std::vector<fs::path> package_folders(const fs::path& environment) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const char* library : {"lib", "lib64"}) {
    for (fs::directory_iterator entry(environment / library, error), end; !error && entry != end;
         entry.increment(error)) {
      if (entry->path().filename().string().rfind("python", 0) != 0) continue;
      found.push_back(entry->path() / "site-packages");
      found.push_back(entry->path() / "dist-packages");
    }
  }
  found.push_back(environment);  // pip install --target
  return found;
}

}  // namespace

std::string device_program_of(const fs::path& self) {
  const fs::path beside = self.parent_path() / kDeviceProgram;
  if (is_there(beside)) return beside.string();
  for (const fs::path& packages : package_folders(self.parent_path().parent_path())) {
    const fs::path program = packages / "callboard" / "bin" / kDeviceProgram;
    if (is_there(program)) return program.string();
  }
  return beside.string();
}

std::string device_program() {
  if (const char* named = std::getenv("CALLBOARD_DEVICE_BINARY"); named != nullptr && *named != '\0') return named;
  const std::string self = own_program();
  return self.empty() ? std::string() : device_program_of(self);
}

std::string interpreter_beside(const fs::path& device_program) {
  const fs::path package = device_program.parent_path().parent_path();
  const fs::path packages = package.parent_path();  // <environment>/lib/python3.11/site-packages
  if (package.filename() != "callboard" || !holds_packages(packages)) return {};
  const fs::path environment = packages.parent_path().parent_path().parent_path();
  for (const char* name : {"python", "python3"}) {
    if (const fs::path python = environment / "bin" / name; is_there(python)) return python.string();
  }
  return {};
}

}  // namespace callboard::config
