#include "kernels/own_blocks.h"

#include <algorithm>
#include <set>

namespace callboard::kernels {

std::optional<OwnBlocks::Leased> OwnBlocks::lease(const void* pointer, const ActorId& holder) {
  const auto found = arena_->find(pointer);
  if (!found) return std::nullopt;
  auto handle = arena_->lease(pointer, holder);
  if (!handle) return std::nullopt;
  std::byte* start = static_cast<std::byte*>(found->block) - found->block_offset + handle->offset;
  Leased leased{std::move(*handle), start};
  if (holder == self_) {
    std::lock_guard lock(mutex_);
    forget_ended_locked();
    held_.emplace(leased.handle.lease, leased);
  }
  return leased;
}

bool OwnBlocks::can_open(const ArenaBlock& handle) const {
  if (handle.owner != self_) return false;
  std::lock_guard lock(mutex_);
  return held_.contains(handle.lease);
}

Result<std::shared_ptr<std::byte>> OwnBlocks::open(const ArenaBlock& handle) {
  std::optional<Leased> held;
  {
    std::lock_guard lock(mutex_);
    if (auto entry = held_.extract(handle.lease)) held = std::move(entry.mapped());
  }
  const std::string name = "lease " + std::to_string(handle.lease) + " of " + handle.owner.to_string();
  if (!held || !stands(handle.lease)) return fail(ErrorCode::kTensorLost, name + " has ended");
  const bool inside = handle.segment == held->handle.segment && handle.offset == held->handle.offset &&
                      handle.bytes <= held->handle.bytes;
  if (!inside) {
    arena_->release(handle.lease);
    return fail(ErrorCode::kMalformed, name + " is on another block than its handle names");
  }
  return std::shared_ptr<std::byte>(held->start,
                                    [arena = arena_, lease = handle.lease](std::byte*) { arena->release(lease); });
}

bool OwnBlocks::stands(LeaseId lease) const {
  return std::ranges::any_of(arena_->leases(), [lease](const LeaseInfo& info) { return info.lease == lease; });
}

/// Handles that never came back, since their run failed on the way.
void OwnBlocks::forget_ended_locked() {
  if (held_.size() < remembered_max_) return;
  std::set<LeaseId> standing;
  for (const LeaseInfo& info : arena_->leases()) standing.insert(info.lease);
  std::erase_if(held_, [&](const auto& entry) { return !standing.contains(entry.first); });
  remembered_max_ = std::max(kRememberedMin, 2 * held_.size());
}

}  // namespace callboard::kernels
