#include <signal.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <poll.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "actors/client/client.h"
#include "config/schema.h"
#include "config/validation.h"
#include "tools/callboard/commands.h"
#include "tools/callboard/exit_codes.h"
#include "tools/callboard/gpu_probe.h"
#include "tools/callboard/node_child.h"
#include "tools/callboard/signals.h"
#include "tools/callboard/trace_file.h"

namespace callboard::cli {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kForceAfter{5'000};  // beyond the cluster's own stop_grace
constexpr milliseconds kKillAfter{3'000};   // after asking by force

struct UpFlags {
  std::string file;
  std::string name;
  std::string wait = "60s";
  bool detach = false;
};

std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}
std::int64_t number_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

Error error_of(const json& event) {
  const json error = event.value("error", json::object());
  Error out(static_cast<ErrorCode>(number_of(error, "code")), text_of(error, "message"), text_of(error, "hint"));
  out.detail = text_of(error, "detail");
  if (out.message.empty()) out = Error(ErrorCode::kStartFailed, "the node actor failed without saying why");
  if (out.hint.empty() && !text_of(event, "logs").empty()) out.hint = "logs: " + text_of(event, "logs");
  return out;
}

/// One `callboard up`. Main thread; the client's loop thread only fills news_.
class Up {
 public:
  Up(UpFlags flags, const Console& console) : flags_(std::move(flags)), console_(console) {}

  int run() {
    if (const Status prepared = prepare(); !prepared) {
      return invalid_ ? kExitUsage : report(prepared.error(), console_);
    }
    auto child = NodeChild::start(config_, programs_, flags_.detach);
    if (!child) return report(child.error(), console_);
    child_.emplace(std::move(*child));
    if (!console_.json) {
      note("starting cluster '" + config_.name + "' with " + std::to_string(config_.devices.size()) +
           (config_.devices.size() == 1 ? " device" : " devices"));
    }
    auto ready = become_ready();
    if (!ready) return give_up(ready.error());
    ready_ = true;
    print_ready(*ready);
    if (flags_.detach) {
      child_->leave_running();
      return kExitOk;
    }
    return stay();
  }

 private:
  Status prepare();
  Result<std::string> become_ready();
  Error why_stopped() const;
  Error with_log(Error error) const;
  bool pump();
  void take_event(const json& event);
  void take_exit(const json& event);
  void print_ready(const std::string& status_text);
  int give_up(const Error& error);
  int stay();
  void leave_trace();
  bool wait_for_end(milliseconds wait);
  void stop_node();
  std::string elapsed() const { return time_text(std::chrono::duration_cast<milliseconds>(Clock::now() - begun_)); }
  void progress(const std::string& text) const {
    if (!console_.json) note("  " + text);
  }

