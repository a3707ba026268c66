#include "kernels/memory/segment_map.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/memory/pages.h"
#include "kernels/memory/private_mapping.h"
#include "messages/base/clock.h"

namespace callboard::kernels {

namespace {

// An owner closes segments after a peak and makes new ones: mappings that nothing points into do not pile up.
constexpr std::size_t kIdleMappingsMax = 64;
constexpr std::size_t kGoneOwnersMax = 256;
// Only for a second open of a segment whose first one is under way: the opener has a deadline of its own.
constexpr std::chrono::seconds kOpenWait{10};

using Key = std::pair<ActorId, SegmentId>;
using Range = std::pair<std::uint64_t, std::uint64_t>;  // first byte and end, whole pages

/// How a range of a mapping is used. Ranges of one mapping never overlap: a block that would overlap another one only
/// partly, or one whose pages are being dropped, gets a mapping of its own.
struct RangeUse {
  std::uint32_t blocks = 0;  ///< 0: its pages are being dropped
};

struct Mapping {
  enum class Phase { kOpening, kOpen, kFailed };
  Phase phase = Phase::kOpening;
  Error error;
  std::optional<PrivateMapping> memory;  ///< constant once open
  std::map<Range, RangeUse> ranges;
  bool owner_gone = false;
  std::uint64_t last_used = 0;
};

/// Outlives the SegmentMap while blocks are left.
struct State {
  State(SegmentOpener open, SegmentMap::ReleaseFn release) : opener(std::move(open)), on_release(std::move(release)) {}

  const SegmentOpener opener;
  const SegmentMap::ReleaseFn on_release;
  const PrivateMapping::Writable writable = PrivateMapping::writable_here();
  const pid_t pid = ::getpid();

  // Held shared around on_release, exclusively to end the SegmentMap: afterwards on_release is not called again.
  std::shared_mutex release_mutex;
  bool released_all = false;

  mutable std::mutex mutex;  // all below; never held over a system call
  std::condition_variable opened;
  std::map<Key, std::shared_ptr<Mapping>> mappings;
  std::deque<ActorId> gone_owners;
  std::uint64_t uses = 0;
  std::uint64_t own_bytes = 0;  ///< of mappings that belong to one block
  std::map<std::byte*, std::pair<std::uint64_t, SegmentMap::Place>> own_places;  ///< start → bytes and start's place

  void release(const ActorId& owner, LeaseId lease);
};

void State::release(const ActorId& owner, LeaseId lease) {
  if (lease == 0) return;
  std::shared_lock guard(release_mutex);
  if (!released_all && on_release) on_release(owner, lease);
}

Error out_of_segment(const ArenaBlock& block, std::uint64_t segment_bytes) {
  return Error(ErrorCode::kMalformed, "a tensor handle names bytes " + std::to_string(block.offset) + " to " +
                                          std::to_string(block.offset) + "+" + std::to_string(block.bytes) +
                                          " of segment " + std::to_string(block.segment) + " of " +
                                          block.owner.to_string() + ", which has " + std::to_string(segment_bytes));
}

// -- blocks
// ------------------------------------------------------------------------------------------------------------

/// A block in a mapping that others share.
class SharedBlock final : public MappedBlock {
 public:
  SharedBlock(std::shared_ptr<State> state, std::shared_ptr<Mapping> mapping, Range range, const ArenaBlock& block)
      : state_(std::move(state)),
        mapping_(std::move(mapping)),
        range_(range),
        key_(block.owner, block.segment),
        data_(mapping_->memory->data() + block.offset),
        bytes_(block.bytes),
        lease_(block.lease) {}
  ~SharedBlock() override;
  std::byte* data() const override { return data_; }
  std::uint64_t bytes() const override { return bytes_; }
  /// The block ends without ending the lease.
  void keep_lease() { lease_ = 0; }

