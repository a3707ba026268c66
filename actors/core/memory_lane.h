// A process's line to its host's node actor: segments, constants and leases. One Unix seqpacket socket, one thread that
// reads it; descriptors ride along.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kernels/memory/constant_pack.h"
#include "kernels/memory/segment_map.h"
#include "messages/protocol.h"

namespace callboard::actors {

/// All methods are thread-safe. Questions block with a deadline (2 s by default); posts never block: when the socket is
/// full they are kept in order and sent by the lane's own thread.
class MemoryLane {
 public:
  struct Events {  ///< called on the lane's thread; must not block
    std::function<void(const ActorId& holder)> holder_gone;
    std::function<void(LeaseId)> lease_released;
    std::function<void(const ActorId& owner)> owner_gone;
    std::function<void()> node_gone;  ///< the node actor ended: the cluster is going down
  };

  /// Closes the socket (the node actor ends all leases of this holder) and joins the thread. Not from an event.
  virtual ~MemoryLane() = default;
  /// Connects, checks that the peer has our uid (kPermission), says hello.
  static Result<std::unique_ptr<MemoryLane>> connect(const std::string& socket_path, Role role, const ActorId& who,
                                                     Events events);

  // owner
  virtual Status add_segment(SegmentId segment, UniqueFd read_only, std::uint64_t bytes) = 0;
  virtual void drop_segment(SegmentId segment) = 0;
  // reader
  virtual Result<kernels::OpenedSegment> open_segment(const ActorId& owner, SegmentId segment) = 0;
  virtual void release(const ActorId& owner, LeaseId lease) = 0;  ///< batched: flushed after 32 leases or 5 ms
  virtual void report_held(const ActorId& owner, std::vector<SegmentId> segments) = 0;
  // constants
  /// The missing ones; the others are used by this process from now on.
  virtual Result<std::vector<ContentHash>> find_constants(std::span<const ContentHash> hashes) = 0;
  virtual Status add_constants(kernels::ConstantPack pack) = 0;
  struct OpenedConstant {
    UniqueFd fd;
    SegmentId segment = 0;
    std::uint64_t segment_bytes = 0;
    ConstantSpan span;
    std::optional<ConstantFile> file;  ///< it lies in this file, which may have changed since; nothing: in a segment
  };
  virtual Result<OpenedConstant> open_constant(const ContentHash& hash) = 0;
  virtual void release_constants(std::vector<ContentHash> hashes) = 0;
};

}  // namespace callboard::actors
