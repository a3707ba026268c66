#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "actors/client/client.h"
#include "actors/core/run_dir.h"
#include "config/cluster_config.h"
#include "tools/callboard/commands.h"
#include "tools/callboard/exit_codes.h"
#include "tools/callboard/trace_file.h"

namespace callboard::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kConnectWait{3'000};
constexpr milliseconds kForceWait{3'000};
constexpr milliseconds kKillWait{3'000};

struct DownFlags {
  std::string name;
  std::string wait = "15s";
  bool force = false;
};

class Down {
 public:
  Down(DownFlags flags, const Console& console) : flags_(std::move(flags)), console_(console) {}

  int run() {
    auto wait = parse_duration("--wait", flags_.wait);
    if (!wait) return report(wait.error(), console_);
    auto record = actors::find_cluster(flags_.name);
    if (!record) {
      const bool several = flags_.name.empty() && !actors::list_clusters().empty();
      if (record.error().code != ErrorCode::kClusterNotFound || several) return report_usage(record.error());
      sweep();
      return done(flags_.name.empty() ? "no cluster is running" : "no cluster '" + flags_.name + "' is running", false);
    }
    record_ = std::move(*record);
    if (record_.foreign_pids) {
      return report(Error(ErrorCode::kEnvironment,
                          "cluster '" + record_.name + "' runs in another pid namespace: its end cannot be seen",
                          "run `callboard down` where it was started (the host, or its container)"),
                    console_);
    }
    // From here on the number cannot mean another process.
    node_.reset(static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(record_.node_pid), 0)));
    if (!node_ && errno != ESRCH) {
      return report(Error(ErrorCode::kEnvironment, "the node actor (pid " + std::to_string(record_.node_pid) +
                                                       ") cannot be watched: " + std::strerror(errno)),
                    console_);
    }
    if (node_) ask();
    if (ended_within(*wait)) return finish();
    note("cluster '" + record_.name + "' did not stop within " + time_text(*wait) + "; stopping it by force");
    signal_node(SIGTERM);  // a further signal means "at once" to the node actor
    signal_node(SIGTERM);
    if (ended_within(kForceWait)) return finish();
    note("the node actor does not answer; killing it");
    signal_node(SIGKILL);
    if (ended_within(kKillWait)) return finish();
    return report(Error(ErrorCode::kEnvironment,
                        "the node actor (pid " + std::to_string(record_.node_pid) + ") does not end, even by SIGKILL",
                        "it hangs inside the kernel: look at /proc/" + std::to_string(record_.node_pid) + "/stack"),
                  console_);
  }

 private:
  int report_usage(Error error) {
    if (error.code == ErrorCode::kClusterNotFound) error.code = ErrorCode::kUsage;
    return report(error, console_);
  }

  /// By the table of operations where the coordinator answers, else by a signal.
  void ask() {
    actors::Client::Options options;
    options.cluster = record_.run_dir;
    options.connect_timeout = kConnectWait;
    auto client = actors::Client::connect(std::move(options));
    if (client) {
      leave_trace(**client);
      const nlohmann::json arguments{{"force", flags_.force}, {"reason", "callboard down"}};
      const auto answer = (*client)->operation("shutdown", arguments.dump(), kConnectWait);
      // The answer may be lost, because the coordinator ends: what counts is the node actor's end.
      if (answer || answer.error().code == ErrorCode::kCoordinatorLost) return;
      note("the coordinator refuses: " + answer.error().message + "; asking the node actor");
    } else {
      note("the coordinator does not answer (" + client.error().message + "); asking the node actor");
    }
    signal_node(SIGTERM);
    if (flags_.force) signal_node(SIGTERM);
  }

  void leave_trace(actors::Client& client) {
    const auto config = config::load_cluster(record_.run_dir + "/cluster.yaml");
    if (!config || !config->tracing.enabled) return;
    const auto saved = save_trace(client, config->tracing);
    note(saved ? "trace: " + *saved : "no trace: " + saved.error().message);
  }

  void signal_node(int number) const {
    if (node_) syscall(SYS_pidfd_send_signal, node_.get(), number, nullptr, 0);
  }

  bool ended_within(milliseconds wait) const {
    if (!node_) return true;
    const TimePoint deadline = after(Clock::now(), wait);
    while (true) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now()).count();
      pollfd fd{node_.get(), POLLIN, 0};
      const int ready = poll(&fd, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000)));
      if (ready > 0) return true;
      if (left <= 0) return false;
    }
  }

  int finish() {
    flags_.name = record_.name;
    sweep();
    return done("cluster '" + record_.name + "' has stopped", true);
  }

  /// A node actor that was killed leaves its run directory.
  void sweep() const {
    for (const std::string& line : actors::sweep_dead_run_dirs()) note("removed " + line);
    // What is in the way there although no cluster made it goes with the claim.
    if (flags_.name.empty() || flags_.name.find('/') != std::string::npos) return;
    const auto root = actors::run_root();
    std::error_code error;
    if (!root || !std::filesystem::exists(*root + "/" + flags_.name + "/lock", error)) return;
    if (auto dir = actors::claim_run_dir(flags_.name)) actors::remove_run_dir(*dir, false);
  }

  int done(const std::string& text, bool stopped) const {
    if (console_.json) {
      print_line(dump({{"ok", true}, {"stopped", stopped}, {"name", flags_.name}}));
    } else {
      print_line(text);
    }
    return kExitOk;
  }

  DownFlags flags_;
  const Console& console_;
  actors::ClusterRecord record_;
  UniqueFd node_;
};

}  // namespace

void add_down(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("down", "Stop a cluster and wait for its end");
  auto flags = std::make_shared<DownFlags>();
  command->add_option("NAME", flags->name, "Name or run directory; not needed while one cluster runs");
  command->add_flag("--force", flags->force, "Kill at once instead of asking");
  command->add_option("--wait", flags->wait, "Time to stop in order, then it is killed (15s)")->type_name("TIME");
  add_output_option(*command, invocation);
  command->footer(R"(
A cluster that does not run is no error. What killed or failed clusters left is removed, with their logs.

Examples:
  callboard down
  callboard down lab-a --force

Exit status: 0 it does not run (any more), 2 several run and none was named, 3 it cannot be ended.)");
  command->callback([flags, &invocation] {
    invocation.run = [flags, &invocation] { return Down(*flags, invocation.console).run(); };
  });
}

}  // namespace callboard::cli