 private:
  const std::shared_ptr<State> state_;
  const std::shared_ptr<Mapping> mapping_;
  const Range range_;
  const Key key_;
  std::byte* const data_;
  const std::uint64_t bytes_;
  LeaseId lease_;
};

SharedBlock::~SharedBlock() {
  if (::getpid() != state_->pid) return;  // a forked child's copy: the lease belongs to the parent
  std::shared_ptr<Mapping> unmapped;      // goes outside the lock
  bool last = false;
  {
    std::lock_guard lock(state_->mutex);
    last = --mapping_->ranges[range_].blocks == 0;
  }
  if (last) {
    mapping_->memory->drop_written(range_.first, range_.second - range_.first);
    std::lock_guard lock(state_->mutex);
    mapping_->ranges.erase(range_);
    if (mapping_->ranges.empty() && mapping_->owner_gone) {
      const auto found = state_->mappings.find(key_);
      if (found != state_->mappings.end() && found->second == mapping_) {
        unmapped = std::move(found->second);
        state_->mappings.erase(found);
      }
    }
  }
  state_->release(key_.first, lease_);
}

/// A block with a mapping of its own.
class OwnBlock final : public MappedBlock {
 public:
  OwnBlock(std::shared_ptr<State> state, PrivateMapping memory, Range range, const ArenaBlock& block)
      : state_(std::move(state)),
        memory_(std::move(memory)),
        owner_(block.owner),
        data_(memory_->data() + (block.offset - range.first)),
        bytes_(block.bytes),
        lease_(block.lease) {
    std::lock_guard lock(state_->mutex);
    state_->own_bytes += memory_->bytes();
    state_->own_places[memory_->data()] = {memory_->bytes(), {block.owner, block.segment, range.first}};
  }
  ~OwnBlock() override {
    if (::getpid() != state_->pid) return;
    {
      std::lock_guard lock(state_->mutex);
      state_->own_bytes -= memory_->bytes();
      state_->own_places.erase(memory_->data());
    }
    memory_.reset();
    state_->release(owner_, lease_);
  }
  std::byte* data() const override { return data_; }
  std::uint64_t bytes() const override { return bytes_; }

 private:
  const std::shared_ptr<State> state_;
  std::optional<PrivateMapping> memory_;
  const ActorId owner_;
  std::byte* const data_;
  const std::uint64_t bytes_;
  const LeaseId lease_;
};

// -- the map
// -----------------------------------------------------------------------------------------------------------

class SegmentMapImpl final : public SegmentMap {
 public:
  SegmentMapImpl(SegmentOpener opener, ReleaseFn on_release)
      : state_(std::make_shared<State>(std::move(opener), std::move(on_release))) {}
  ~SegmentMapImpl() override {
    std::unique_lock guard(state_->release_mutex);
    state_->released_all = true;
  }

  Result<std::shared_ptr<MappedBlock>> open(const ArenaBlock& block) override;
  std::optional<Place> find(const void* pointer) const override;
  std::vector<SegmentId> held_segments(const ActorId& owner) const override;
  void drop_owner(const ActorId& owner) override;
  std::uint64_t mapped_bytes() const override;

 private:
  Result<std::shared_ptr<MappedBlock>> open_block(const ArenaBlock& block);
  Result<std::shared_ptr<Mapping>> mapping_of(const ArenaBlock& block);
  Result<PrivateMapping> map_segment(const ArenaBlock& block, std::optional<Range> part);
  Result<std::shared_ptr<MappedBlock>> open_alone(const ArenaBlock& block, Range range);
  std::vector<std::shared_ptr<Mapping>> take_idle_locked();

