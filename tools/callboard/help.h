// Words that name commands and options, and what is said of those that name none.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "messages/base/error.h"

namespace CLI {
class App;
}

namespace callboard::cli {

/// Of the commands that --help shows.
std::vector<std::string> command_names(const CLI::App& app);

/// "help", "help COMMAND …" as "--help", "COMMAND … --help"; anything else as it is.
std::vector<std::string> without_help_command(std::vector<std::string> arguments);

/// kUsage for the first word that must name a command and does not, or an option before it: CLI11 only says that a
/// subcommand is required.
std::optional<Error> unknown_command(const CLI::App& app, const std::vector<std::string>& arguments);

/// kUsage for the first of the words that CLI11 could not place (`remaining`), with the nearest option's name.
Error unexpected_word(const CLI::App& command, const std::vector<std::string>& remaining);

}  // namespace callboard::cli
