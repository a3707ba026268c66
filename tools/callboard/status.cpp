#include <memory>
#include <string>
#include <utility>

#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "actors/client/client.h"
#include "actors/core/run_dir.h"
#include "messages/base/clock.h"
#include "tools/callboard/commands.h"
#include "tools/callboard/exit_codes.h"
#include "tools/callboard/signals.h"

namespace callboard::cli {
namespace {

using nlohmann::json;

constexpr std::chrono::seconds kAnswerWait{5};
constexpr int kWatchEveryMs = 1'000;

Style style_of(const std::string& state) {
  if (state == "ready") return Style::kGood;
  return state == "failed" || state == "down" ? Style::kBad : Style::kWarn;
}

std::string number(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || !found->is_number() ? "-" : found->dump();
}
std::string bytes(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || !found->is_number_unsigned() ? "-" : size_text(found->get<std::uint64_t>());
}
std::string word(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || !found->is_string() ? std::string() : found->get<std::string>();
}

/// The tool is a client for as long as it asks: nothing that a person wants to know.
void leave_out_self(json& status) {
  json others = json::array();
  for (json& client : status["clients"]) {
    if (client.value("pid", std::int64_t{0}) != ::getpid()) others.push_back(std::move(client));
  }
  status["clients"] = std::move(others);
}

/// Puts what devices with their Python in processes tell of those now into "python" of their entries: "children"
/// (number, pid, state), "starting", "ended", "start_error"; or "error" where the device does not answer.
void add_python_processes(json& status, actors::Client& client) {
  const TimePoint until = after(Clock::now(), kAnswerWait);  // for all of them
  for (json& actor : status["actors"]) {
    const json described = actor.value(json::json_pointer("/description/runtime/python/domain"), json());
    const std::string state = word(actor, "state");
    if (described != "process" || (state != "ready" && state != "loading")) continue;
    const json arguments = {{"device", word(actor, "name")}, {"name", "describe"}};
    const auto answer = client.operation("device_query", arguments.dump(), until - Clock::now());
    const json told = answer ? json::parse(*answer, nullptr, false) : json();
    const json python = told.is_object() ? told.value("python", json::object()) : json::object();
    json shown = json::object();
    for (const char* key : {"children", "starting", "ended", "start_error"}) {
      if (python.contains(key)) shown[key] = python[key];
    }
    if (!answer) shown["error"] = answer.error().message;
    actor["python"] = std::move(shown);
  }
}

/// One row for each process of a device's Python kernels, named as in the device's log.
void add_python_rows(Table& table, const json& actor, std::string& problems) {
  const auto python = actor.find("python");
  if (python == actor.end()) return;
  const std::string name = word(actor, "name");
  const auto row = [&](const std::string& suffix, const std::string& state, const std::string& pid, Style style) {
    table.add({"  " + name + ".py" + suffix, state, pid, "", "", "", "", "", ""}, style);
  };
  for (const json& child : python->value("children", json::array())) {
    row(number(child, "number"), word(child, "state"), number(child, "pid"), Style::kGood);
  }
  if (python->value("starting", 0) > 0) row("", "starting", "-", Style::kWarn);
  for (const char* key : {"start_error", "error"}) {
    const std::string text = word(*python, key);
    if (!text.empty()) problems += name + ": Python processes: " + text.substr(0, text.find('\n')) + "\n";
  }
}

std::string actors_table(const json& status, const actors::ClusterRecord& record, const Console& console,
                         bool& degraded) {
  Table table({"ACTOR", "STATE", "PID", "START", "QUEUED", "RUNNING", "FINISHED", "MEMORY", "LIMIT"});
  std::string problems;
  for (const json& actor : status.value("actors", json::array())) {
    const std::string name = word(actor, "name");
    const std::string role = word(actor, "role");
    const std::string state = word(actor, "state");
    std::string pid = number(actor, "pid");
    if (role == "coordinator") pid = std::to_string(record.coordinator_pid);
    if (role == "node") pid = std::to_string(record.node_pid);
    const bool device = role == "device";
    const std::uint64_t limit = actor.value("memory_limit", std::uint64_t{0});
    table.add({name, state, pid, number(actor, "incarnation"), device ? number(actor, "queued") : "",
               device ? number(actor, "running") : "", device ? number(actor, "finished") : "",
               device ? bytes(actor, "memory_bytes") : "", limit > 0 ? size_text(limit) : ""},
              style_of(state));
    add_python_rows(table, actor, problems);
    if (state == "ready") continue;
    degraded = true;
    const json last = actor.value("last_exit", json::object());
    if (!word(last, "message").empty()) problems += name + ": " + word(last, "message") + "\n";
  }
  return table.text(console, 1) + (problems.empty() ? "" : "\n" + problems);
}

/// How results get from one device with memory of its own to another.
std::string transports_table(const json& status, const Console& console) {
  Table table({"FROM", "TO", "BY", "WHY"});
  bool any = false;
  for (const json& actor : status.value("actors", json::array())) {
    for (const json& transport : actor.value("transports", json::array())) {
      const std::string path = word(transport, "path");
      table.add({word(actor, "name"), word(transport, "reader"), path, word(transport, "reason")},
                path == "host copy" ? Style::kWarn : Style::kGood);
      any = true;
    }
  }
  return any ? "\n" + table.text(console, 2) : std::string();
}

std::string text_of(const json& status, const actors::ClusterRecord& record, const Console& console, bool& degraded) {
  const json requests = status.value("requests", json::object());
  const json counters = status.value("counters", json::object());
  std::string out = "cluster '" + record.name + "' (epoch " + number(status, "epoch") + ", " + record.run_dir + ")\n\n";
  out += actors_table(status, record, console, degraded);
  out += transports_table(status, console);
  out += "\nclients " + std::to_string(status.value("clients", json::array()).size()) + ", programs " +
         std::to_string(status.value("programs", json::array()).size()) + ", requests: waiting " +
         number(requests, "waiting") + ", running " + number(requests, "running") + ", ok " + number(counters, "ok") +
         ", failed " + number(counters, "failed") + ", cancelled " + number(counters, "cancelled") + ", expired " +
         number(counters, "expired") + ", run again " + number(counters, "retried") + "\n";
  return out;
}

/// One look: prints, and gives the exit code.
int show(actors::Client& client, const Console& console, bool clear) {
  const auto answer = client.operation("status", "{}", kAnswerWait);
  if (!answer) return report(answer.error(), console);
  json status = json::parse(*answer, nullptr, false);
  if (!status.is_object())
    return report(Error(ErrorCode::kInternal, "the coordinator's status is not a JSON object"), console);
  leave_out_self(status);
  add_python_processes(status, client);
  bool degraded = !status.value("ready", false);
  const std::string text = text_of(status, client.cluster(), console, degraded);
  if (console.json) {
    json out = status;
    out["run_dir"] = client.cluster().run_dir;
    out["node_pid"] = client.cluster().node_pid;
    out["coordinator_pid"] = client.cluster().coordinator_pid;
    print_line(dump(out));
  } else {
    print((clear ? "\x1b[H\x1b[2J" : "") + text);
  }
  return degraded ? kExitDegraded : kExitOk;
}

int status(const std::string& name, bool watch, const Console& console) {
  // Not the logs: whoever asks for the status of a cluster that has just ended wants to read them next.
  for (const std::string& line : actors::sweep_dead_run_dirs(true)) note("removed " + line);
  auto record = actors::find_cluster(name);
  if (!record) return report(record.error(), console);
  Result<StopSignals> signals = fail(ErrorCode::kInternal, "not asked for");
  if (watch) {
    signals = StopSignals::take();
    if (!signals) return report(signals.error(), console);
  }
  actors::Client::Options options;
  options.cluster = record->run_dir;
  options.connect_timeout = kAnswerWait;
  options.interrupted = [&signals] { return signals && signals->read_count() > 0; };
  auto client = actors::Client::connect(std::move(options));
  if (!client) {
    const int code = report(client.error(), console);
    // The node actor lives, for it holds the lock: part of the cluster is there.
    return client.error().code == ErrorCode::kCoordinatorLost || client.error().code == ErrorCode::kPeerLost
               ? kExitDegraded
               : code;
  }
  while (true) {
    const int code = show(**client, console, watch && isatty(STDOUT_FILENO) == 1);
    if (!watch || code == kExitFailed) return code;
    pollfd fd{signals->fd(), POLLIN, 0};
    if (poll(&fd, 1, kWatchEveryMs) > 0) return kExitInterrupted;
  }
}

}  // namespace

void add_status(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("status", "Show the actors of a cluster and what they do");
  auto name = std::make_shared<std::string>();
  auto watch = std::make_shared<bool>(false);
  command->add_option("NAME", *name, "Name or run directory; not needed while one cluster runs");
  command->add_flag("-w,--watch", *watch, "Again every second, until Ctrl-C");
  add_output_option(*command, invocation);
  command->footer(R"(
Processes of a device's Python kernels (python: process) have a row of their own: idle, busy or starting. This command
itself is not counted among the clients.

What killed clusters left is removed, but for their logs: those go with the next `callboard up` or `callboard down`.

Examples:
  callboard status
  callboard status lab-a -w
  callboard status -o json | jq '.actors[] | {name, state}'

Exit status: 0 all actors are ready, 1 no such cluster, 5 degraded (an actor is starting, down or failed).)");
  command->callback([name, watch, &invocation] {
    invocation.run = [name, watch, &invocation] { return status(*name, *watch, invocation.console); };
  });
}

}  // namespace callboard::cli
