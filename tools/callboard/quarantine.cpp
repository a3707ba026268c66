#include <memory>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "actors/client/client.h"
#include "actors/core/run_dir.h"
#include "tools/callboard/commands.h"
#include "tools/callboard/exit_codes.h"

namespace callboard::cli {
namespace {

constexpr std::chrono::seconds kQuarantineWait{5};

/// Asks the coordinator and prints what `show` makes of the answer.
int ask_coordinator(const std::string& cluster, const std::string& operation, const nlohmann::json& arguments,
                    const Console& console, std::string (*show)(const nlohmann::json&, const Console&)) {
  auto record = actors::find_cluster(cluster);
  if (!record) return report(record.error(), console);
  actors::Client::Options options;
  options.cluster = record->run_dir;
  options.connect_timeout = kQuarantineWait;
  auto client = actors::Client::connect(std::move(options));
  if (!client) return report(client.error(), console);
  const auto answer = (*client)->operation(operation, arguments.dump(), kQuarantineWait);
  if (!answer) return report(answer.error(), console);
  if (console.json) {
    print_line(*answer);
    return kExitOk;
  }
  const auto told = nlohmann::json::parse(*answer, nullptr, false);
  if (!told.is_object()) {
    return report(Error(ErrorCode::kInternal, "the coordinator's answer is not a JSON object"), console);
  }
  print(show(told, console));
  return kExitOk;
}

std::string quarantine_table(const nlohmann::json& told, const Console& console) {
  const nlohmann::json list = told.value("quarantine", nlohmann::json::array());
  if (list.empty()) return "no program has ended a device\n";
  Table table({"PROGRAM", "NAME", "DEVICES", "STATE", "DEATHS", "THE LAST ONE"});
  for (const nlohmann::json& entry : list) {
    const bool refused = entry.value("quarantined", false);
    table.add({entry.value("program", "").substr(0, 12), entry.value("name", ""), entry.value("devices", ""),
               refused ? "quarantined" : "watched", std::to_string(entry.value("kills", 0)), entry.value("last", "")},
              refused ? Style::kBad : Style::kWarn);
  }
  return table.text(console, 3);
}

std::string released_line(const nlohmann::json& told, const Console&) {
  return "program " + told.value("released", "").substr(0, 12) + " may run again\n";
}

}  // namespace

void add_quarantine(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("quarantine", "Programs that crash devices: list them, let one run again");
  auto cluster = std::make_shared<std::string>();
  command->add_option("--cluster", *cluster, "Name or run directory; not needed while one cluster runs");
  command->require_subcommand(0, 1);
  add_output_option(*command, invocation);
  command->footer(R"(
A program that ends two device processes in succession while nothing else runs there (by a crash or an exit; a kill
from outside is never charged) is quarantined: its requests are refused, so that it cannot take the cluster down. A
success in between clears it. What waits of it is refused with it, the other members of a batch among them; each
replica is a program of its own. The list is the coordinator's, and begins anew with it.

Examples:
  callboard quarantine
  callboard quarantine release 3f2a9c01b7de
  callboard quarantine -o json

Exit status: 0 ok, 1 no such cluster or it does not answer, 2 no such program.)");
  command->callback([command, cluster, &invocation] {
    if (!command->get_subcommands().empty()) return;
    invocation.run = [cluster, &invocation] {
      return ask_coordinator(*cluster, "quarantine", nlohmann::json::object(), invocation.console, quarantine_table);
    };
  });
  CLI::App* release = command->add_subcommand("release", "Let a quarantined program run again");
  auto program = std::make_shared<std::string>();
  release->fallthrough();  // --cluster and -o may stand behind it, too
  release->add_option("PROGRAM", *program, "Its hash, or enough of its beginning")->required();
  release->footer(R"(
Examples:
  callboard quarantine release 3f2a9c01b7de

Exit status: 0 it may run again, 1 no such cluster or it does not answer, 2 no such program.)");
  release->callback([cluster, program, &invocation] {
    invocation.run = [cluster, program, &invocation] {
      return ask_coordinator(*cluster, "quarantine_release", {{"program", *program}}, invocation.console,
                             released_line);
    };
  });
}

}  // namespace callboard::cli
