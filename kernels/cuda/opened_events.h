// Events of other processes, opened once for each handle and kept for the next time. Private to kernels/cuda.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "kernels/cuda/device_error.h"
#include "kernels/cuda/runtime_table.h"
#include "messages/base/ids.h"

namespace callboard::kernels::cuda {

/// An exporter destroys none of its events while it lives, so a handle of it always means the same event. Thread-safe;
/// the current device is the caller's to set. No lock is held across a call of the runtime.
class OpenedEvents {
 public:
  using Key = std::pair<ActorId, IpcEventHandle>;

  /// Both outlive it. Of more than `unused_max` events the longest unused go.
  OpenedEvents(RuntimeTable& runtime, DeviceHealth& health, std::size_t unused_max)
      : runtime_(runtime), health_(health), max_(unused_max) {}
  ~OpenedEvents();
  OpenedEvents(const OpenedEvents&) = delete;
  OpenedEvents& operator=(const OpenedEvents&) = delete;

  /// Stays open until give_back(). kTensorLost if the handle names nothing (any more), kDeviceFailed, …
  Result<Event> take(const Key& key);
  void give_back(const Key& key) noexcept;
  /// Its unused events go now, the others as they are given back.
  void owner_gone(const ActorId& owner);
  std::size_t size() const;

 private:
  struct Opened {
    Event event = nullptr;
    std::size_t users = 0;
    std::uint64_t last_used = 0;
    bool lost = false;
  };
  void destroy(Event event) noexcept;

  RuntimeTable& runtime_;
  DeviceHealth& health_;
  const std::size_t max_;
  mutable std::mutex mutex_;
  std::map<Key, Opened> events_;
  std::uint64_t uses_ = 0;
};

}  // namespace callboard::kernels::cuda
