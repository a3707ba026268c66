#include "tools/callboard/trace_file.h"

#include <chrono>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "actors/core/output_file.h"

namespace callboard::cli {
namespace {

constexpr auto kTakeWait = std::chrono::seconds(10);
constexpr auto kTakeFor = std::chrono::seconds(60);  // devices that still record faster than this reads never end

std::string path_of(const config::TracingConfig& tracing) { return tracing.file.empty() ? "trace.json" : tracing.file; }

}  // namespace

Status check_trace_file(const config::TracingConfig& tracing) {
  if (!tracing.enabled) return {};
  const Status possible = actors::check_output_file(path_of(tracing));
  if (possible) return {};
  const Error& why = possible.error();
  return fail(ErrorCode::kConfigOutOfRange, "tracing.file: " + why.message,
              why.hint + ", with tracing.file in the cluster file");
}

Result<std::string> save_trace(actors::Client& client, const config::TracingConfig& tracing) {
  const std::string path = path_of(tracing);
  CALLBOARD_ASSIGN(actors::OutputFile file, actors::OutputFile::create(path));
  std::string text = R"({"displayTimeUnit":"ms","traceEvents":[)";
  const TimePoint end = Clock::now() + kTakeFor;
  bool first = true;
  for (bool more = true; more && Clock::now() < end;) {
    CALLBOARD_ASSIGN(const std::string answer, client.operation("trace", R"({"action": "take"})", kTakeWait));
    const auto part = nlohmann::json::parse(answer, nullptr, false);
    if (!part.is_object() || !part.contains("traceEvents") || !part["traceEvents"].is_array()) {
      return fail(ErrorCode::kUnexpectedMessage, "the coordinator's answer to 'trace' is no trace");
    }
    for (const auto& event : part["traceEvents"]) {
      if (!std::exchange(first, false)) text += ",\n";
      text += event.dump();
    }
    CALLBOARD_TRY(file.write(text));
    text.clear();
    more = part.contains("more") && part["more"] == true;
  }
  CALLBOARD_TRY(file.write(text + "]}\n"));
  CALLBOARD_TRY(file.finish());
  return path;
}

}  // namespace callboard::cli
