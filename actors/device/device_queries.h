// Free questions to a device actor, as the coordinator passes them on.
#pragma once

#include <string>

#include "kernels/memory/arena.h"
#include "kernels/memory/segment_map.h"
#include "kernels/runtime.h"
#include "messages/protocol.h"

namespace callboard::actors {

/// "describe", "memory", "profile" or "trace"; a JSON object. kUsage names the questions that there are, kMalformed
/// what is wrong with the arguments. On the loop's thread.
Result<std::string> answer_query(const DeviceQuery& query, kernels::DeviceRuntime& runtime, const kernels::Arena& arena,
                                 const kernels::SegmentMap& segments);

}  // namespace callboard::actors
