// Where a traced cluster leaves its trace.
#pragma once

#include <string>

#include "actors/client/client.h"
#include "config/cluster_config.h"

namespace callboard::cli {

/// Can the trace be written where save_trace() will? Asked before the cluster starts; kConfigOutOfRange.
Status check_trace_file(const config::TracingConfig& tracing);

/// Takes what the cluster recorded and writes it to tracing.file (default: ./trace.json). Returns the path.
Result<std::string> save_trace(actors::Client& client, const config::TracingConfig& tracing);

}  // namespace callboard::cli
