// The node actor's side of the memory lane: keeps a duplicate of every segment while it can be needed, passes
// descriptors on, tells owners when a holder's process has ended.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "messages/base/clock.h"
#include "messages/protocol.h"

namespace callboard::actors {

/// Runs on the node actor's loop thread: the loop polls fds() and calls on_readable()/on_tick(). Never blocks: a client
/// that does not read is disconnected when its send buffer and a bounded backlog are full.
class MemoryBroker {
 public:
  virtual ~MemoryBroker() = default;
  /// Binds `socket_path` (0600, directory checked). kAddressInUse, kPermission.
  static Result<std::unique_ptr<MemoryBroker>> create(const std::string& socket_path);

  virtual std::vector<int> fds() const = 0;
  virtual void on_readable(int fd, TimePoint now) = 0;
  virtual void on_tick(TimePoint now) = 0;
  virtual TimePoint next_tick() const = 0;

  struct Stats {
    std::size_t connections = 0;
    std::size_t segments = 0;
    std::uint64_t segment_bytes = 0;
    std::size_t orphaned_segments = 0;  ///< kept for readers after their owner's end
    std::size_t constants = 0;
    std::uint64_t constant_bytes = 0;
  };
  virtual Stats stats() const = 0;
};

}  // namespace callboard::actors
