#include "actors/coordinator/text.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>

#include "messages/base/names.h"
#include "messages/limits.h"

namespace callboard::actors {
namespace {

const char* signal_name(int signal) {
  switch (signal) {
    case SIGHUP:
      return "SIGHUP";
    case SIGINT:
      return "SIGINT";
    case SIGQUIT:
      return "SIGQUIT";
    case SIGILL:
      return "SIGILL";
    case SIGTRAP:
      return "SIGTRAP";
    case SIGABRT:
      return "SIGABRT";
    case SIGBUS:
      return "SIGBUS";
    case SIGFPE:
      return "SIGFPE";
    case SIGKILL:
      return "SIGKILL";
    case SIGSEGV:
      return "SIGSEGV";
    case SIGPIPE:
      return "SIGPIPE";
    case SIGTERM:
      return "SIGTERM";
    case SIGSYS:
      return "SIGSYS";
    case SIGXCPU:
      return "SIGXCPU";
    default:
      return "";
  }
}

}  // namespace

std::string nearest_name(std::string_view word, const std::vector<std::string>& names) {
  constexpr std::size_t kCompared = 256;  // longer words cost more than the advice is worth
  if (word.size() > kCompared) return {};
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& name : names) {
    if (name.size() > kCompared) continue;
    const std::size_t distance = edit_distance(word, name);
    if (distance < best_distance) {
      best_distance = distance;
      best = name;
    }
  }
  return best;
}

std::string nearest_hint(std::string_view word, const std::vector<std::string>& names) {
  if (std::string near = nearest_name(word, names); !near.empty()) return "did you mean '" + near + "'?";
  if (names.empty()) return {};
  constexpr std::size_t kShown = 8;
  std::string text = "known: ";
  for (std::size_t i = 0; i < names.size() && i < kShown; ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kShown) text += ", … (" + std::to_string(names.size()) + " in all)";
  return text;
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return std::to_string(bytes) + " bytes";
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.2f %s (%llu bytes)", value, kUnits[unit],
                static_cast<unsigned long long>(bytes));
  return text.data();
}

std::string wait_text(std::int64_t milliseconds) {
  return milliseconds <= 0 ? "at once" : "in " + std::to_string(milliseconds) + " ms";
}

std::string exit_text(bool signalled, int code) {
  if (!signalled) return "exited with code " + std::to_string(code);
  const std::string name = signal_name(code);
  return "killed by signal " + std::to_string(code) + (name.empty() ? "" : " (" + name + ")");
}

Error one_error(std::vector<Error> findings, ErrorCode code, const std::string& message) {
  if (findings.size() == 1) return std::move(findings.front());
  const ErrorCode first = findings.front().code;
  const bool agree = std::all_of(findings.begin(), findings.end(), [&](const Error& e) { return e.code == first; });
  Error error(agree ? first : code, message);
  error.hint = "each finding below has its own hint";
  if (findings.size() > limits::kErrorCausesMax) findings.resize(limits::kErrorCausesMax);
  error.causes = std::move(findings);
  return error;
}

}  // namespace callboard::actors
