// Leases on blocks of this process's own arena, and the way back from such a handle to its memory. No LibTorch.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "kernels/memory/arena.h"
#include "messages/base/ids.h"

namespace callboard::kernels {

/// Thread-safe. Outlives whatever open() gave.
///
/// Only a lease that this process holds on its own block is opened by address: it stands until open() or release() ends
/// it. One that somebody else holds can end at any time by its holder's death, and the memory with it; such a handle is
/// read as any other process would, through a mapping.
class OwnBlocks {
 public:
  OwnBlocks(Arena* arena, ActorId self) : arena_(arena), self_(std::move(self)) {}

  struct Leased {
    ArenaBlock handle;
    std::byte* start = nullptr;  ///< what the handle's offset names
  };
  /// On the block around `pointer`; nullopt if that is not in our arena.
  std::optional<Leased> lease(const void* pointer, const ActorId& holder);

  /// Is it a block of our own arena under a lease of our own?
  bool can_open(const ArenaBlock& handle) const;
  /// The memory that such a handle names. Its lease ends with the last copy of the pointer (or at once if this fails).
  /// kTensorLost if the lease has ended, kMalformed if the handle names more than the block.
  Result<std::shared_ptr<std::byte>> open(const ArenaBlock& handle);

  const ActorId& self() const { return self_; }
  Arena* arena() const { return arena_; }

 private:
  static constexpr std::size_t kRememberedMin = 1'024;

  bool stands(LeaseId lease) const;
  void forget_ended_locked();

  Arena* const arena_;
  const ActorId self_;
  mutable std::mutex mutex_;
  std::map<LeaseId, Leased> held_;               // guarded by mutex_; by this process itself
  std::size_t remembered_max_ = kRememberedMin;  // guarded by mutex_; then those that have ended are forgotten
};

}  // namespace callboard::kernels
