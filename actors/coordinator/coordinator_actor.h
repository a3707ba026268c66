// The coordinator process: sockets and timers around CoordinatorCore.
#pragma once

#include <string>

#include "config/cluster_config.h"
#include "messages/base/ids.h"

namespace callboard::actors {

struct CoordinatorProcessOptions {
  std::string run_dir;            ///< where the node actor keeps the cluster; "coordinator.sock" is bound in it
  config::ClusterConfig config;
  Epoch epoch = 1;                ///< also this actor's incarnation
};

/// Runs until SIGTERM or the end of the parent process; the result is the exit code of the process. Main thread only,
/// which becomes the loop's thread. Started by the node actor with SIGKILL as parent-death signal. log::start() has
/// been called.
int run_coordinator(CoordinatorProcessOptions options);

}  // namespace callboard::actors
