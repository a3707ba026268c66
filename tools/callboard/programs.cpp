#include "tools/callboard/programs.h"

#include <cerrno>
#include <cstring>

#include <unistd.h>

#include "config/installation.h"
#include "messages/base/own_program.h"

namespace callboard::cli {

Result<Programs> find_programs(const std::string& device_binary) {
  Programs programs{own_program(), device_binary};
  if (programs.callboard.empty()) {
    return fail(ErrorCode::kEnvironment, std::string("/proc/self/exe cannot be read: ") + std::strerror(errno),
                "is /proc mounted?");
  }
  if (programs.device.empty()) programs.device = config::device_program();
  if (access(programs.device.c_str(), X_OK) != 0) {
    return fail(ErrorCode::kEnvironment,
                "the device actor's program '" + programs.device + "' cannot be started: " + std::strerror(errno),
                "install callboard-device beside callboard, or set CALLBOARD_DEVICE_BINARY");
  }
  return programs;
}

}  // namespace callboard::cli
