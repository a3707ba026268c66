// What the exit status of `callboard` means. Part of its interface: scripts read it (docs/exit-codes.md).
#pragma once

#include "messages/base/error.h"

namespace callboard::cli {

constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;       ///< it was tried and did not work
constexpr int kExitUsage = 2;        ///< wrong arguments, or an invalid file
constexpr int kExitEnvironment = 3;  ///< the machine: permissions, addresses, limits
constexpr int kExitNotReady = 4;     ///< not ready in the time given
constexpr int kExitDegraded = 5;     ///< the cluster runs, but not all of it
constexpr int kExitInterrupted = 130;

int exit_code_of(const Error& error);

}  // namespace callboard::cli
