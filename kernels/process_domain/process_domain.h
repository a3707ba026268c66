// The GIL domain in child processes.
#pragma once

#include <memory>

#include "kernels/gil_domain.h"
#include "kernels/memory/arena.h"
#include "kernels/memory/segment_map.h"

namespace callboard::kernels {

/// Starts options.processes->count children and its spares at once and waits until all are ready. What a call costs its
/// process (a crash, a hang, os._exit, too much memory) costs that call and nothing else: the next one runs in another
/// process, and a new one is started behind it. Errors of the start are the child's own, or kStartFailed. Main thread;
/// arena and segments outlive the domain, and exchange and stream its last call. kUnsupported where a GPU's memory
/// cannot be shared.
Result<std::unique_ptr<GilDomain>> make_process_domain(const PythonOptions& options, const ActorId& device, int threads,
                                                       Arena* arena, SegmentMap* segments,
                                                       const DomainDeviceMemory& memory = {});

}  // namespace callboard::kernels
