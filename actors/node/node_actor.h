// The node actor: one per host, the parent of the coordinator and the device actors there.
#pragma once

#include <functional>
#include <string>

#include "actors/node/status_stream.h"
#include "config/cluster_config.h"

namespace callboard::actors {

constexpr int kNodeStoppedExit = 0;  ///< it ended because somebody asked for it
constexpr int kNodeFailedExit = 1;   ///< it could not start, or the coordinator could not be kept alive

struct NodeOptions {
  config::ClusterConfig config;
  std::string binary_callboard;  ///< paths of the programs
  std::string binary_device;
  std::string version;  ///< of the program, for status and the handshake
  /// EOF there means "stop everything": the other end is held by whoever started us. -1: none. Taken over.
  int lifeline_fd = -1;
  /// NodeEvents as lines of JSON go there. -1: none. Taken over.
  int status_fd = -1;
  /// Called on the main thread, must not block; may be empty.
  std::function<void(const NodeEvent&)> on_event;
};

/// Brings the cluster's processes up and stays until all have ended; the result is the exit code of the process.
/// Main thread only, once in a process, which it makes its own: it becomes a subreaper, takes SIGINT, SIGTERM and
/// SIGHUP (the first: orderly stop, the second: kill), and at the end kills every child that is left. Children get:
///   <binary_callboard> coordinator --run-dir DIR --epoch 1 --config DIR/cluster.yaml
///   <binary_device> --run-dir DIR --name cpu0 --incarnation N --config DIR/cluster.yaml
/// with stdout and stderr appended to <logs>/<name>.log. The run directory is removed at the end; after a failure its
/// logs stay.
int run_node(NodeOptions options);

}  // namespace callboard::actors