  const std::shared_ptr<State> state_;
};

/// Fetches the descriptor, checks what it is, maps all of it or `part`, and lets the descriptor go at once.
Result<PrivateMapping> SegmentMapImpl::map_segment(const ArenaBlock& block, std::optional<Range> part) {
  CALLBOARD_ASSIGN(const OpenedSegment opened, state_->opener(block.owner, block.segment));
  const std::string what = "segment " + std::to_string(block.segment) + " of " + block.owner.to_string();
  struct stat info {};
  if (::fstat(opened.fd.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size <= 0) {
    return fail(ErrorCode::kMalformed, what + " is not a memory segment");
  }
  // A file's last page counts whole: what it lacks reads as zeros.
  const auto size = opened.may_shrink ? round_to_pages(static_cast<std::uint64_t>(info.st_size))
                                      : static_cast<std::uint64_t>(info.st_size);
  const int seals = ::fcntl(opened.fd.get(), F_GET_SEALS);
  if (!opened.may_shrink && (seals < 0 || !(seals & F_SEAL_SHRINK))) {
    return fail(ErrorCode::kMalformed, what + " is not sealed against shrinking: reading it could end this process");
  }
  if (size % page_bytes() != 0 || (part && part->second > size)) return fail(out_of_segment(block, size));
  if (part) {
    return PrivateMapping::map(opened.fd.get(), part->first, part->second - part->first, state_->writable);
  }
  return PrivateMapping::map(opened.fd.get(), 0, size, state_->writable);
}

Result<std::shared_ptr<Mapping>> SegmentMapImpl::mapping_of(const ArenaBlock& block) {
  const Key key(block.owner, block.segment);
  std::vector<std::shared_ptr<Mapping>> idle;  // goes outside the lock
  std::shared_ptr<Mapping> mapping;
  {
    std::unique_lock lock(state_->mutex);
    const auto [entry, first] = state_->mappings.try_emplace(key);
    if (!first) {
      mapping = entry->second;
      const auto settled = [&mapping] { return mapping->phase != Mapping::Phase::kOpening; };
      if (!settled() && !state_->opened.wait_until(lock, after(Clock::now(), kOpenWait), settled)) {
        return fail(ErrorCode::kDeadlineExceeded, "another thread did not get segment " +
                                                      std::to_string(block.segment) + " of " + block.owner.to_string() +
                                                      " in time");
      }
      if (mapping->phase == Mapping::Phase::kFailed) return fail(mapping->error);
      return mapping;
    }
    entry->second = std::make_shared<Mapping>();
    mapping = entry->second;
    const auto& gone = state_->gone_owners;
    mapping->owner_gone = std::find(gone.begin(), gone.end(), block.owner) != gone.end();
    idle = take_idle_locked();
  }
  Result<PrivateMapping> memory = map_segment(block, std::nullopt);
  {
    std::lock_guard lock(state_->mutex);
    if (memory) {
      mapping->memory.emplace(std::move(*memory));
      mapping->phase = Mapping::Phase::kOpen;
    } else {
      mapping->error = memory.error();
      mapping->phase = Mapping::Phase::kFailed;
      state_->mappings.erase(key);
    }
  }
  state_->opened.notify_all();
  if (!memory) return fail(std::move(memory).error());
  return mapping;
}

std::vector<std::shared_ptr<Mapping>> SegmentMapImpl::take_idle_locked() {
  std::vector<std::map<Key, std::shared_ptr<Mapping>>::iterator> idle;
  for (auto entry = state_->mappings.begin(); entry != state_->mappings.end(); ++entry) {
    const Mapping& mapping = *entry->second;
    // A mapping that was just opened and has no block yet is held by the thread that opens it.
    if (mapping.phase == Mapping::Phase::kOpen && mapping.ranges.empty() && entry->second.use_count() == 1) {
      idle.push_back(entry);
    }
  }
  std::vector<std::shared_ptr<Mapping>> taken;
  if (idle.size() <= kIdleMappingsMax) return taken;
  std::sort(idle.begin(), idle.end(),
            [](const auto& a, const auto& b) { return a->second->last_used < b->second->last_used; });
  idle.resize(idle.size() - kIdleMappingsMax);
  for (const auto& entry : idle) {
    taken.push_back(std::move(entry->second));
    state_->mappings.erase(entry);
  }
  return taken;
}

Result<std::shared_ptr<MappedBlock>> SegmentMapImpl::open_alone(const ArenaBlock& block, Range range) {
  CALLBOARD_ASSIGN(PrivateMapping memory, map_segment(block, range));
  CALLBOARD_TRY(memory.begin_range(0, memory.bytes()));
  return std::make_shared<OwnBlock>(state_, std::move(memory), range, block);
}

Result<std::shared_ptr<MappedBlock>> SegmentMapImpl::open_block(const ArenaBlock& block) {
  constexpr std::uint64_t kHalf = std::numeric_limits<std::uint64_t>::max() / 2;
  if (block.bytes == 0 || block.bytes > kHalf || block.offset > kHalf) return fail(out_of_segment(block, 0));
  CALLBOARD_ASSIGN(const std::shared_ptr<Mapping> mapping, mapping_of(block));
  const Range range(block.offset / page_bytes() * page_bytes(), round_to_pages(block.offset + block.bytes));
  if (range.second > mapping->memory->bytes()) return fail(out_of_segment(block, mapping->memory->bytes()));

  std::shared_ptr<SharedBlock> shared;
  bool first = false;
  {
    std::lock_guard lock(state_->mutex);
    mapping->last_used = ++state_->uses;
    auto next = mapping->ranges.lower_bound(range);
    const bool same = next != mapping->ranges.end() && next->first == range && next->second.blocks > 0;
    bool overlaps = next != mapping->ranges.end() && next->first.first < range.second;
    if (next != mapping->ranges.begin()) overlaps = overlaps || std::prev(next)->first.second > range.first;
    if (same || !overlaps) {
      first = mapping->ranges[range].blocks++ == 0;
      shared = std::make_shared<SharedBlock>(state_, mapping, range, block);
    }
  }
  if (!shared) return open_alone(block, range);
  if (Status begun = mapping->memory->begin_range(range.first, range.second - range.first); !begun) {
    shared->keep_lease();
    return fail(std::move(begun).error());
  }
  if (first) return shared;
  // Another block of this process lies on the same bytes. If it was written, this one must not see that.
  if (mapping->memory->written(range.first, range.second - range.first) == std::optional(false)) return shared;
  shared->keep_lease();
  shared.reset();
  return open_alone(block, range);
}

Result<std::shared_ptr<MappedBlock>> SegmentMapImpl::open(const ArenaBlock& block) {
  Result<std::shared_ptr<MappedBlock>> opened = open_block(block);
  if (!opened) state_->release(block.owner, block.lease);
  return opened;
}

std::optional<SegmentMap::Place> SegmentMapImpl::find(const void* pointer) const {
  auto* const at = static_cast<std::byte*>(const_cast<void*>(pointer));
  std::lock_guard lock(state_->mutex);
  if (auto own = state_->own_places.upper_bound(at); own != state_->own_places.begin()) {
    --own;
    const auto offset = static_cast<std::uint64_t>(at - own->first);
    Place place = own->second.second;
    place.offset += offset;
    if (offset < own->second.first) return place;
  }
  for (const auto& [key, mapping] : state_->mappings) {
    if (mapping->phase != Mapping::Phase::kOpen || mapping->ranges.empty()) continue;
    const PrivateMapping& memory = *mapping->memory;
    if (at < memory.data() || at >= memory.data() + memory.bytes()) continue;
    return Place{key.first, key.second, static_cast<std::uint64_t>(at - memory.data())};
  }
  return std::nullopt;
}

std::vector<SegmentId> SegmentMapImpl::held_segments(const ActorId& owner) const {
  std::vector<SegmentId> held;
  std::lock_guard lock(state_->mutex);
  for (auto entry = state_->mappings.lower_bound(Key(owner, 0));
       entry != state_->mappings.end() && entry->first.first == owner; ++entry) {
    if (!entry->second->ranges.empty()) held.push_back(entry->first.second);
  }
  return held;
}

void SegmentMapImpl::drop_owner(const ActorId& owner) {
  std::vector<std::shared_ptr<Mapping>> unmapped;  // goes outside the lock
  {
    std::lock_guard lock(state_->mutex);
    auto& gone = state_->gone_owners;
    if (std::find(gone.begin(), gone.end(), owner) == gone.end()) gone.push_back(owner);
    if (gone.size() > kGoneOwnersMax) gone.pop_front();
    auto entry = state_->mappings.lower_bound(Key(owner, 0));
    while (entry != state_->mappings.end() && entry->first.first == owner) {
      Mapping& mapping = *entry->second;
      mapping.owner_gone = true;
      if (mapping.phase == Mapping::Phase::kOpen && mapping.ranges.empty() && entry->second.use_count() == 1) {
        unmapped.push_back(std::move(entry->second));
        entry = state_->mappings.erase(entry);
      } else {
        ++entry;
      }
    }
  }
}

std::uint64_t SegmentMapImpl::mapped_bytes() const {
  std::lock_guard lock(state_->mutex);
  std::uint64_t bytes = state_->own_bytes;
  for (const auto& [key, mapping] : state_->mappings) {
    if (mapping->phase == Mapping::Phase::kOpen) bytes += mapping->memory->bytes();
  }
  return bytes;
}

}  // namespace

std::unique_ptr<SegmentMap> SegmentMap::create(SegmentOpener opener, ReleaseFn on_release) {
  return std::make_unique<SegmentMapImpl>(std::move(opener), std::move(on_release));
}

}  // namespace callboard::kernels
