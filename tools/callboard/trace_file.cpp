#include "tools/callboard/trace_file.h"

#include <chrono>
#include <fstream>
#include <utility>

#include <nlohmann/json.hpp>

namespace callboard::cli {
namespace {

constexpr auto kTakeWait = std::chrono::seconds(10);
constexpr auto kTakeFor = std::chrono::seconds(60);  // devices that still record faster than this reads never end

}  // namespace

Result<std::string> save_trace(actors::Client& client, const config::TracingConfig& tracing) {
  const std::string path = tracing.file.empty() ? "trace.json" : tracing.file;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << R"({"displayTimeUnit":"ms","traceEvents":[)";
  const TimePoint end = Clock::now() + kTakeFor;
  bool first = true;
  for (bool more = true; more && file && Clock::now() < end;) {
    CALLBOARD_ASSIGN(const std::string text, client.operation("trace", R"({"action": "take"})", kTakeWait));
    const auto part = nlohmann::json::parse(text, nullptr, false);
    if (!part.is_object() || !part.contains("traceEvents") || !part["traceEvents"].is_array()) {
      return fail(ErrorCode::kUnexpectedMessage, "the coordinator's answer to 'trace' is no trace");
    }
    for (const auto& event : part["traceEvents"]) {
      if (!std::exchange(first, false)) file << ",\n";
      file << event.dump();
    }
    more = part.contains("more") && part["more"] == true;
  }
  file << "]}\n";
  file.close();
  if (!file) {
    return fail(ErrorCode::kFileUnreadable, "the trace cannot be written to '" + path + "'",
                "set tracing.file in the cluster file");
  }
  return path;
}

}  // namespace callboard::cli
