// Where our programs are.
#pragma once

#include <string>

#include "messages/base/error.h"

namespace callboard::cli {

struct Programs {
  std::string callboard;  ///< this one
  std::string device;     ///< callboard-device
};

/// `device_binary`, else $CALLBOARD_DEVICE_BINARY, else callboard-device of this installation (config/installation.h).
/// kEnvironment where it is not there or not executable, naming what was tried.
Result<Programs> find_programs(const std::string& device_binary = {});

}  // namespace callboard::cli
