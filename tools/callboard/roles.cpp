// The hidden subcommands: the processes that `up`, callboard.launch and the node actor start.
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "actors/coordinator/coordinator_actor.h"
#include "actors/node/node_actor.h"
#include "config/cluster_config.h"
#include "config/validation.h"
#include "messages/base/log.h"
#include "tools/callboard/commands.h"
#include "tools/callboard/exit_codes.h"
#include "tools/callboard/gpu_probe.h"
#include "tools/callboard/programs.h"

namespace callboard::cli {
namespace {

struct NodeFlags {
  std::string config;
  std::string device_binary;
  int lifeline_fd = -1;
  int status_fd = -1;
  bool own_log = false;
  bool devices_checked = false;
};

/// Once the logs have a place, what we print goes there: whoever started us may be gone by then.
void log_into(const std::string& directory) {
  const std::string path = directory + "/node.log";
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) {
    log::warning("no_log_file", path + ": " + std::strerror(errno));
    return;
  }
  dup2(fd, STDOUT_FILENO);
  dup2(fd, STDERR_FILENO);
  close(fd);
}

int run_node_role(const NodeFlags& flags, const Console& console) {
  auto config = config::load_cluster(flags.config);
  if (!config) return report(config.error(), console);
  if (const Status kinds = config::check_runs_here(*config, config::Machine::here()); !kinds) {
    return report(kinds.error(), console);
  }
  auto programs = find_programs(flags.device_binary);
  if (!programs) return report(programs.error(), console);
  if (!flags.devices_checked) {
    if (const Status devices = check_devices_here(*config, *programs); !devices) {
      return report(devices.error(), console);
    }
  }
  log::start("node#1", config->log.level);
  actors::NodeOptions options;
  options.config = std::move(*config);
  options.binary_callboard = programs->callboard;
  options.binary_device = programs->device;
  options.version = CALLBOARD_VERSION;
  options.lifeline_fd = flags.lifeline_fd;
  options.status_fd = flags.status_fd;
  if (flags.own_log) {
    options.on_event = [](const actors::NodeEvent& event) {
      if (event.kind == actors::NodeEvent::Kind::kStarted) log_into(event.logs);
    };
  }
  return actors::run_node(std::move(options));
}

struct CoordinatorFlags {
  std::string run_dir;
  std::string config;
  std::uint64_t epoch = 1;
};

int run_coordinator_role(const CoordinatorFlags& flags, const Console& console) {
  auto config = config::load_cluster(flags.config);
  if (!config) return report(config.error(), console);
  log::start("coordinator#" + std::to_string(flags.epoch), config->log.level);
  actors::CoordinatorProcessOptions options;
  options.run_dir = flags.run_dir;
  options.epoch = flags.epoch;
  options.config = std::move(*config);
  return actors::run_coordinator(std::move(options));
}

}  // namespace

void add_roles(CLI::App& app, Invocation& invocation) {
  CLI::App* node = app.add_subcommand("node", "The node actor (started by `up` and by callboard.launch)")->group("");
  auto node_flags = std::make_shared<NodeFlags>();
  node->add_option("--config", node_flags->config, "Cluster file")->required();
  node->add_option("--device-binary", node_flags->device_binary, "Path of callboard-device");
  node->add_option("--lifeline-fd", node_flags->lifeline_fd, "Its end of file stops the cluster");
  node->add_option("--status-fd", node_flags->status_fd, "Where events go, as lines of JSON");
  node->add_flag("--own-log", node_flags->own_log, "Log into the cluster's log directory once it is there");
  node->add_flag("--devices-checked", node_flags->devices_checked, "The caller has asked for the file's GPUs already");
  node->callback([node_flags, &invocation] {
    invocation.run = [node_flags, &invocation] { return run_node_role(*node_flags, invocation.console); };
  });

  CLI::App* coordinator =
      app.add_subcommand("coordinator", "The coordinator actor (started by the node actor)")->group("");
  auto flags = std::make_shared<CoordinatorFlags>();
  coordinator->add_option("--run-dir", flags->run_dir, "Run directory of the cluster")->required();
  coordinator->add_option("--config", flags->config, "Cluster file")->required();
  coordinator->add_option("--epoch", flags->epoch, "Number of this start")->required();
  coordinator->callback([flags, &invocation] {
    invocation.run = [flags, &invocation] { return run_coordinator_role(*flags, invocation.console); };
  });
}

}  // namespace callboard::cli
