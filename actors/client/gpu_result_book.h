// Results on GPUs that were handed to another library, found again by their address.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "messages/tensor_ref.h"

namespace callboard::actors {

/// A library that takes a result by its address (DLPack) tells us the stream of its first read only. This finds the
/// result of an address, so that the end of its lease can be ordered behind further streams. Holds nothing: a result
/// that went is forgotten. Thread-safe.
class GpuResultBook {
 public:
  /// `result.device` must be set.
  void add(const TensorRef& result);
  /// TensorRef::device's use_on() for every result whose memory `address` lies in. kBadInput if there is none, else its
  /// first error.
  Status use_on(const void* address, void* stream);
  std::size_t size() const;

 private:
  struct Entry {
    std::size_t bytes = 0;
    std::weak_ptr<DeviceMemory> memory;
  };
  void forget_ended_locked();

  mutable std::mutex mutex_;
  std::multimap<const std::byte*, Entry>
      entries_;                // by first byte; the same block may be open twice. Guarded by mutex_
  std::size_t sweep_at_ = 64;  // entries; guarded by mutex_
};

}  // namespace callboard::actors
