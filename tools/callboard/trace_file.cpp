#include "tools/callboard/trace_file.h"

#include <fstream>

namespace callboard::cli {

Result<std::string> save_trace(actors::Client& client, const config::TracingConfig& tracing) {
  CALLBOARD_ASSIGN(const std::string trace,
                   client.operation("trace", R"({"action": "take"})", std::chrono::seconds(10)));
  const std::string path = tracing.file.empty() ? "trace.json" : tracing.file;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << trace << "\n";
  file.close();
  if (!file)
    return fail(ErrorCode::kFileUnreadable, "the trace cannot be written to '" + path + "'",
                "set tracing.file in the cluster file");
  return path;
}

}  // namespace callboard::cli
