// callboard: command line, coordinator and node actor in one binary.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "tools/callboard/commands.h"
#include "tools/callboard/console.h"
#include "tools/callboard/exit_codes.h"
#include "tools/callboard/help.h"

namespace callboard::cli {
namespace {

constexpr const char* kFooter = R"(
Examples:
  callboard validate cluster.yaml      check a cluster file
  callboard up cluster.yaml            start it; Ctrl-C stops it
  callboard up cluster.yaml --detach   start it and return
  callboard status                     what runs
  callboard run model.safetensors --input x=x.npy --output y.npy
  callboard logs cpu0                  what a device said
  callboard down                       stop it

Exit status: 0 ok, 1 failed, 2 usage or invalid file, 3 environment, 4 not ready in time, 5 degraded, 130 interrupted.
Each command has its own help: callboard help COMMAND. The cluster file: callboard config reference.)";

/// The command that was named, the innermost one.
const CLI::App& named_command(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return *at;
}

int usage_error(const CLI::App& app, const CLI::ParseError& error, const Invocation& invocation) {
  const CLI::App& command = named_command(app);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    return report(unexpected_word(command, app.remaining(true)), invocation.console);
  }
  std::string title = command.get_name();
  for (const CLI::App* parent = command.get_parent(); parent != nullptr; parent = parent->get_parent()) {
    title = parent->get_name() + " " + title;
  }
  return report(Error(ErrorCode::kUsage, error.what(), title + " --help shows what is possible"), invocation.console);
}

int run(int argc, char** argv) {
  CLI::App app{"Callboard: tensor programs over several devices, one process each.", "callboard"};
  app.footer(kFooter);
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  Invocation invocation;
  invocation.console = Console::detect();
  app.set_version_flag("--version", std::string("callboard " CALLBOARD_VERSION));
  add_validate(app, invocation);
  add_up(app, invocation);
  add_down(app, invocation);
  add_status(app, invocation);
  add_logs(app, invocation);
  add_run(app, invocation);
  add_quarantine(app, invocation);
  add_doctor(app, invocation);
  add_config(app, invocation);
  add_completion(app, invocation);
  add_version(app, invocation);
  add_roles(app, invocation);
  add_help(app);
  std::vector<std::string> arguments = without_help_command({argv + 1, argv + argc});
  if (arguments.empty()) {
    print(app.help());
    return kExitUsage;
  }
  if (const auto error = unknown_command(app, arguments)) return report(*error, invocation.console);
  try {
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    app.parse(std::move(arguments));
  } catch (const CLI::Success& wanted) {  // --help, --version
    std::ostringstream text;
    app.exit(wanted, text, text);
    print(text.str());
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error, invocation);
  }
  return invocation.run ? invocation.run() : kExitUsage;
}

}  // namespace
}  // namespace callboard::cli

int main(int argc, char** argv) {
  try {
    return callboard::cli::checked_output(callboard::cli::run(argc, argv));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "callboard: internal error: %s\n  hint: please report this, with the command you ran\n",
                 e.what());
  }
  return callboard::cli::kExitFailed;
}
