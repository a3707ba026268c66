// The shell of a device actor: threads, sockets and memory around DeviceCore and the kernels' DeviceRuntime.
#pragma once

#include <string>

#include "config/cluster_config.h"
#include "messages/base/ids.h"

namespace callboard::actors {

struct DeviceProcessOptions {
  std::string run_dir;  ///< of the cluster; made by the node actor
  std::string name;     ///< "cpu0"; must be in the configuration
  Incarnation incarnation = 1;
  config::ClusterConfig config;
};

/// Runs until SIGTERM, or until the coordinator or the node actor is gone. The process's exit status: 0 after an
/// orderly stop, 1 if it could not start or lost its cluster. Call it first in main, from the main thread: it installs
/// ATen's allocator. Threads: main (this one: signals), device/loop (sockets, decisions), the memory lane's, the
/// KernelStreams'.
int run_device(const DeviceProcessOptions& options);

}  // namespace callboard::actors
