#include "actors/coordinator/operations.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "actors/coordinator/text.h"

namespace callboard::actors {
namespace {

constexpr std::array kCancelArguments = {
    OperationArgument{"client", ArgumentKind::kText, true, "client that submitted it, as `requests` shows it", ""},
    OperationArgument{"request", ArgumentKind::kInteger, true, "number of the request within its client", ""},
};
constexpr std::array kProgramsArguments = {
    OperationArgument{"program", ArgumentKind::kText, false, "only the one with this hash", ""},
};
constexpr std::array kWaitReadyArguments = {
    OperationArgument{"timeout_ms", ArgumentKind::kInteger, false, "give up after so long (60000)", ""},
};
constexpr std::array kRestartArguments = {
    OperationArgument{"name", ArgumentKind::kText, true, "device actor", ""},
    OperationArgument{"kill", ArgumentKind::kFlag, false, "SIGKILL at once instead of SIGTERM", ""},
};
constexpr std::array kShutdownArguments = {
    OperationArgument{"force", ArgumentKind::kFlag, false, "kill at once instead of asking", ""},
    OperationArgument{"reason", ArgumentKind::kText, false, "for the logs", ""},
};
constexpr std::array kTraceArguments = {
    OperationArgument{"action", ArgumentKind::kText, true, "start or stop recording, or take what was recorded",
                      "on off take"},
    OperationArgument{"device", ArgumentKind::kText, false, "only this device", ""},
};
constexpr std::array kDeviceQueryArguments = {
    OperationArgument{"device", ArgumentKind::kText, true, "whom to ask", ""},
    OperationArgument{"name", ArgumentKind::kText, true, "what to ask: describe, memory, profile, trace", ""},
    OperationArgument{"arguments", ArgumentKind::kText, false, "a JSON object for it, as text", ""},
};
constexpr std::array kLogLevelArguments = {
    OperationArgument{"level", ArgumentKind::kText, true, "of the coordinator's log", "trace debug info warning error"},
};

constexpr std::array kQuarantineReleaseArguments = {
    OperationArgument{"program", ArgumentKind::kText, true, "its hash, or enough of its beginning", ""},
};

constexpr std::array kOperations = {
    OperationSpec{OperationId::kStatus, "status", false, "the cluster at a glance", {}},
    OperationSpec{OperationId::kActors, "actors", false, "each actor's state, incarnation, load and last exit", {}},
    OperationSpec{OperationId::kPrograms, "programs", false, "loaded programs, their fragments and users",
                  kProgramsArguments},
    OperationSpec{OperationId::kRequests, "requests", false, "requests that wait or run", {}},
    OperationSpec{OperationId::kCancel, "cancel", true, "end a request", kCancelArguments},
    OperationSpec{OperationId::kWaitReady, "wait_ready", false, "answer when every device is ready",
                  kWaitReadyArguments},
    OperationSpec{OperationId::kRestartActor, "restart_actor", true, "end a device actor and start it again",
                  kRestartArguments},
    OperationSpec{OperationId::kShutdown, "shutdown", true, "end the cluster", kShutdownArguments},
    OperationSpec{OperationId::kTrace, "trace", true, "record what the devices do, as a Chrome trace", kTraceArguments},
    OperationSpec{OperationId::kDeviceQuery, "device_query", false, "ask one device a question of its own",
                  kDeviceQueryArguments},
    OperationSpec{OperationId::kQuarantine, "quarantine", false,
                  "programs that ended their devices' processes, and whether they are refused for it", {}},
    OperationSpec{OperationId::kQuarantineRelease, "quarantine_release", true, "let a quarantined program run again",
                  kQuarantineReleaseArguments},
    OperationSpec{OperationId::kLogLevel, "log_level", true, "how much the coordinator logs", kLogLevelArguments},
};

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> result;
  while (!text.empty()) {
    const std::size_t space = text.find(' ');
    result.emplace_back(text.substr(0, space));
    text = space == std::string_view::npos ? std::string_view{} : text.substr(space + 1);
  }
  return result;
}

std::string_view kind_name(ArgumentKind kind) {
  switch (kind) {
    case ArgumentKind::kText: return "a text";
    case ArgumentKind::kInteger: return "an integer";
    case ArgumentKind::kFlag: return "true or false";
  }
  return "something else";
}

Result<OperationCall::Value> read_argument(const OperationSpec& spec, const OperationArgument& argument,
                                           const nlohmann::json& value) {
  const std::string where =
      "argument '" + std::string(argument.name) + "' of operation '" + std::string(spec.name) + "'";
  std::optional<OperationCall::Value> result;
  if (argument.kind == ArgumentKind::kText && value.is_string()) result = value.get<std::string>();
  if (argument.kind == ArgumentKind::kFlag && value.is_boolean()) result = value.get<bool>();
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{INT64_MAX});
  if (argument.kind == ArgumentKind::kInteger && fits) result = value.get<std::int64_t>();
  if (!result) return fail(ErrorCode::kUsage, where + " must be " + std::string(kind_name(argument.kind)));
  if (!argument.choices.empty()) {
    const std::vector<std::string> choices = words(argument.choices);
    const auto& text = std::get<std::string>(*result);
    if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
      return fail(ErrorCode::kUsage, where + " cannot be '" + text + "'", nearest_hint(text, choices));
    }
  }
  return std::move(*result);
}

}  // namespace

