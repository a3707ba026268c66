// The subcommands. Each file adds one to the application; what it should do when it was named is left in
// Invocation::run.
#pragma once

#include <functional>

#include "tools/callboard/console.h"

namespace CLI {
class App;
}

namespace callboard::cli {

struct Invocation {
  Console console;
  std::function<int()> run;  ///< main thread; returns the exit code
};

void add_validate(CLI::App& app, Invocation& invocation);
void add_up(CLI::App& app, Invocation& invocation);
void add_down(CLI::App& app, Invocation& invocation);
void add_status(CLI::App& app, Invocation& invocation);
void add_logs(CLI::App& app, Invocation& invocation);
void add_quarantine(CLI::App& app, Invocation& invocation);
void add_run(CLI::App& app, Invocation& invocation);
void add_doctor(CLI::App& app, Invocation& invocation);
void add_config(CLI::App& app, Invocation& invocation);
void add_completion(CLI::App& app, Invocation& invocation);
void add_version(CLI::App& app, Invocation& invocation);
void add_help(CLI::App& app);
/// Hidden: what the node actor and `up` start.
void add_roles(CLI::App& app, Invocation& invocation);

/// "-o text|json", the same for every command.
void add_output_option(CLI::App& command, Invocation& invocation);

}  // namespace callboard::cli
