// Leases on blocks of this process's own arena, and the way back from such a handle to its memory. No LibTorch.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "kernels/memory/arena.h"
#include "messages/base/ids.h"

namespace callboard::kernels {

/// Thread-safe. Outlives whatever open() gave.
class OwnBlocks {
 public:
  OwnBlocks(Arena* arena, ActorId self) : arena_(arena), self_(std::move(self)) {}

  struct Leased {
    ArenaBlock handle;
    std::byte* start = nullptr;  ///< what the handle's offset names
  };
  /// On the block around `pointer`; nullopt if that is not in our arena.
  std::optional<Leased> lease(const void* pointer, const ActorId& holder);

  bool is_own(const ArenaBlock& handle) const { return handle.owner == self_; }
  /// The memory that a handle of ours names, without mapping it again. Its lease is released when the last copy of the
  /// pointer goes (or at once if this fails). kTensorLost if the lease has ended.
  Result<std::shared_ptr<std::byte>> open(const ArenaBlock& handle);

  Arena* arena() const { return arena_; }

 private:
  bool has_lease(LeaseId lease) const;

  Arena* const arena_;
  const ActorId self_;
  std::mutex mutex_;
  std::map<SegmentId, std::byte*> bases_;  // guarded by mutex_; of segments that leases were given on
};

}  // namespace callboard::kernels
