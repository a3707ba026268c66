// Who reads which block. Bookkeeping of the arena, guarded by its lock.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kernels/memory/arena.h"

namespace callboard::kernels {

/// Numbers are never reused, so that a stale or repeated release finds nothing. Not thread-safe.
class LeaseTable {
 public:
  struct Grant {
    LeaseId lease = 0;
    bool live = true;  ///< false: the holder is known to be gone, the lease has ended already and is not in the table
  };
  /// `block` is whatever the caller wants back at the end.
  Grant grant(const ActorId& holder, std::uintptr_t block, std::uint64_t bytes, TimePoint now);
  /// The lease's block; nullopt if there is no such lease (any more).
  std::optional<std::uintptr_t> release(LeaseId lease);
  /// Ends all leases of `holder` and gives their blocks (one entry for each lease). Later grants to it are not live: a
  /// result may be on its way while its client dies.
  std::vector<std::uintptr_t> holder_gone(const ActorId& holder);

  std::vector<LeaseInfo> list() const;
  std::size_t size() const { return leases_.size(); }

 private:
  struct Lease {
    const ActorId* holder;  // key in holders_
    std::uintptr_t block;
    std::uint64_t bytes;
    TimePoint since;
  };
  static constexpr std::size_t kGoneRemembered = 1'024;  // far more than can still be named by runs in flight

  std::unordered_map<LeaseId, Lease> leases_;
  std::unordered_map<ActorId, std::unordered_set<LeaseId>> holders_;
  std::unordered_set<ActorId> gone_;
  std::deque<ActorId> gone_order_;
  LeaseId last_ = 0;
};

}  // namespace callboard::kernels
