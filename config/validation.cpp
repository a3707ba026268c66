#include "config/validation.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "config/checks.h"
#include "config/document.h"
#include "config/reader.h"
#include "messages/base/fd.h"

namespace callboard::config {
namespace {

constexpr const char* kRed = "\x1b[31;1m";
constexpr const char* kYellow = "\x1b[33;1m";
constexpr const char* kPlain = "\x1b[0m";
constexpr int kPipeWaitMs = 10'000;  // for more text of a pipe

std::string location(std::string_view file, Position at) {
  return std::string(file) + ":" + std::to_string(at.line) + ":" + std::to_string(at.column) + ": ";
}

std::string counted(std::size_t count, const char* word) {
  return std::to_string(count) + " " + word + (count == 1 ? "" : "s");
}

/// Those of ASCII, and U+0080 to U+009F, which some terminals obey as well.
bool is_control(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7f;
  return character.size() == 2 && byte(0) == 0xc2 && byte(1) < 0xa0;
}

tl::unexpected<Error> unreadable(const std::string& path, const std::string& why, std::string hint = {}) {
  return fail(ErrorCode::kFileUnreadable, "cannot read the cluster file '" + path + "': " + why, std::move(hint));
}

enum class Source { kFile, kPipe, kTerminal };

/// What can be read without waiting for ever. A pipe (/dev/stdin, bash's <(…)) is read as long as somebody writes.
Result<Source> source_of(int fd, const std::string& path) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) return unreadable(path, std::strerror(errno));
  if (S_ISREG(info.st_mode)) return Source::kFile;
  if (S_ISFIFO(info.st_mode)) return Source::kPipe;
  if (S_ISDIR(info.st_mode)) return unreadable(path, std::strerror(EISDIR));
  if (isatty(fd) == 1) return Source::kTerminal;
  return unreadable(path, "it is a device, not a file", "give a YAML or JSON file, or - for standard input");
}

/// A pipe without text: has nobody written to it since it was opened? Then it says nothing; else that he hung up.
bool never_written(int fd) {
  pollfd state{fd, POLLIN, 0};
  return poll(&state, 1, 0) == 0;
}

std::string_view line_of(std::string_view text, int number) {
  if (text.substr(0, 3) == "\xef\xbb\xbf") text.remove_prefix(3);
  for (int line = 1; line < number; ++line) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  std::string_view line = text.substr(0, text.find('\n'));
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

/// The line and a caret under the place. Of a long line, what is around the place.
std::string excerpt(std::string_view text, const Finding& finding) {
  constexpr std::size_t kBefore = 60;
  constexpr std::size_t kCharactersMax = 100;
  const std::string_view line = line_of(text, finding.at.line);
  const auto column = static_cast<std::size_t>(finding.at.column - 1);
  const std::size_t skip = column > kBefore ? column - kBefore / 2 : 0;
  std::string shown;
  std::size_t index = 0;
  for (std::size_t i = 0; i < line.size() && index < skip + kCharactersMax; ++index) {
    // The file may be anything, and what is printed goes to a terminal.
    const std::size_t length = utf8_length(line, i);
    const std::string_view character = line.substr(i, std::max<std::size_t>(length, 1));
    i += character.size();
    if (index >= skip) shown += length == 0 ? "?" : is_control(character) ? std::string(" ") : std::string(character);
  }
  const auto length = static_cast<std::size_t>(characters(shown));
  const std::size_t caret = std::min(column - skip, length);
  const std::size_t room = length > caret ? length - caret : 1;
  const std::size_t width = std::clamp<std::size_t>(static_cast<std::size_t>(std::max(finding.width, 1)), 1, room);
  std::string number = std::to_string(finding.at.line);
  number.insert(0, number.size() < 5 ? 5 - number.size() : 0, ' ');
  return number + " | " + shown + "\n      | " + std::string(caret, ' ') + std::string(width, '^') + "\n";
}

std::string code_text(ErrorCode code) { return "E" + std::to_string(static_cast<int>(code)); }

}  // namespace

Validation validate_cluster(std::string_view text, const Machine& machine) {
  Findings findings;
  Validation out;
  if (const auto root = read_document(text, findings)) {
    ClusterRead read = read_cluster(*root, machine.memory_bytes, findings);
    check_cluster(read, machine, findings);
    out.config = std::move(read.config);
  } else if (findings.errors() == 0) {
    findings.error(ErrorCode::kConfigMissing, {}, 1, "the file is empty",
                   "the smallest cluster file is: devices: [{kind: cpu}]");
  }
  out.errors = findings.errors();
  out.findings = std::move(findings).sorted();
  out.warnings = out.findings.size() - out.errors;
  if (out.findings.size() > kFindingsMax) out.findings.resize(kFindingsMax);
  return out;
}

