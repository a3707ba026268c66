#include "tools/callboard/help.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <CLI/CLI.hpp>

#include "config/scalars.h"
#include "tools/callboard/commands.h"

namespace callboard::cli {
namespace {

std::string nearest_of(std::string_view word, const std::vector<std::string>& known) {
  const std::vector<std::string_view> names(known.begin(), known.end());
  return std::string(config::nearest_name(word, names));
}

std::string list_of(const std::vector<std::string>& known) {
  return config::list_names(std::vector<std::string_view>(known.begin(), known.end()));
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

/// "callboard", "callboard config".
std::string title_of(const CLI::App& command) {
  const std::string own = command.get_name();
  return command.get_parent() == nullptr ? own : title_of(*command.get_parent()) + " " + own;
}

Error unknown_option(const CLI::App& command, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  const std::vector<std::string> known = option_names(command);
  const bool is_long = name.starts_with("--");  // of single letters each is near to every other
  std::string near = is_long ? nearest_of(name, known) : std::string();
  if (const auto longer = std::find_if(known.begin(), known.end(), [&](const auto& o) { return o.starts_with(name); });
      near.empty() && is_long && name.size() > 2 && longer != known.end()) {
    near = *longer;
  }
  const std::string title = title_of(command);
  return Error(ErrorCode::kUsage, "'" + title + "' has no option '" + config::shown(name) + "'",
               near.empty() ? title + " --help shows what is possible" : "did you mean '" + near + "'?");
}

}  // namespace

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App* c) { return !c->get_group().empty(); })) {
    names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> without_help_command(std::vector<std::string> arguments) {
  if (arguments.empty() || arguments.front() != "help") return arguments;
  arguments.erase(arguments.begin());
  arguments.emplace_back("--help");
  return arguments;
}

std::optional<Error> unknown_command(const CLI::App& app, const std::vector<std::string>& arguments) {
  const CLI::App* at = &app;
  for (const std::string& word : arguments) {
    if (at->get_require_subcommand_min() == 0) return std::nullopt;
    if (!word.empty() && word.front() == '-') {
      const std::vector<std::string> options = option_names(*at);
      if (std::find(options.begin(), options.end(), word) != options.end()) return std::nullopt;
      return unknown_option(*at, word);
    }
    const auto commands = at->get_subcommands([&](const CLI::App* c) { return c->get_name() == word; });
    if (commands.empty()) {
      const std::vector<std::string> known = command_names(*at);
      const std::string near = nearest_of(word, known);
      return Error(ErrorCode::kUsage, "'" + title_of(*at) + "' has no command '" + config::shown(word) + "'",
                   near.empty() ? "commands are " + list_of(known) : "did you mean '" + near + "'?");
    }
    at = commands.front();
  }
  return std::nullopt;
}

Error unexpected_word(const CLI::App& command, const std::vector<std::string>& remaining) {
  for (const std::string& word : remaining) {
    if (word.size() > 1 && word.front() == '-') return unknown_option(command, word);
  }
  const std::string title = title_of(command);
  return Error(ErrorCode::kUsage,
               "'" + title + "' does not take '" + (remaining.empty() ? "" : config::shown(remaining.front())) + "'",
               title + " --help shows what is possible");
}

void add_help(CLI::App& app) {
  // Never parsed as a command: without_help_command() comes first. Here it is for --help and for completion.
  app.add_subcommand("help", "Show this, or the help of a command: callboard help COMMAND");
}

}  // namespace callboard::cli
