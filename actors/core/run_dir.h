// Where a running cluster keeps its sockets, its logs and what a client needs to find it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "messages/base/error.h"
#include "messages/base/fd.h"
#include "messages/base/ids.h"
#include "messages/limits.h"

namespace callboard::actors {

/// Contents of <run dir>/cluster.json, written atomically by the node actor when it starts and when the coordinator
/// does.
struct ClusterRecord {
  std::string name;
  std::string run_dir;
  /// It runs in another pid namespace than its reader: the pids are 0 here, since they would name strangers.
  bool foreign_pids = false;
  std::int64_t node_pid = 0;
  std::int64_t coordinator_pid = 0;
  Epoch epoch = 0;
  std::string coordinator_endpoint;  ///< "ipc://<run dir>/coordinator.sock"
  std::string memory_socket;         ///< "<run dir>/memory.sock"
  std::string version;
  std::size_t requests_per_client = limits::kRequestsPerClientMax;  ///< limits.requests_per_client
  bool results_on_gpu = false;  ///< some device leaves results there for clients that can open them
};

/// $CALLBOARD_RUN_DIR, else $XDG_RUNTIME_DIR/callboard, else /tmp/callboard-<uid>. Created 0700 and checked to be ours
/// (kPermission).
Result<std::string> run_root();

/// Takes the cluster's name ([a-z0-9][a-z0-9-]{0,39}): creates <root>/<name>, locks it. Refuses a path that leaves no
/// room for the names of sockets (kConfigOutOfRange). kAddressInUse names the pid of the live owner; what a dead
/// owner left is swept away. The lock is held as long as the descriptor lives.
struct RunDir {
  std::string path;
  UniqueFd lock;
};
Result<RunDir> claim_run_dir(const std::string& cluster_name);
/// `keep_logs` leaves <run dir>/logs for whoever looks for the reason, and the lock file as the mark that it is ours:
/// the next claim, or sweep_dead_run_dirs(), takes them away.
void remove_run_dir(const RunDir& dir, bool keep_logs = false) noexcept;

/// A run directory whose lock nobody holds: its node actor was killed, or left the logs of a failure.
struct DeadRunDir {
  std::string name;
  std::string path;
};
std::vector<DeadRunDir> list_dead_run_dirs();
/// Removes them, but with `keep_logs` not their logs. What holds anything that no cluster makes stays as it is, and so
/// does what cannot be removed. Safe beside others that sweep, claim or run. A line for each, for a log.
std::vector<std::string> sweep_dead_run_dirs(bool keep_logs = false);

Status write_record(const ClusterRecord& record);
/// `name_or_path`: a cluster's name, a run directory, or empty for the only one that runs. kClusterNotFound lists those
/// that run; records of dead clusters are not found.
Result<ClusterRecord> find_cluster(const std::string& name_or_path);
std::vector<ClusterRecord> list_clusters();

}  // namespace callboard::actors
