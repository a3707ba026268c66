// Where LibTorch's caching allocator gets segments of device memory from, to cut tensors out of.
#pragma once

#include <cstddef>

#include "kernels/cuda/runtime_table.h"
#include "messages/base/error.h"

namespace callboard::kernels::cuda {

/// Thread-safe; none changes the calling thread's current device. May be called under the allocator's lock.
class DeviceSegments {
 public:
  virtual ~DeviceSegments() = default;
  /// For work on `stream`; contents unspecified. kOutOfMemory; kDeviceFailed. nullptr for 0 bytes.
  virtual Result<void*> allocate(std::size_t bytes, Stream stream) = 0;
  /// Work that `stream` has queued on it may still run. Accepts nullptr; otherwise what allocate() gave.
  virtual void deallocate(void* pointer, Stream stream) noexcept = 0;
  /// Gives back what is free (LibTorch asks after an emptyCache; a request ran out of memory elsewhere).
  virtual Status release_cached() = 0;
};

}  // namespace callboard::kernels::cuda
