#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "config/validation.h"
#include "tools/callboard/commands.h"
#include "tools/callboard/exit_codes.h"

namespace callboard::cli {
namespace {

int validate(const std::string& file, const Console& console) {
  const auto text = config::read_cluster_file(file);
  if (!text) {
    report(text.error(), console);
    return kExitUsage;
  }
  const config::Validation validation = config::validate_cluster(*text, config::Machine::here());
  const std::string name = file == "-" ? "<stdin>" : file;
  if (console.json) {
    print_line(config::findings_json(validation, name));
  } else {
    print(config::format_findings(validation, *text, name, console.colour_out));
    if (validation.ok()) {
      print_line(name + ": " + console.out(Style::kGood, "ok") + ", cluster '" + validation.config.name + "' with " +
                 std::to_string(validation.config.devices.size()) +
                 (validation.config.devices.size() == 1 ? " device" : " devices"));
    }
  }
  return validation.ok() ? kExitOk : kExitUsage;
}

}  // namespace

void add_validate(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("validate", "Check a cluster file and show all that is wrong with it");
  auto file = std::make_shared<std::string>();
  command->add_option("FILE", *file, "Cluster file (YAML or JSON); - is standard input")->required();
  add_output_option(*command, invocation);
  command->footer(R"(
Examples:
  callboard validate cluster.yaml
  callboard validate cluster.yaml -o json | jq .findings
  echo 'devices: [{kind: cpu, count: 2}]' | callboard validate -

Exit status: 0 valid (perhaps with warnings), 2 invalid or not readable.
All keys: callboard config reference.)");
  command->callback(
      [file, &invocation] { invocation.run = [file, &invocation] { return validate(*file, invocation.console); }; });
}

void add_output_option(CLI::App& command, Invocation& invocation) {
  command
      .add_option_function<std::string>(
          "-o,--output-format", [&invocation](const std::string& form) { invocation.console.json = form == "json"; },
          "text (default) or json, for scripts")
      ->check(CLI::IsMember({"text", "json"}))
      ->type_name("FORM");
}

}  // namespace callboard::cli
