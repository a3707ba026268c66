// Memory that other processes can map: blocks in sealed memfd segments, under leases. No LibTorch here; the c10
// allocator on top of it is kernels/arena_allocator.h.
//
// Invariants (tests carry the numbers):
//   AR-1  A block's bytes do not change, and its memory is not reused, while a lease on it exists.
//   AR-2  deallocate() and the end of the last lease together, in either order, give a block back exactly once.
//   AR-3  The lock of the bookkeeping is never held across a system call or an observer. Making and closing segments
//         has a lock of its own, which deallocate(), find() and everything about leases never take.
//   AR-4  Every growth is charged to the budget first; refusing names the sizes and leaves everything as it was.
//   AR-5  After a fork the child never touches the shared pages (kernels/arena_allocator.h registers the handler).
//   AR-6  A segment that a helper process can write to holds blocks of the helpers' zone only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "messages/base/clock.h"
#include "messages/base/fd.h"
#include "messages/base/ids.h"
#include "messages/limits.h"
#include "messages/tensor_handle.h"

namespace callboard::kernels {

struct ArenaOptions {
  ActorId owner = {};                          ///< goes into every handle
  std::uint64_t memory_limit = 0;              ///< bytes of all segments together; 0: what machine and cgroup have left
  std::uint64_t segment_bytes = 64u << 20;     ///< size of an ordinary segment; a larger block gets one of its own
  std::uint64_t spare_bytes = 64u << 20;       ///< free pages kept warm; what is free beyond it is given back
  std::uint64_t machine_reserve = 512u << 20;  ///< of MemAvailable, never taken
};

struct ArenaStats {
  std::uint64_t reserved_bytes = 0;  ///< sizes of all segments
  std::uint64_t resident_bytes = 0;  ///< populated and not punched out
  std::uint64_t in_use_bytes = 0;    ///< allocated or leased
  std::uint64_t leased_bytes = 0;
  std::uint64_t peak_bytes = 0;  ///< highest in_use_bytes
  std::uint64_t leases = 0;
  std::uint64_t segments = 0;
  std::uint64_t copied_in_bytes = 0;  ///< by copy_in(): what ATen had not allocated here
};

/// One line of `callboard tensors`.
struct LeaseInfo {
  LeaseId lease = 0;
  ActorId holder;
  std::uint64_t bytes = 0;
  TimePoint since;
};

/// What the arena tells the outside when segments come and go (the memory lane registers them with the node actor).
struct SegmentObserver {
  /// `read_only` is a read-only re-open of the segment; owned by the callee. Called without a lock, before any handle
  /// into the segment can exist. An error makes the growth fail.
  std::function<Status(SegmentId, UniqueFd read_only, std::uint64_t bytes)> added;
  std::function<void(SegmentId)> dropped;
};

/// Who may write to a segment's pages. Blocks of the two never share a segment: what a process that went wrong can
/// reach is what it was given.
enum class Zone : std::uint8_t {
  kOwn,      ///< this process
  kHelpers,  ///< its helper processes, too (children of GIL domains): results that they make lie here from the start
};

/// Allocates page-aligned, page-padded blocks. Thread-safe; every method may be called from any thread. Meant for
/// blocks above limits::kInlineBytesMax (smaller tensors travel inline and stay in the ordinary heap).
class Arena {
 public:
  virtual ~Arena() = default;
  /// Lives as long as the process: leaked on purpose, since storages are freed from static destructors.
  static Result<Arena*> create(ArenaOptions options, SegmentObserver observer);
  /// Ends with its last owner, and its segments with it: for who counts each block that is out as an owner.
  static Result<std::shared_ptr<Arena>> create_shared(ArenaOptions options, SegmentObserver observer);

  /// kOutOfMemory with requested size, limit and use. Fresh or recycled pages: contents unspecified, pages populated.
  virtual Result<void*> allocate(std::size_t bytes) = 0;
  /// The same in a segment of `Zone::kHelpers`, never in another one.
  virtual Result<void*> allocate_for_helpers(std::size_t bytes) = 0;
  /// Accepts nullptr. `pointer` must be what allocate() gave.
  virtual void deallocate(void* pointer) noexcept = 0;

  /// Does this address lie in a live block of this arena? Then where the block is.
  struct Location {
    SegmentId segment = 0;
    std::uint64_t block_offset = 0;  ///< of the block's start in its segment
    std::uint64_t block_bytes = 0;
    void* block = nullptr;
    Zone zone = Zone::kOwn;
  };
  virtual std::optional<Location> find(const void* pointer) const = 0;
  /// The segment's descriptor, for a helper process: one that can be mapped writable if `writable`, which only segments
  /// of the helpers' zone give (kPermission). kTensorLost if there is no such segment (any more).
  struct Descriptor {
    UniqueFd fd;
    std::uint64_t bytes = 0;
  };
  virtual Result<Descriptor> descriptor(SegmentId segment, bool writable) const = 0;

  /// A lease for `holder` on the block around `pointer` (which find() knows), as handle. nullopt if it is not ours.
  virtual std::optional<ArenaBlock> lease(const void* pointer, const ActorId& holder) = 0;
  /// Ends a lease. False if there is none of that number (ended before, stale): nothing happens.
  virtual bool release(LeaseId lease) noexcept = 0;
  /// Ends all leases of a holder whose process is gone; the number ended.
  virtual std::size_t holder_gone(const ActorId& holder) noexcept = 0;

  /// Gives back what is free beyond `spare_bytes` now, about 512 MiB at a time. Called by the owner's loop when idle.
  virtual void trim() = 0;
  /// Of a busy owner, at intervals: gives back what was not in use at any moment since the last call, beyond
  /// `spare_bytes`. So a peak does not stay as long as there is work, and work that repeats finds its pages warm.
  virtual void trim_unused() = 0;
  virtual ArenaStats stats() const = 0;
  virtual std::vector<LeaseInfo> leases() const = 0;

  /// In a forked child: maps private copies over the segments and turns deallocate into nothing. Async-signal-safe
  /// enough for pthread_atfork handlers; prepare/parent only lock and unlock.
  virtual void fork_prepare() noexcept = 0;
  virtual void fork_parent() noexcept = 0;
  virtual void fork_child() noexcept = 0;
};

}  // namespace callboard::kernels