Result<std::string> read_cluster_file(const std::string& path) {
  const bool standard_input = path == "-";
  if (const std::size_t nul = path.find('\0'); nul != std::string::npos) {
    return unreadable(path.substr(0, nul), "its path has a NUL byte");
  }
  // Not blocking: opening a pipe would wait for its writer, for ever.
  UniqueFd file(standard_input ? dup(STDIN_FILENO) : open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) {
    const int why = errno;
    return fail(why == ENOENT ? ErrorCode::kFileNotFound : ErrorCode::kFileUnreadable,
                "cannot read the cluster file '" + path + "': " + std::strerror(why),
                why == ENOENT ? "give the path of a YAML file; the smallest is: devices: [{kind: cpu}]" : "");
  }
  Source source = Source::kTerminal;  // what '-' is, is the caller's matter: it may take as long as it likes
  if (!standard_input) {
    CALLBOARD_ASSIGN(source, source_of(file.get(), path));
  }
  std::string text;
  char buffer[64 << 10];
  while (true) {
    const ssize_t got = read(file.get(), buffer, sizeof buffer);
    if (got == 0) {
      if (source != Source::kPipe || !text.empty() || !never_written(file.get())) return text;
      return unreadable(path, "it is a pipe to which nobody writes",
                        "start the writer first, or give a file, or - for standard input");
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      pollfd ready{file.get(), POLLIN, 0};
      if (poll(&ready, 1, source == Source::kPipe ? kPipeWaitMs : -1) != 0) continue;
      return unreadable(path, "it is a pipe, and nothing came for " + std::to_string(kPipeWaitMs / 1000) + " s");
    }
    if (got < 0) return unreadable(path, std::strerror(errno));
    text.append(buffer, static_cast<std::size_t>(got));
    if (text.size() > kFileBytesMax) {
      return fail(ErrorCode::kTooLarge,
                  "the cluster file '" + path + "' has more than " + std::to_string(kFileBytesMax) + " bytes",
                  "is it the right file?");
    }
  }
}

std::string format_findings(const Validation& validation, std::string_view text, std::string_view file, bool colour) {
  if (validation.findings.empty()) return {};
  std::string out;
  for (const Finding& finding : validation.findings) {
    out += location(file, finding.at);
    if (colour) out += finding.warning ? kYellow : kRed;
    out += std::string(finding.warning ? "warning" : "error") + "[" + code_text(finding.code) + "]";
    if (colour) out += kPlain;
    out += " " + finding.message;
    if (!finding.hint.empty()) out += ": " + finding.hint;
    out += "\n" + excerpt(text, finding);
  }
  const std::size_t total = validation.errors + validation.warnings;
  out += counted(validation.errors, "error") + ", " + counted(validation.warnings, "warning");
  if (total > validation.findings.size())
    out += " (the first " + std::to_string(validation.findings.size()) + " are shown)";
  return out + "\n";
}

std::string findings_json(const Validation& validation, std::string_view file) {
  nlohmann::json out;
  out["file"] = file;
  out["ok"] = validation.ok();
  out["errors"] = validation.errors;
  out["warnings"] = validation.warnings;
  out["findings"] = nlohmann::json::array();
  for (const Finding& finding : validation.findings) {
    out["findings"].push_back({{"line", finding.at.line},
                               {"column", finding.at.column},
                               {"severity", finding.warning ? "warning" : "error"},
                               {"code", code_text(finding.code)},
                               {"name", error_name(finding.code)},
                               {"message", finding.message},
                               {"hint", finding.hint}});
  }
  // The file's name may be anything that the system allows.
  return out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

Result<ClusterConfig> parse_cluster(std::string_view text, std::string_view file) {
  Validation validation = validate_cluster(text, Machine::here());
  if (validation.ok()) return std::move(validation.config);
  Error error(ErrorCode::kConfigSyntax,
              std::string(file) + " is not a valid cluster file: " + counted(validation.errors, "error"));
  for (Finding& finding : validation.findings) {
    if (finding.warning) continue;
    if (error.causes.empty()) error.code = finding.code;
    error.causes.emplace_back(finding.code, location(file, finding.at) + finding.message, std::move(finding.hint));
  }
  return fail(std::move(error));
}

std::string problem_with_library(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || ::access(path.c_str(), R_OK) != 0) {
    return path + " cannot be read: " + std::strerror(errno);
  }
  if (!S_ISREG(info.st_mode)) return path + " is not a file";
  return {};
}

Status check_runs_here(const ClusterConfig& config, const Machine& machine) {
  for (const DeviceConfig& device : config.devices) {
    if (machine.runs(device.kind)) continue;
    std::string kinds;
    for (const std::string& kind : machine.device_kinds) kinds += (kinds.empty() ? "" : ", ") + kind;
    return fail(
        ErrorCode::kUnsupported,
        "device '" + device.name + "' is of kind '" + device.kind + "', for which this installation has no backend",
        "kinds here: " + kinds + (device.kind == "cuda" ? "; cuda is built where nvcc is found" : ""));
  }
  for (const DeviceConfig& device : config.devices) {
    if (device.python == "none" || machine.python) continue;
    return fail(ErrorCode::kUnsupported,
                "device '" + device.name + "' is to run Python kernels, for which this installation has no plug-in",
                "callboard_python.so is built with -DCALLBOARD_PYTHON=ON, where libpython is found");
  }
  for (const OperatorLibraryConfig& library : config.operators) {
    if (const std::string problem = problem_with_library(library.path); !problem.empty()) {
      return fail(ErrorCode::kFileNotFound, "the operator library " + problem,
                  "correct `operators` in the cluster file");
    }
  }
  return {};
}

Result<ClusterConfig> load_cluster(const std::string& path) {
  CALLBOARD_ASSIGN(const std::string text, read_cluster_file(path));
  return parse_cluster(text, path);
}

}  // namespace callboard::config
