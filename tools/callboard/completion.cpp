// The completion script is made from the application's own table of commands and options, so it cannot lag behind.
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "tools/callboard/commands.h"
#include "tools/callboard/exit_codes.h"
#include "tools/callboard/help.h"

namespace callboard::cli {
namespace {

std::string words_of(const CLI::App& command) {
  std::string words;
  for (const std::string& name : command_names(command)) words += name + " ";
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) words += "--" + name + " ";
    for (const std::string& name : option->get_snames()) words += "-" + name + " ";
  }
  return words;
}

std::string bash_script(const CLI::App& app) {
  std::string script = R"(# bash completion of callboard. Use it: source <(callboard completion bash)
_callboard() {
  local word=${COMP_WORDS[COMP_CWORD]} words files=1
  case "${COMP_WORDS[1]}" in
)";
  for (const std::string& name : command_names(app)) {
    // After `help` comes a command.
    script += "    " + name + ") words='" + words_of(name == "help" ? app : *app.get_subcommand(name)) + "' ;;\n";
  }
  script += "    *) words='" + words_of(app) + "'; files= ;;\n";
  script += R"(  esac
  if [ "$COMP_CWORD" -eq 1 ]; then
    words=')" +
            words_of(app) + R"('
    files=
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  if [ -n "$files" ] && [ "${word#-}" = "$word" ]; then
    COMPREPLY+=($(compgen -f -- "$word"))
  fi
}
complete -o filenames -F _callboard callboard
)";
  return script;
}

}  // namespace

void add_completion(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("completion", "Print a completion script for a shell");
  command->require_subcommand(1);
  command->footer("\nExample, in ~/.bashrc:\n  source <(callboard completion bash)");
  CLI::App* bash = command->add_subcommand("bash", "For bash");
  bash->callback([&app, &invocation] {
    invocation.run = [&app] {
      print(bash_script(app));
      return kExitOk;
    };
  });
}

}  // namespace callboard::cli
