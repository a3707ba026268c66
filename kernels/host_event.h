// A one-shot event between two threads of this process. No LibTorch.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "messages/base/clock.h"

namespace callboard::kernels {

/// What was written before record() is visible to whoever saw ready() or wait_until() return true. Any thread; records
/// once and stays recorded; whoever records keeps it alive until record() returns (share it). Asking costs one atomic
/// load, only a real wait takes the lock.
class HostEvent {
 public:
  void record() noexcept {
    {
      std::lock_guard lock(mutex_);
      recorded_.store(true, std::memory_order_release);
    }
    changed_.notify_all();
  }

  bool ready() const noexcept { return recorded_.load(std::memory_order_acquire); }

  /// False if `deadline` passed first.
  bool wait_until(TimePoint deadline) const {
    if (ready()) return true;
    std::unique_lock lock(mutex_);
    const auto recorded = [this] { return recorded_.load(std::memory_order_relaxed); };
    if (deadline == kNever) {
      changed_.wait(lock, recorded);
      return true;
    }
    return changed_.wait_until(lock, deadline, recorded);
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::atomic<bool> recorded_{false};
};

}  // namespace callboard::kernels
