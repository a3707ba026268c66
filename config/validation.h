// All findings about a cluster file, for the command line: errors and warnings with their places.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "config/cluster_config.h"
#include "config/findings.h"
#include "config/machine.h"

namespace callboard::config {

constexpr std::size_t kFindingsMax = 50;  // more help nobody, and an Error carries at most 64 causes

struct Validation {
  ClusterConfig config;           ///< to be used only if ok()
  std::vector<Finding> findings;  ///< the first kFindingsMax by position
  std::size_t errors = 0;         ///< all of them
  std::size_t warnings = 0;
  bool ok() const { return errors == 0; }
};

/// Parses and checks; never fails and never throws, whatever the text.
Validation validate_cluster(std::string_view text, const Machine& machine);

/// kFileNotFound, kFileUnreadable with the system's reason, kTooLarge. "-" reads standard input. A pipe is read as long
/// as somebody writes to it, and devices are refused: nothing is waited for in vain.
Result<std::string> read_cluster_file(const std::string& path);

/// For people: each finding as "file:line:column: error[E201] what: hint", the line itself, and a caret under the
/// place; then "2 errors, 1 warning". Empty without findings. `colour`: with ANSI escapes.
std::string format_findings(const Validation& validation, std::string_view text, std::string_view file, bool colour);
/// For scripts: {"file", "ok", "errors", "warnings", "findings": [{line, column, severity, code, name, message,
/// hint}]}.
std::string findings_json(const Validation& validation, std::string_view file);

/// Of an operator library that cannot be loaded here: what is wrong with the file. Empty: nothing.
std::string problem_with_library(const std::string& path);
/// kUnsupported for the first device that this machine cannot run, kFileNotFound for a library that is not here; asked
/// before anything is started.
Status check_runs_here(const ClusterConfig& config, const Machine& machine);

}  // namespace callboard::config
