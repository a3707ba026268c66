#include "tools/callboard/programs.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <unistd.h>

namespace callboard::cli {

Result<Programs> find_programs(const std::string& device_binary) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error)
    return fail(ErrorCode::kEnvironment, "/proc/self/exe cannot be read: " + error.message(), "is /proc mounted?");
  Programs programs{self.string(), device_binary};
  const char* named = std::getenv("CALLBOARD_DEVICE_BINARY");
  if (programs.device.empty() && named != nullptr) programs.device = named;
  if (programs.device.empty()) programs.device = (self.parent_path() / "callboard-device").string();
  if (access(programs.device.c_str(), X_OK) != 0) {
    return fail(ErrorCode::kEnvironment,
                "the device actor's program '" + programs.device + "' cannot be started: " + std::strerror(errno),
                "install callboard-device beside callboard, or set CALLBOARD_DEVICE_BINARY");
  }
  return programs;
}

}  // namespace callboard::cli
