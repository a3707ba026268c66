// A node actor as the child of `up`: started, listened to, stopped.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "actors/core/process.h"
#include "config/cluster_config.h"
#include "messages/base/fd.h"
#include "tools/callboard/programs.h"

namespace callboard::cli {

/// Main thread only (it spawns). Ends the cluster when it goes, unless leave_running() was called: the lifeline closes.
class NodeChild {
 public:
  /// The caller has called check_devices_here(). `detached`: in a session of its own and without a lifeline, so that it
  /// can outlive us.
  static Result<NodeChild> start(const config::ClusterConfig& config, const Programs& programs, bool detached);

  /// What it reported since the last call (NodeEvent as JSON objects); never blocks.
  std::vector<nlohmann::json> read_events();
  /// Readable when there is something to read; -1 after the end of the stream.
  int status_fd() const { return status_.get(); }
  bool stream_ended() const { return !status_; }
  actors::Process& process() { return *process_; }
  /// The cluster goes on without us.
  void leave_running() { process_->detach(); }

 private:
  explicit NodeChild(actors::Process process) : process_(std::move(process)) {}

  std::optional<actors::Process> process_;
  UniqueFd lifeline_;
  UniqueFd status_;
  std::string partial_;
};

}  // namespace callboard::cli
