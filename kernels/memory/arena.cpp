#include "kernels/memory/arena.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <mutex>
#include <tuple>
#include <utility>

#include "kernels/memory/lease_table.h"
#include "kernels/memory/memory_budget.h"
#include "kernels/memory/pages.h"
#include "kernels/memory/segment_record.h"
#include "messages/base/check.h"

namespace callboard::kernels {

namespace {

// Credit for populating is taken in steps, so that small blocks do not each read /proc and /sys.
constexpr std::uint64_t kCreditStep = 64u << 20;
// A small block may use a segment that was made for one large block only if nothing else is free: it would keep the
// whole of it from being given back, or from serving the next large block.
constexpr std::uint64_t kDedicatedShare = 8;
// The owner's loop trims: a peak of gigabytes goes back over several calls, or the loop would miss its heartbeats.
constexpr std::uint64_t kTrimMax = 512u << 20;
// Of the helpers' zone: most devices have few of such blocks, and a memory_limit counts whole segments.
constexpr std::uint64_t kHelperSegment = 16u << 20;

using namespace arena_detail;

/// Locks: `mutex_` guards all bookkeeping and is held for bookkeeping only. `growth_` lets one thread at a time make or
/// close segments; it is held over system calls and the observer, is taken before `mutex_`, and neither deallocate()
/// nor anything about leases ever takes it.
class ArenaImpl final : public Arena {
 public:
  ArenaImpl(ArenaOptions options, SegmentObserver observer)
      : options_(std::move(options)), observer_(std::move(observer)) {}

  Result<void*> allocate(std::size_t bytes) override { return allocate_in(Zone::kOwn, bytes); }
  Result<void*> allocate_for_helpers(std::size_t bytes) override { return allocate_in(Zone::kHelpers, bytes); }
  void deallocate(void* pointer) noexcept override;
  std::optional<Location> find(const void* pointer) const override;
  Result<Descriptor> descriptor(SegmentId segment, bool writable) const override;
  std::optional<ArenaBlock> lease(const void* pointer, const ActorId& holder) override;
  bool release(LeaseId lease) noexcept override;
  std::size_t holder_gone(const ActorId& holder) noexcept override;
  void trim() override;
  void trim_unused() override;
  ArenaStats stats() const override;
  std::vector<LeaseInfo> leases() const override;
  void fork_prepare() noexcept override { mutex_.lock(); }
  void fork_parent() noexcept override { mutex_.unlock(); }
  void fork_child() noexcept override;

  ArenaImpl* older = nullptr;  ///< all arenas, reachable from one global: leaked on purpose, not by mistake

 private:
  struct Freeing {
    std::uint64_t spare_bytes = 0;     ///< warm free bytes to leave
    bool keep_one = false;             ///< leave one empty ordinary segment
    bool close_whatever_warm = false;  ///< close empty segments although fewer than spare_bytes stay warm
    std::uint64_t bytes_max = std::numeric_limits<std::uint64_t>::max();  ///< about so many in this call
  };

  // with mutex_
  SegmentRecord* segment_locked(const std::byte* pointer) const;
  std::map<std::uint64_t, Block>::iterator live_block_locked(SegmentRecord& segment, const std::byte* pointer) const;
  std::optional<Taken> take_locked(Zone zone, std::uint64_t pages);
  void add_block_locked(SegmentRecord& segment, const Extent& extent);
  void end_block_locked(SegmentRecord& segment, std::map<std::uint64_t, Block>::iterator block, bool warm);
  void end_lease_locked(std::uintptr_t block);
  std::vector<std::unique_ptr<SegmentRecord>> take_empty_locked(const Freeing& freeing);
  std::uint64_t warm_bytes_locked() const;

  // with growth_
  Result<Taken> grow_growing(Zone zone, std::uint64_t pages);
  Result<std::uint64_t> segment_bytes_growing(std::uint64_t ordinary, std::uint64_t bytes);
  Status earn_credit_growing(std::uint64_t bytes);
  void give_back_growing(const Freeing& freeing);

  // with neither
  Result<void*> allocate_in(Zone zone, std::size_t bytes);
  std::uint64_t ordinary_bytes(Zone zone) const {
    return zone == Zone::kOwn ? options_.segment_bytes : std::min(options_.segment_bytes, kHelperSegment);
  }
  Result<void*> populate(const Taken& taken);
  Status charge(std::uint64_t bytes);
  void undo(const Taken& taken);
  Error refusal(std::uint64_t requested, const std::string& why, const std::string& hint) const;

