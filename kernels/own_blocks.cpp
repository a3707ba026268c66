#include "kernels/own_blocks.h"

#include <algorithm>
#include <utility>

namespace callboard::kernels {

std::optional<OwnBlocks::Leased> OwnBlocks::lease(const void* pointer, const ActorId& holder) {
  const auto found = arena_->find(pointer);
  if (!found) return std::nullopt;
  auto handle = arena_->lease(pointer, holder);
  if (!handle) return std::nullopt;
  std::byte* base = static_cast<std::byte*>(found->block) - found->block_offset;
  {
    std::lock_guard lock(mutex_);
    bases_[found->segment] = base;
  }
  std::byte* start = base + handle->offset;
  return Leased{std::move(*handle), start};
}

Result<std::shared_ptr<std::byte>> OwnBlocks::open(const ArenaBlock& handle) {
  const auto lost = [&](const char* why) {
    arena_->release(handle.lease);
    return fail(ErrorCode::kTensorLost,
                "lease " + std::to_string(handle.lease) + " of " + handle.owner.to_string() + ": " + why);
  };
  std::byte* start = nullptr;
  {
    std::lock_guard lock(mutex_);
    const auto base = bases_.find(handle.segment);
    if (base == bases_.end()) return lost("it names a segment of which nothing was ever leased");
    start = base->second + handle.offset;
  }
  const auto found = arena_->find(start);
  if (!found || found->segment != handle.segment || handle.offset < found->block_offset ||
      handle.bytes > found->block_bytes - (handle.offset - found->block_offset)) {
    return lost("its block is gone");
  }
  // A lease of our own first, then the question whether the given one still stands: if it does, the block has been the
  // same one all the time.
  const auto own = arena_->lease(start, self_);
  if (!own) return lost("its block is gone");
  if (!has_lease(handle.lease)) {
    arena_->release(own->lease);
    return lost("it has ended");
  }
  return std::shared_ptr<std::byte>(start, [arena = arena_, given = handle.lease, kept = own->lease](std::byte*) {
    arena->release(given);
    arena->release(kept);
  });
}

bool OwnBlocks::has_lease(LeaseId lease) const {
  return std::ranges::any_of(arena_->leases(), [lease](const LeaseInfo& info) { return info.lease == lease; });
}

}  // namespace callboard::kernels
