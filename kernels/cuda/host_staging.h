// Copies between a device and ordinary host memory in chunks through pinned buffers: the path for readers that cannot
// open the exporter's memory, and for results that go to the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cuda/device_error.h"
#include "kernels/cuda/runtime_table.h"
#include "messages/base/clock.h"

namespace callboard::kernels::cuda {

/// Belongs to the thread of one stream (communicate). While one chunk crosses the bus, the thread copies the other one:
/// the host memory needs not be pinned.
class HostStaging {
 public:
  virtual ~HostStaging() = default;
  /// Two buffers of `chunk_bytes` each, made at the first copy.
  static std::unique_ptr<HostStaging> create(RuntimeTable& runtime, std::shared_ptr<DeviceHealth> health, int device,
                                             Stream stream, std::size_t chunk_bytes = 4u << 20);

  /// Behind what `stream` has queued. Returns when the bytes are there. `deadline` is checked between chunks
  /// (kDeadlineExceeded; then `to` holds anything). kOutOfMemory (pinned memory), kDeviceFailed.
  virtual Status to_host(void* to, const void* from, std::size_t bytes, TimePoint deadline) = 0;
  /// Returns when `from` has been read; what `stream` does next sees the bytes in `to`. Waits for earlier copies only
  /// where both buffers are full of what they have not read yet.
  virtual Status to_device(void* to, const void* from, std::size_t bytes, TimePoint deadline) = 0;
};

}  // namespace callboard::kernels::cuda