  const ArenaOptions options_;
  const SegmentObserver observer_;
  std::atomic<bool> forked_{false};

  mutable std::mutex growth_;
  SegmentId last_segment_ = 0;  // guarded by growth_

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<SegmentRecord>> segments_;  // by address
  LeaseTable leases_;
  std::uint64_t credit_ = 0;  // bytes that may be populated before the machine is asked again
  std::uint64_t reserved_ = 0;
  std::uint64_t in_use_ = 0;
  std::uint64_t leased_ = 0;
  std::uint64_t peak_ = 0;
  std::uint64_t recent_peak_ = 0;  // since the last trim_unused()
};

// -- bookkeeping under the lock
// ----------------------------------------------------------------------------------------

SegmentRecord* ArenaImpl::segment_locked(const std::byte* pointer) const {
  auto found = std::upper_bound(segments_.begin(), segments_.end(), pointer,
                                [](const std::byte* at, const auto& segment) { return at < segment->memory.data(); });
  if (found == segments_.begin()) return nullptr;
  --found;
  return (*found)->holds(pointer) ? found->get() : nullptr;
}

std::map<std::uint64_t, Block>::iterator ArenaImpl::live_block_locked(SegmentRecord& segment,
                                                                      const std::byte* pointer) const {
  const std::uint64_t page = segment.page_of(pointer);
  auto block = segment.blocks.upper_bound(page);
  if (block == segment.blocks.begin()) return segment.blocks.end();
  --block;
  const bool inside = page < block->first + block->second.pages;
  return inside && block->second.allocated ? block : segment.blocks.end();
}

std::optional<Taken> ArenaImpl::take_locked(Zone zone, std::uint64_t pages) {
  SegmentRecord* best = nullptr;
  for (const bool any_segment : {false, true}) {
    for (const bool warm_only : {true, false}) {
      std::uint64_t best_run = std::numeric_limits<std::uint64_t>::max();
      for (const auto& segment : segments_) {
        if (segment->zone != zone) continue;
        if (!any_segment && segment->dedicated && pages * kDedicatedShare < segment->extents.pages()) continue;
        const std::uint64_t run = segment->extents.fit(pages, warm_only);
        if (run != 0 && run < best_run) {
          best_run = run;
          best = segment.get();
        }
      }
      if (!best) continue;
      Taken taken{best, *best->extents.allocate(pages)};
      add_block_locked(*best, taken.grant.extent);
      return taken;
    }
  }
  return std::nullopt;
}

void ArenaImpl::add_block_locked(SegmentRecord& segment, const Extent& extent) {
  segment.blocks.emplace(extent.first, Block{extent.pages});
  in_use_ += extent.pages * page_bytes();
  peak_ = std::max(peak_, in_use_);
  recent_peak_ = std::max(recent_peak_, in_use_);
}

void ArenaImpl::end_block_locked(SegmentRecord& segment, std::map<std::uint64_t, Block>::iterator block, bool warm) {
  const Extent extent{block->first, block->second.pages};
  segment.blocks.erase(block);
  segment.extents.release(extent, warm);
  in_use_ -= extent.pages * page_bytes();
}

void ArenaImpl::end_lease_locked(std::uintptr_t address) {
  const auto* pointer = reinterpret_cast<const std::byte*>(address);
  SegmentRecord* segment = segment_locked(pointer);
  CALLBOARD_CHECK(segment, "a leased block's segment is not closed");
  const auto block = segment->blocks.find(segment->page_of(pointer));
  CALLBOARD_CHECK(block != segment->blocks.end() && block->second.leases > 0, "a leased block is not given back");
  if (--block->second.leases > 0) return;
  leased_ -= block->second.pages * page_bytes();
  if (!block->second.allocated) end_block_locked(*segment, block, true);
}

std::uint64_t ArenaImpl::warm_bytes_locked() const {
  std::uint64_t pages = 0;
  for (const auto& segment : segments_) pages += segment->extents.warm_pages();
  return pages * page_bytes();
}

// -- allocate and deallocate
// -------------------------------------------------------------------------------------------

Error ArenaImpl::refusal(std::uint64_t requested, const std::string& why, const std::string& hint) const {
  const ArenaStats now = stats();
  // Where readers hold as much as is wanted, nothing else would help for long.
  const bool held = now.leased_bytes > 0 && now.leased_bytes >= requested;
  return Error(ErrorCode::kOutOfMemory,
               "cannot allocate " + format_bytes(requested) + " of shared memory for " + options_.owner.to_string() +
                   ": " + format_bytes(now.in_use_bytes) + " in use (" + format_bytes(now.leased_bytes) +
                   " of it leased to readers), " + format_bytes(now.reserved_bytes) + " reserved; limit: " + why,
               held ? "let go of results that are not needed any more" : hint);
}

Result<void*> ArenaImpl::allocate_in(Zone zone, std::size_t bytes) {
  if (bytes == 0) return nullptr;
  if (forked_.load(std::memory_order_relaxed)) {
    return fail(ErrorCode::kEnvironment,
                "shared memory of " + options_.owner.to_string() + " cannot be allocated in a forked child",
                "allocate from the heap there");
  }
  if (bytes > std::numeric_limits<std::size_t>::max() / 4) {
    return fail(refusal(bytes, "the address space", "is a size negative?"));
  }
  const std::uint64_t pages = round_to_pages(bytes) / page_bytes();
  std::optional<Taken> taken;
  {
    std::lock_guard lock(mutex_);
    taken = take_locked(zone, pages);
  }
  if (!taken) {
    std::lock_guard growth(growth_);
    CALLBOARD_ASSIGN(taken, grow_growing(zone, pages));
  }
  return populate(*taken);
}

Result<void*> ArenaImpl::populate(const Taken& taken) {
  if (const std::uint64_t bytes = cold_bytes(taken.grant); bytes > 0) {
    if (Status charged = charge(bytes); !charged) {
      undo(taken);
      return fail(std::move(charged).error());
    }
    for (const Extent& part : taken.grant.cold) {
      taken.segment->memory.populate(part.first * page_bytes(), part.pages * page_bytes());
    }
  }
  return taken.segment->at(taken.grant.extent.first);
}

void ArenaImpl::undo(const Taken& taken) {
  std::lock_guard lock(mutex_);
  const Extent& extent = taken.grant.extent;
  taken.segment->blocks.erase(extent.first);
  in_use_ -= extent.pages * page_bytes();
  std::uint64_t next = extent.first;
  for (const Extent& cold : taken.grant.cold) {
    taken.segment->extents.release({next, cold.first - next}, true);
    taken.segment->extents.release(cold, false);
    next = cold.end();
  }
  taken.segment->extents.release({next, extent.end() - next}, true);
}

void ArenaImpl::deallocate(void* pointer) noexcept {
  if (!pointer || forked_.load(std::memory_order_relaxed)) return;
  const auto* at = static_cast<const std::byte*>(pointer);
  std::lock_guard lock(mutex_);
  SegmentRecord* segment = segment_locked(at);
  CALLBOARD_CHECK(segment, "what is deallocated was allocated here");
  const auto block = live_block_locked(*segment, at);
  CALLBOARD_CHECK(block != segment->blocks.end() && segment->at(block->first) == at,
                  "what is deallocated is a live block's start");
  block->second.allocated = false;
  if (block->second.leases == 0) end_block_locked(*segment, block, true);
}

// -- growth
// ------------------------------------------------------------------------------------------------------------

Status ArenaImpl::charge(std::uint64_t bytes) {
  {
    std::lock_guard lock(mutex_);
    if (credit_ >= bytes) {
      credit_ -= bytes;
      return {};
    }
  }
  std::lock_guard growth(growth_);
  for (;;) {
    CALLBOARD_TRY(earn_credit_growing(bytes));
    std::lock_guard lock(mutex_);
    if (credit_ < bytes) continue;  // another thread was quicker: ask the machine again
    credit_ -= bytes;
    return {};
  }
}

Status ArenaImpl::earn_credit_growing(std::uint64_t bytes) {
  {
    std::lock_guard lock(mutex_);
    if (credit_ >= bytes) return {};
  }
  MemoryLeft left = memory_left(options_.machine_reserve);
  if (left.bytes < bytes) {
    give_back_growing({.spare_bytes = 0, .keep_one = false, .close_whatever_warm = true});
    left = memory_left(options_.machine_reserve);
  }
  if (left.bytes < bytes) {
    return fail(refusal(bytes, left.limit, "free memory on this host"));
  }
  std::lock_guard lock(mutex_);
  credit_ = std::min(left.bytes, std::max(bytes, kCreditStep));
  return {};
}

Result<std::uint64_t> ArenaImpl::segment_bytes_growing(std::uint64_t ordinary, std::uint64_t bytes) {
  const std::uint64_t wanted = std::max(bytes, round_to_pages(ordinary));
  if (options_.memory_limit == 0) return wanted;
  const auto left = [this] {
    std::lock_guard lock(mutex_);
    return options_.memory_limit - std::min(options_.memory_limit, reserved_);
  };
  std::uint64_t available = left();
  if (available < bytes) {
    give_back_growing({.spare_bytes = std::numeric_limits<std::uint64_t>::max(), .close_whatever_warm = true});
    available = left();
  }
  if (available < bytes) {
    // What a kernel can do about it (smaller inputs, a larger memory_limit), the kernel's error says.
    return fail(refusal(bytes, "memory_limit " + format_bytes(options_.memory_limit), ""));
  }
  return std::min(wanted, available / page_bytes() * page_bytes());
}

Result<Taken> ArenaImpl::grow_growing(Zone zone, std::uint64_t pages) {
  {
    std::lock_guard lock(mutex_);
    if (std::optional<Taken> taken = take_locked(zone, pages)) return std::move(*taken);  // another thread has grown
  }
  const std::uint64_t bytes = pages * page_bytes();
  CALLBOARD_ASSIGN(const std::uint64_t size, segment_bytes_growing(ordinary_bytes(zone), bytes));
  CALLBOARD_TRY(earn_credit_growing(bytes));
  const std::string name = "callboard:" + options_.owner.to_string();
  CALLBOARD_ASSIGN(Segment memory, Segment::create(size, name.substr(0, 200).c_str()));
  const SegmentId id = ++last_segment_;
  if (observer_.added) {
    CALLBOARD_ASSIGN(UniqueFd read_only, memory.open_read_only());
    CALLBOARD_TRY(observer_.added(id, std::move(read_only), memory.bytes()));
  }
  const bool dedicated = bytes > ordinary_bytes(zone);
  auto record = std::make_unique<SegmentRecord>(id, std::move(memory), dedicated, zone);
  Taken taken{record.get(), *record->extents.allocate(pages)};
  std::lock_guard lock(mutex_);
  add_block_locked(*record, taken.grant.extent);
  reserved_ += record->memory.bytes();
  const auto place = std::upper_bound(segments_.begin(), segments_.end(), record,
                                      [](const auto& a, const auto& b) { return a->memory.data() < b->memory.data(); });
  segments_.insert(place, std::move(record));
  return taken;
}

std::vector<std::unique_ptr<SegmentRecord>> ArenaImpl::take_empty_locked(const Freeing& freeing) {
  std::vector<SegmentRecord*> empty;
  for (const auto& segment : segments_) {
    if (segment->extents.empty()) empty.push_back(segment.get());
  }
  std::sort(empty.begin(), empty.end(), [](const SegmentRecord* a, const SegmentRecord* b) {
    const auto rank = [](const SegmentRecord* s) { return std::tuple(!s->dedicated, s->extents.warm_pages(), s->id); };
    return rank(a) < rank(b);  // the warmest ordinary one last: that is the one to keep
  });
  if (freeing.keep_one && !empty.empty() && !empty.back()->dedicated) empty.pop_back();
  std::uint64_t warm = warm_bytes_locked();
  std::uint64_t given_back = 0;
  std::vector<std::unique_ptr<SegmentRecord>> taken;
  for (const SegmentRecord* segment : empty) {
    const std::uint64_t loss = segment->extents.warm_pages() * page_bytes();
    if (given_back >= freeing.bytes_max) break;
    const bool too_large_to_keep = segment->memory.bytes() > freeing.spare_bytes;
    if (!freeing.close_whatever_warm && !too_large_to_keep && loss > 0 && warm < loss + freeing.spare_bytes) continue;
    warm -= loss;
    given_back += loss;
    reserved_ -= segment->memory.bytes();
    const auto place = std::find_if(segments_.begin(), segments_.end(),
                                    [segment](const auto& owned) { return owned.get() == segment; });
    taken.push_back(std::move(*place));
    segments_.erase(place);
  }
  return taken;
}

void ArenaImpl::give_back_growing(const Freeing& freeing) {
  std::vector<std::unique_ptr<SegmentRecord>> closing;
  std::vector<std::pair<SegmentRecord*, Extent>> punching;
  {
    std::lock_guard lock(mutex_);
    closing = take_empty_locked(freeing);
    std::uint64_t left = freeing.bytes_max;
    for (const auto& segment : closing) {
      left -= std::min(left, segment->extents.warm_pages() * page_bytes());
    }
    std::uint64_t warm = warm_bytes_locked();
    for (const auto& segment : segments_) {
      if (warm <= freeing.spare_bytes || left < page_bytes()) break;
      const std::uint64_t bytes = std::min(left, warm - freeing.spare_bytes);
      for (const Extent& part : segment->extents.take_warm(bytes / page_bytes())) {
        punching.emplace_back(segment.get(), part);
        warm -= part.pages * page_bytes();
        left -= std::min(left, part.pages * page_bytes());
      }
      if (warm - freeing.spare_bytes < page_bytes()) break;
    }
    credit_ = 0;  // it was earned when the machine had something else left
  }
  for (const auto& [segment, part] : punching) {
    segment->memory.punch(part.first * page_bytes(), part.pages * page_bytes());
  }
  if (!punching.empty()) {
    std::lock_guard lock(mutex_);
    for (const auto& [segment, part] : punching) segment->extents.release(part, false);
  }
  for (auto& segment : closing) {
    // Readers may have the segment mapped still, without a block in it: closing alone would leave its pages with them.
    segment->memory.punch(0, segment->memory.bytes());
    if (observer_.dropped) observer_.dropped(segment->id);
    segment.reset();
  }
}

void ArenaImpl::trim() {
  if (forked_.load(std::memory_order_relaxed)) return;
  std::unique_lock growth(growth_, std::try_to_lock);
  if (!growth) return;  // it is growing: nothing is idle
  give_back_growing({.spare_bytes = options_.spare_bytes, .keep_one = true, .bytes_max = kTrimMax});
}

void ArenaImpl::trim_unused() {
  if (forked_.load(std::memory_order_relaxed)) return;
  std::unique_lock growth(growth_, std::try_to_lock);
  if (!growth) return;
  std::uint64_t wanted_again = 0;
  {
    std::lock_guard lock(mutex_);
    wanted_again = recent_peak_ - std::min(recent_peak_, in_use_);
    recent_peak_ = in_use_;
  }
  give_back_growing(
      {.spare_bytes = std::max(options_.spare_bytes, wanted_again), .keep_one = true, .bytes_max = kTrimMax});
}

// -- leases
// ------------------------------------------------------------------------------------------------------------

std::optional<Arena::Location> ArenaImpl::find(const void* pointer) const {
  if (forked_.load(std::memory_order_relaxed)) return std::nullopt;
  const auto* at = static_cast<const std::byte*>(pointer);
  std::lock_guard lock(mutex_);
  SegmentRecord* segment = segment_locked(at);
  if (!segment) return std::nullopt;
  const auto block = live_block_locked(*segment, at);
  if (block == segment->blocks.end()) return std::nullopt;
  return Location{segment->id, block->first * page_bytes(), block->second.pages * page_bytes(),
                  segment->at(block->first), segment->zone};
}

Result<Arena::Descriptor> ArenaImpl::descriptor(SegmentId segment, bool writable) const {
  const std::string name = "segment " + std::to_string(segment) + " of " + options_.owner.to_string();
  std::lock_guard growth(growth_);  // so that the segment is not closed meanwhile
  const SegmentRecord* found = nullptr;
  {
    std::lock_guard lock(mutex_);
    const auto known = std::ranges::find(segments_, segment, [](const auto& one) { return one->id; });
    if (known != segments_.end()) found = known->get();
  }
  if (found == nullptr) return fail(ErrorCode::kTensorLost, name + " is closed");
  const SegmentRecord& record = *found;
  if (writable && record.zone != Zone::kHelpers) {
    return fail(ErrorCode::kPermission, name + " is not the helpers' to write to");
  }
  Descriptor descriptor;
  descriptor.bytes = record.memory.bytes();
  if (!writable) {
    CALLBOARD_ASSIGN(descriptor.fd, record.memory.open_read_only());
    return descriptor;
  }
  descriptor.fd.reset(::fcntl(record.memory.fd(), F_DUPFD_CLOEXEC, 0));
  if (descriptor.fd) return descriptor;
  return fail(ErrorCode::kResourceExhausted, "cannot copy the descriptor of " + name + ": " + std::strerror(errno),
              "raise the limit of open files (ulimit -n, RLIMIT_NOFILE)");
}

std::optional<ArenaBlock> ArenaImpl::lease(const void* pointer, const ActorId& holder) {
  if (forked_.load(std::memory_order_relaxed)) return std::nullopt;
  const auto* at = static_cast<const std::byte*>(pointer);
  const TimePoint now = Clock::now();
  std::lock_guard lock(mutex_);
  SegmentRecord* segment = segment_locked(at);
  if (!segment) return std::nullopt;
  const auto block = live_block_locked(*segment, at);
  if (block == segment->blocks.end()) return std::nullopt;
  const std::uint64_t bytes = block->second.pages * page_bytes();
  const auto start = reinterpret_cast<std::uintptr_t>(segment->at(block->first));
  const LeaseTable::Grant grant = leases_.grant(holder, start, bytes, now);
  if (grant.live && block->second.leases++ == 0) leased_ += bytes;
  return ArenaBlock{options_.owner, segment->id, block->first * page_bytes(), bytes, grant.lease};
}

bool ArenaImpl::release(LeaseId lease) noexcept {
  if (forked_.load(std::memory_order_relaxed)) return false;
  std::lock_guard lock(mutex_);
  const std::optional<std::uintptr_t> block = leases_.release(lease);
  if (block) end_lease_locked(*block);
  return block.has_value();
}

std::size_t ArenaImpl::holder_gone(const ActorId& holder) noexcept {
  if (forked_.load(std::memory_order_relaxed)) return 0;
  std::lock_guard lock(mutex_);
  const std::vector<std::uintptr_t> blocks = leases_.holder_gone(holder);
  for (const std::uintptr_t block : blocks) end_lease_locked(block);
  return blocks.size();
}

ArenaStats ArenaImpl::stats() const {
  std::lock_guard lock(mutex_);
  ArenaStats stats;
  stats.reserved_bytes = reserved_;
  stats.in_use_bytes = in_use_;
  stats.leased_bytes = leased_;
  stats.peak_bytes = peak_;
  stats.leases = leases_.size();
  stats.segments = segments_.size();
  stats.resident_bytes = in_use_ + warm_bytes_locked();
  return stats;
}

std::vector<LeaseInfo> ArenaImpl::leases() const {
  std::lock_guard lock(mutex_);
  return leases_.list();
}

// -- fork
// --------------------------------------------------------------------------------------------------------------

void ArenaImpl::fork_child() noexcept {
  forked_.store(true, std::memory_order_relaxed);
  for (const auto& segment : segments_) {
    std::byte* base = segment->memory.data();
    const std::size_t bytes = segment->memory.bytes();
    void* mapped =
        ::mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, segment->memory.fd(), 0);
    if (mapped == MAP_FAILED) ::mprotect(base, bytes, PROT_READ);  // AR-5: a write must not reach the parent
  }
  mutex_.unlock();
}

std::atomic<ArenaImpl*> newest_arena{nullptr};

}  // namespace

namespace {

Status check_options(const ArenaOptions& options) {
  if (options.segment_bytes >= page_bytes()) return {};
  return fail(ErrorCode::kBadArgument, "an arena's segment_bytes must be at least one page (" +
                                           std::to_string(page_bytes()) + "), got " +
                                           std::to_string(options.segment_bytes));
}

}  // namespace

Result<std::shared_ptr<Arena>> Arena::create_shared(ArenaOptions options, SegmentObserver observer) {
  CALLBOARD_TRY(check_options(options));
  return std::make_shared<ArenaImpl>(std::move(options), std::move(observer));
}

Result<Arena*> Arena::create(ArenaOptions options, SegmentObserver observer) {
  CALLBOARD_TRY(check_options(options));
  auto* arena = new ArenaImpl(std::move(options), std::move(observer));
  arena->older = newest_arena.load();
  while (!newest_arena.compare_exchange_weak(arena->older, arena)) {
  }
  return arena;
}

}  // namespace callboard::kernels