std::span<const OperationSpec> operation_table() { return kOperations; }

std::string OperationCall::text(const std::string& name, std::string otherwise) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::move(otherwise) : std::get<std::string>(found->second);
}

std::int64_t OperationCall::integer(const std::string& name, std::int64_t otherwise) const {
  const auto found = values_.find(name);
  return found == values_.end() ? otherwise : std::get<std::int64_t>(found->second);
}

bool OperationCall::flag(const std::string& name) const {
  const auto found = values_.find(name);
  return found != values_.end() && std::get<bool>(found->second);
}

Result<OperationCall> parse_operation(std::string_view name, std::string_view arguments_json) {
  const auto spec = std::find_if(kOperations.begin(), kOperations.end(),
                                 [&](const OperationSpec& candidate) { return candidate.name == name; });
  if (spec == kOperations.end()) {
    std::vector<std::string> names;
    for (const OperationSpec& candidate : kOperations) names.emplace_back(candidate.name);
    return fail(ErrorCode::kUsage, "there is no operation '" + std::string(name.substr(0, 64)) + "'",
                nearest_hint(name, names));
  }
  const auto json =
      nlohmann::json::parse(arguments_json.empty() ? std::string_view("{}") : arguments_json, nullptr, false);
  if (!json.is_object()) {
    return fail(ErrorCode::kUsage, "the arguments of operation '" + std::string(name) + "' are not a JSON object");
  }
  std::map<std::string, OperationCall::Value> values;
  std::vector<std::string> known;
  for (const OperationArgument& argument : spec->arguments) known.emplace_back(argument.name);
  for (const auto& [key, value] : json.items()) {
    const auto argument = std::find_if(spec->arguments.begin(), spec->arguments.end(),
                                       [&key = key](const OperationArgument& a) { return a.name == key; });
    if (argument == spec->arguments.end()) {
      return fail(ErrorCode::kUsage, "operation '" + std::string(name) + "' has no argument '" + key + "'",
                  known.empty() ? "it takes none" : nearest_hint(key, known));
    }
    CALLBOARD_ASSIGN(values[key], read_argument(*spec, *argument, value));
  }
  for (const OperationArgument& argument : spec->arguments) {
    if (!argument.required || values.count(std::string(argument.name)) != 0) continue;
    return fail(ErrorCode::kUsage,
                "operation '" + std::string(name) + "' needs the argument '" + std::string(argument.name) + "'",
                std::string(argument.meaning));
  }
  return OperationCall(spec->id, std::move(values));
}

}  // namespace callboard::actors