  UpFlags flags_;
  const Console& console_;
  bool invalid_ = false;
  config::ClusterConfig config_;
  Programs programs_;
  milliseconds wait_{0};
  TimePoint begun_ = Clock::now();
  std::optional<StopSignals> signals_;
  std::optional<NodeChild> child_;
  bool ready_ = false;
  int signals_seen_ = 0;
  std::string run_dir_;
  std::string logs_;
  std::map<std::string, std::int64_t> pids_;
  std::map<std::string, json> exits_;      // the last one of each actor
  std::map<std::string, int> early_ends_;  // ends by its own doing before the cluster was ready
  std::optional<Error> failure_;
  bool stopped_ = false;
  std::mutex news_mutex_;
  std::vector<std::string> news_;  // filled by the client's thread
};

Status Up::prepare() {
  CALLBOARD_ASSIGN(wait_, parse_duration("--wait", flags_.wait));
  CALLBOARD_ASSIGN(const std::string text, config::read_cluster_file(flags_.file));
  config::Validation validation = config::validate_cluster(text, config::Machine::here());
  const std::string name = flags_.file == "-" ? "<stdin>" : flags_.file;
  if (!validation.findings.empty()) note(config::format_findings(validation, text, name, console_.colour_err));
  if (!validation.ok()) {
    if (console_.json) print_line(config::findings_json(validation, name));
    invalid_ = true;
    return fail(ErrorCode::kConfigSyntax, "invalid");
  }
  config_ = std::move(validation.config);
  CALLBOARD_TRY(config::check_runs_here(config_, config::Machine::here()));
  if (!flags_.name.empty()) {
    if (!config::is_cluster_name(flags_.name)) {
      return fail(ErrorCode::kUsage, "--name '" + flags_.name + "' is not a cluster name",
                  "use 1 to 40 lower-case letters, digits and '-', not starting with '-'");
    }
    config_.name = flags_.name;
  }
  // A detached cluster's trace is written by `down`, wherever that is called.
  if (!flags_.detach || !config_.tracing.file.empty()) CALLBOARD_TRY(check_trace_file(config_.tracing));
  CALLBOARD_ASSIGN(programs_, find_programs());
  CALLBOARD_TRY(check_devices_here(config_, programs_));
  CALLBOARD_ASSIGN(signals_, StopSignals::take());
  return {};
}

/// The coordinator's status (JSON) once all devices are ready.
Result<std::string> Up::become_ready() {
  const TimePoint deadline = after(Clock::now(), wait_);
  while (run_dir_.empty() && !pump() && Clock::now() < deadline) {
    pollfd fds[] = {{child_->status_fd(), POLLIN, 0}, {signals_->fd(), POLLIN, 0}};
    poll(fds, 2, 100);
  }
  const auto left = [&] { return std::chrono::duration_cast<milliseconds>(deadline - Clock::now()); };
  if (run_dir_.empty() || left() <= milliseconds(0)) return fail(why_stopped());
  actors::Client::Options options;
  options.cluster = run_dir_;
  options.connect_timeout = left();
  options.interrupted = [this] { return pump(); };
  auto client = actors::Client::connect(std::move(options));
  if (!client) return fail(failure_ || signals_seen_ > 0 ? why_stopped() : with_log(client.error()));
  (*client)->on_actor_event([this](const ActorEvent& event) {
    if (event.event != "ready") return;
    const std::lock_guard lock(news_mutex_);
    news_.push_back(event.who.name + " ready after " + elapsed());
  });
  json arguments;
  arguments["timeout_ms"] = std::max<std::int64_t>(left().count(), 1);
  const auto answer = (*client)->operation("wait_ready", arguments.dump(), left() + milliseconds(500));
  const bool broken = pump();
  if (!answer) return fail(broken ? why_stopped() : with_log(answer.error()));
  return (*client)->operation("status", "{}", std::chrono::seconds(5));
}

Error Up::why_stopped() const {
  if (failure_) return with_log(*failure_);
  if (signals_seen_ > 0) return Error(ErrorCode::kCancelled, "interrupted before the cluster was ready");
  return with_log(Error(ErrorCode::kNotReady, "the cluster was not ready within " + time_text(wait_),
                        "give it longer: --wait 2min"));
}

/// Adds the last words of the actor that ended last.
Error Up::with_log(Error error) const {
  if (!error.detail.empty()) return error;
  for (const auto& [name, event] : exits_) {
    if (text_of(event, "log_tail").empty() && text_of(event, "cause").empty()) continue;
    if (!error.detail.empty()) error.detail += "\n";
    error.detail += name + " ended: " + text_of(event, "cause");
    if (const std::string tail = text_of(event, "log_tail"); !tail.empty())
      error.detail += "; its last lines:\n" + tail;
  }
  return error;
}

/// Takes what came; true if waiting makes no sense any more. Called often, never blocks.
bool Up::pump() {
  signals_seen_ += signals_->read_count();
  for (const json& event : child_->read_events()) take_event(event);
  std::vector<std::string> news;
  {
    const std::lock_guard lock(news_mutex_);
    news.swap(news_);
  }
  for (const std::string& line : news) progress(line);
  if (child_->stream_ended() && !failure_ && !stopped_) {
    const auto exit = child_->process().reap_until(after(Clock::now(), milliseconds(500)));
    failure_ = Error(ErrorCode::kStartFailed,
                     "the node actor ended" + (exit ? ": " + exit->to_string() : std::string(" its report")));
  }
  return signals_seen_ > 0 || failure_.has_value() || stopped_;
}

void Up::take_event(const json& event) {
  const std::string kind = text_of(event, "event");
  const std::string name = text_of(event, "name");
  if (kind == "started") {
    run_dir_ = text_of(event, "run_dir");
    logs_ = text_of(event, "logs");
  } else if (kind == "actor_started") {
    pids_[name] = number_of(event, "pid");
    progress(name + " started (pid " + std::to_string(pids_[name]) + ")");
  } else if (kind == "actor_exited") {
    take_exit(event);
  } else if (kind == "stopping" && signals_seen_ == 0) {
    progress("stopping: " + text_of(event, "text"));
  } else if (kind == "failed") {
    failure_ = error_of(event);
  } else if (kind == "stopped") {
    stopped_ = true;
  }
}

void Up::take_exit(const json& event) {
  if (event.value("stopped_by_us", false)) return;
  const std::string name = text_of(event, "name");
  const std::int64_t restart = number_of(event, "restart_in_ms");
  const std::string next = restart < 0    ? "it is not started again"
                           : restart == 0 ? "starting it again"
                                          : "starting it again in " + time_text(milliseconds(restart));
  progress(name + console_.err(Style::kWarn, " ended: " + text_of(event, "cause")) + "; " + next);
  exits_[name] = event;
  if (ready_ || !event.value("by_itself", false)) return;
  // What ends by itself while it starts will do so again: the second time is enough to say why.
  if (++early_ends_[name] < 2 && restart >= 0) return;
  if (!failure_)
    failure_ = Error(ErrorCode::kStartFailed, name + " ended while it started: " + text_of(event, "cause"));
}

void Up::print_ready(const std::string& status_text) {
  json status = json::parse(status_text, nullptr, false);
  if (!status.is_object()) status = json::object();
  json actors = json::array();
  actors.push_back(
      {{"name", "node"}, {"pid", child_->process().pid()}, {"state", "ready"}, {"log", logs_ + "/node.log"}});
  for (const json& actor : status.value("actors", json::array())) {
    const std::string name = text_of(actor, "name");
    if (text_of(actor, "role") == "node") continue;
    actors.push_back({{"name", name},
                      {"pid", pids_[name]},
                      {"state", text_of(actor, "state")},
                      {"log", logs_ + "/" + name + ".log"}});
  }
  if (console_.json) {
    print_line(dump({{"ok", true}, {"name", config_.name}, {"run_dir", run_dir_}, {"actors", actors}}));
    return;
  }
  Table table({"ACTOR", "PID", "STATE", "LOG"});
  for (const json& actor : actors) {
    table.add({text_of(actor, "name"), std::to_string(number_of(actor, "pid")), text_of(actor, "state"),
               text_of(actor, "log")},
              Style::kGood);
  }
  print("\n" + table.text(console_, 2) + "\ncluster '" + config_.name + "' is " + console_.out(Style::kGood, "ready") +
        " after " + elapsed() + "\n");
  print("  callboard status " + config_.name + "      what it does\n");
  print("  callboard run PROGRAM --cluster " + config_.name + "\n");
  print(flags_.detach ? "  callboard down " + config_.name + "        stop it\n"
                      : "  Ctrl-C                  stop it\n");
}

int Up::give_up(const Error& error) {
  const bool interrupted = signals_seen_ > 0 && !failure_;
  stop_node();
  const int code = report(error, console_);
  return interrupted ? kExitInterrupted : code;
}

/// Foreground: until Ctrl-C, or until the cluster ends by itself.
int Up::stay() {
  while (!pump()) {
    pollfd fds[] = {{child_->status_fd(), POLLIN, 0}, {signals_->fd(), POLLIN, 0}};
    poll(fds, 2, -1);
  }
  if (signals_seen_ > 0 && !failure_ && !stopped_) {
    if (!console_.json) note("stopping; Ctrl-C again kills");
    leave_trace();
    stop_node();
  }
  if (failure_) {
    stop_node();
    return report(with_log(*failure_), console_);
  }
  wait_for_end(kKillAfter);
  if (!console_.json) note("cluster '" + config_.name + "' has ended");
  return signals_seen_ > 1 ? kExitInterrupted : kExitOk;
}

void Up::leave_trace() {
  if (!config_.tracing.enabled) return;
  actors::Client::Options options;
  options.cluster = run_dir_;
  options.connect_timeout = std::chrono::seconds(3);
  auto client = actors::Client::connect(std::move(options));
  const Result<std::string> saved =
      client ? save_trace(**client, config_.tracing) : Result<std::string>(fail(client.error()));
  note(saved ? "trace: " + *saved : "no trace: " + saved.error().message);
}

/// True if the node actor has ended. A further signal of ours is passed on, which the node actor takes as "at once".
bool Up::wait_for_end(milliseconds wait) {
  const TimePoint deadline = after(Clock::now(), wait);
  int passed_on = signals_seen_;
  while (!child_->process().try_reap()) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd fds[] = {
        {child_->process().pidfd(), POLLIN, 0}, {signals_->fd(), POLLIN, 0}, {child_->status_fd(), POLLIN, 0}};
    poll(fds, 3, static_cast<int>(std::min<std::int64_t>(left, 60'000)));
    pump();
    if (signals_seen_ == passed_on) continue;
    passed_on = signals_seen_;
    child_->process().signal(SIGTERM);
  }
  pump();
  return true;
}

void Up::stop_node() {
  actors::Process& process = child_->process();
  process.signal(SIGTERM);
  if (wait_for_end(config_.limits.stop_grace + kForceAfter)) return;
  note("it does not stop; killing it");
  process.signal(SIGTERM);
  if (!wait_for_end(kKillAfter)) process.signal_group(SIGKILL);
}

}  // namespace

void add_up(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("up", "Start a cluster, wait until it is ready, and stay (or --detach)");
  auto flags = std::make_shared<UpFlags>();
  command->add_option("FILE", flags->file, "Cluster file (YAML or JSON); - is standard input")->required();
  command->add_flag("-d,--detach", flags->detach, "Return when the cluster is ready; it goes on without this terminal");
  command->add_option("--wait", flags->wait, "Longest time until it is ready (60s)")->type_name("TIME");
  command->add_option("--name", flags->name, "Name of the cluster, instead of the file's")->type_name("NAME");
  add_output_option(*command, invocation);
  command->footer(R"(
Stays in the foreground: Ctrl-C stops the cluster in order, a second Ctrl-C kills it. If the cluster does not get ready,
the cause and the last log lines are shown and nothing is left behind.

Examples:
  callboard up cluster.yaml
  callboard up cluster.yaml --detach --wait 2min
  callboard up cluster.yaml --name second --detach        two clusters from one file

Exit status: 0 stopped or (--detach) ready, 1 failed, 2 invalid file, 3 the name is taken or the machine lacks
something, 4 not ready in time, 130 interrupted before it was ready, or killed by a second Ctrl-C.)");
  command->callback(
      [flags, &invocation] { invocation.run = [flags, &invocation] { return Up(*flags, invocation.console).run(); }; });
}

}  // namespace callboard::cli
