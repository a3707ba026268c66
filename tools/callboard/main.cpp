// callboard: command line, coordinator and node actor in one binary.
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "config/scalars.h"
#include "tools/callboard/commands.h"
#include "tools/callboard/exit_codes.h"

namespace callboard::cli {
namespace {

constexpr const char* kFooter = R"(
Examples:
  callboard validate cluster.yaml      check a cluster file
  callboard up cluster.yaml            start it; Ctrl-C stops it
  callboard up cluster.yaml --detach   start it and return
  callboard status                     what runs
  callboard run model.safetensors --input x=x.npy --output y.npy
  callboard down                       stop it

Exit status: 0 ok, 1 failed, 2 usage or invalid file, 3 environment, 4 not ready in time, 5 degraded, 130 interrupted.
Each command has its own help: callboard COMMAND --help. The cluster file: callboard config reference.)";

/// CLI11 says "The following argument was not expected: statsu"; the nearest command helps more.
std::string hint_for(const CLI::App& app, const std::vector<std::string>& arguments) {
  if (!app.get_subcommands().empty()) return {};  // the command is right
  std::vector<std::string> owned;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App* c) { return !c->get_group().empty(); })) {
    owned.push_back(command->get_name());
  }
  const std::vector<std::string_view> names(owned.begin(), owned.end());
  for (const std::string& argument : arguments) {
    if (argument.empty() || argument[0] == '-') continue;
    const std::string_view near = config::nearest_name(argument, names);
    return near.empty() ? "commands are " + config::list_names(names) : "did you mean '" + std::string(near) + "'?";
  }
  return {};
}

int usage_error(const CLI::App& app, const CLI::ParseError& error, const std::vector<std::string>& arguments,
                const Invocation& invocation) {
  const auto named = app.get_subcommands();
  std::string hint = hint_for(app, arguments);
  if (hint.empty())
    hint = "callboard " + (named.empty() ? std::string() : named.front()->get_name() + " ") +
           "--help shows what is possible";
  return report(Error(ErrorCode::kUsage, error.what(), hint), invocation.console);
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
  add_run(app, invocation);
  add_doctor(app, invocation);
  add_config(app, invocation);
  add_completion(app, invocation);
  add_version(app, invocation);
  add_roles(app, invocation);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.empty()) {
    print(app.help());
    return kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {  // --help, --version
    app.exit(wanted);
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error, arguments, invocation);
  }
  return invocation.run ? invocation.run() : kExitUsage;
}

}  // namespace
}  // namespace callboard::cli

int main(int argc, char** argv) {
  try {
    return callboard::cli::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "callboard: internal error: %s\n  hint: please report this, with the command you ran\n",
                 e.what());
  }
  return callboard::cli::kExitFailed;
}
