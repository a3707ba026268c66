#include "actors/device/device_queries.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "messages/limits.h"

namespace callboard::actors {
namespace {

/// {"program": hex} and "on": true or false, or "take": the first node to tell of; {"times_ns", "nodes", "runs"}.
Result<nlohmann::json> answer_profile(const nlohmann::json& arguments, kernels::DeviceRuntime& runtime) {
  constexpr std::size_t kNodesAtOnce = 16'384;  // of their times as text, far below limits::kStringBytesMax
  const auto refused = [](const std::string& what) {
    return fail(ErrorCode::kMalformed, "device query 'profile': " + what);
  };
  if (!arguments.contains("program") || !arguments["program"].is_string()) return refused("'program' must be a text");
  CALLBOARD_ASSIGN(const ContentHash program, ContentHash::from_hex(arguments["program"].get<std::string>()));
  if (arguments.contains("on")) {
    if (!arguments["on"].is_boolean()) return refused("'on' must be true or false");
    if (arguments["on"].get<bool>()) {
      CALLBOARD_TRY(runtime.begin_profile(program));
    } else {
      runtime.end_profile(program);
    }
  }
  nlohmann::json result = nlohmann::json::object();
  if (arguments.contains("take")) {
    if (!arguments["take"].is_number_unsigned()) return refused("'take' must be the number of a node");
    CALLBOARD_ASSIGN(const kernels::ProfileTimes times,
                     runtime.take_profile(program, arguments["take"].get<std::size_t>(), kNodesAtOnce));
    result = {{"times_ns", times.median_ns}, {"nodes", times.nodes}, {"runs", times.runs}};
  }
  return result;
}

}  // namespace

Result<std::string> answer_query(const DeviceQuery& query, kernels::DeviceRuntime& runtime, const kernels::Arena& arena,
                                 const kernels::SegmentMap& segments) {
  const auto arguments = nlohmann::json::parse(query.arguments.empty() ? "{}" : query.arguments, nullptr, false);
  if (!arguments.is_object()) {
    return fail(ErrorCode::kMalformed, "the arguments of device query '" + query.name + "' are not a JSON object");
  }
  nlohmann::json result = nlohmann::json::object();
  if (query.name == "trace") {
    if (arguments.contains("on")) {
      if (!arguments["on"].is_boolean())
        return fail(ErrorCode::kMalformed, "'on' of device query 'trace' must be true or false");
      runtime.set_trace(arguments["on"].get<bool>());
    }
    if (arguments.contains("take")) {
      if (!arguments["take"].is_number_unsigned()) {
        return fail(ErrorCode::kMalformed, "'take' of device query 'trace' must be a number of bytes");
      }
      const auto bytes = std::min<std::size_t>(arguments["take"].get<std::size_t>(), limits::kStringBytesMax / 2);
      kernels::TraceBatch batch = runtime.take_trace(bytes);
      result["events"] = nlohmann::json::parse(batch.events, nullptr, false);
      result["more"] = batch.more;
    }
  } else if (query.name == "memory") {
    const kernels::ArenaStats stats = arena.stats();
    result = {{"reserved_bytes", stats.reserved_bytes},
              {"resident_bytes", stats.resident_bytes},
              {"in_use_bytes", stats.in_use_bytes},
              {"leased_bytes", stats.leased_bytes},
              {"peak_bytes", stats.peak_bytes},
              {"leases", stats.leases},
              {"segments", stats.segments},
              {"copied_in_bytes", stats.copied_in_bytes},
              {"mapped_bytes", segments.mapped_bytes()}};
  } else if (query.name == "profile") {
    CALLBOARD_ASSIGN(result, answer_profile(arguments, runtime));
  } else if (query.name == "describe") {
    result = nlohmann::json::parse(runtime.describe(), nullptr, false);
  } else {
    return fail(ErrorCode::kUsage, "there is no device query '" + query.name + "'",
                "known: describe, memory, profile, trace");
  }
  return result.dump();
}

}  // namespace callboard::actors
