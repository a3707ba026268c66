// What copies that were broken off half way may still read.
#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/device_backend.h"
#include "kernels/tensor_export.h"

namespace callboard::kernels {

/// A copy that fails in its middle (its deadline, a part without memory) has queued reads already. What they read stays
/// until they are done: memory lent by another process would be freed with its lease. Thread-safe. As many as runs that
/// failed so and whose reads are not done; their memory counts against the device's limit.
class BrokenCopies {
 public:
  /// On the stream's thread: until it has done what it was given so far.
  void keep(StreamContext& stream, std::vector<ExportItem> items) {
    sweep();
    std::shared_ptr<DeviceEvent> until;
    try {
      until = stream.record();
    } catch (const std::exception&) {
      // The device has failed: nobody can say when the reads are done, and they stay until its end.
    }
    std::lock_guard lock(mutex_);
    kept_.push_back({std::move(until), std::move(items)});
  }
  /// Lets go what is read.
  void sweep() {
    std::vector<Kept> done;  // goes without the lock: the end of a tensor may end a lease
    std::lock_guard lock(mutex_);
    for (auto entry = kept_.begin(); entry != kept_.end();) {
      if (entry->until == nullptr || !entry->until->ready()) {
        ++entry;
        continue;
      }
      done.push_back(std::move(*entry));
      entry = kept_.erase(entry);
    }
  }

 private:
  struct Kept {
    std::shared_ptr<DeviceEvent> until;
    std::vector<ExportItem> items;
  };
  std::mutex mutex_;
  std::vector<Kept> kept_;  // guarded by mutex_
};

}  // namespace callboard::kernels
