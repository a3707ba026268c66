#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tools/callboard/commands.h"
#include "tools/callboard/doctor_checks.h"
#include "tools/callboard/exit_codes.h"

namespace callboard::cli {
namespace {

const char* level_name(Check::Level level) {
  switch (level) {
    case Check::Level::kOk:
      return "ok";
    case Check::Level::kWarn:
      return "warn";
    case Check::Level::kFail:
      return "fail";
  }
  return "?";
}

Style style_of(Check::Level level) {
  return level == Check::Level::kOk ? Style::kGood : level == Check::Level::kWarn ? Style::kWarn : Style::kBad;
}

int doctor(const Console& console) {
  const std::vector<Check> checks = examine_machine();
  bool failed = false;
  nlohmann::json list = nlohmann::json::array();
  Table table({"CHECK", "STATE", "FOUND"});
  std::string advice;
  for (const Check& check : checks) {
    failed = failed || check.level == Check::Level::kFail;
    list.push_back(
        {{"name", check.name}, {"state", level_name(check.level)}, {"found", check.found}, {"advice", check.advice}});
    table.add({check.name, level_name(check.level), check.found}, style_of(check.level));
    if (check.level != Check::Level::kOk && !check.advice.empty())
      advice += "  " + check.name + ": " + check.advice + "\n";
  }
  if (console.json) {
    print_line(dump({{"ok", !failed}, {"checks", list}}));
  } else {
    print(table.text(console, 1) + (advice.empty() ? "" : "\nWhat to do:\n" + advice));
  }
  return failed ? kExitEnvironment : kExitOk;
}

}  // namespace

void add_doctor(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("doctor", "Examine this machine: what a cluster needs, what would help");
  add_output_option(*command, invocation);
  command->footer(R"(
Examples:
  callboard doctor
  callboard doctor -o json | jq '.checks[] | select(.state != "ok")'

Exit status: 0 a cluster can run here (perhaps with warnings), 3 it cannot.)");
  command->callback([&invocation] { invocation.run = [&invocation] { return doctor(invocation.console); }; });
}

}  // namespace callboard::cli
