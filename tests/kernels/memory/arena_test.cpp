#include "kernels/memory/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "kernels/memory/pages.h"
#include "tests/support/test.h"

namespace callboard::kernels {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;
const ActorId kReader{"client", 1};

Arena* make_arena(ArenaOptions options = {}, SegmentObserver observer = {}) {
  options.owner = {"cpu0", 3};
  auto arena = Arena::create(std::move(options), std::move(observer));
  REQUIRE(arena);
  return *arena;
}

std::byte* allocate(Arena& arena, std::size_t bytes) {
  auto pointer = arena.allocate(bytes);
  if (!pointer) FAIL(pointer.error().to_string());
  return static_cast<std::byte*>(*pointer);
}

TEST_CASE("AR-6: blocks of the two zones never share a segment, and only the helpers' can be had to write to") {
  Arena& arena = *make_arena({.segment_bytes = 4 * kMiB});
  std::set<SegmentId> own;
  std::set<SegmentId> helpers;
  std::vector<void*> blocks;
  for (int i = 0; i < 12; ++i) {
    std::byte* mine = allocate(arena, kMiB / 2 + 4096 * static_cast<std::size_t>(i));
    auto theirs = arena.allocate_for_helpers(kMiB / 2);
    REQUIRE(theirs);
    const auto at_mine = arena.find(mine + 1);
    const auto at_theirs = arena.find(*theirs);
    REQUIRE(at_mine);
    REQUIRE(at_theirs);
    REQUIRE(at_mine->zone == Zone::kOwn);
    REQUIRE(at_theirs->zone == Zone::kHelpers);
    own.insert(at_mine->segment);
    helpers.insert(at_theirs->segment);
    blocks.push_back(mine);
    blocks.push_back(*theirs);
  }
  for (const SegmentId segment : own) {
    REQUIRE(helpers.count(segment) == 0);
    REQUIRE(arena.descriptor(segment, true).error().code == ErrorCode::kPermission);
    const auto readable = arena.descriptor(segment, false);
    REQUIRE(readable);
    REQUIRE(::mmap(nullptr, readable->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, readable->fd.get(), 0) == MAP_FAILED);
  }
  const SegmentId shared = *helpers.begin();
  const auto writable = arena.descriptor(shared, true);
  REQUIRE(writable);
  void* data = ::mmap(nullptr, writable->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, writable->fd.get(), 0);
  REQUIRE(data != MAP_FAILED);
  void* block =
      *std::find_if(blocks.begin(), blocks.end(), [&](void* one) { return arena.find(one)->segment == shared; });
  *(static_cast<char*>(data) + arena.find(block)->block_offset) = 'w';
  REQUIRE(*static_cast<char*>(block) == 'w');
  ::munmap(data, writable->bytes);
  for (void* one : blocks) arena.deallocate(one);
  arena.trim();
  REQUIRE(arena.descriptor(9'999, false).error().code == ErrorCode::kTensorLost);
  REQUIRE(arena.stats().in_use_bytes == 0);
}

TEST_CASE("blocks are whole pages, apart from each other, and found by any address inside") {
  Arena& arena = *make_arena({.segment_bytes = 4 * kMiB});
  std::map<std::byte*, std::uint64_t> blocks;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{4097}, 3 * kMiB, 6 * kMiB, kMiB}) {
    std::byte* pointer = allocate(arena, bytes);
    REQUIRE(reinterpret_cast<std::uintptr_t>(pointer) % page_bytes() == 0);
    std::memset(pointer, 1, bytes);
    const auto found = arena.find(pointer + bytes - 1);
    REQUIRE(found);
    REQUIRE(found->block == pointer);
    REQUIRE(found->block_bytes == round_to_pages(bytes));
    REQUIRE(found->block_offset % page_bytes() == 0);
    blocks.emplace(pointer, found->block_bytes);
  }
  std::byte* end = nullptr;
  for (const auto& [pointer, bytes] : blocks) {
    REQUIRE(pointer >= end);
    end = pointer + bytes;
  }
  int on_stack = 0;
  REQUIRE_FALSE(arena.find(&on_stack));
  REQUIRE_FALSE(arena.find(nullptr));
  REQUIRE(arena.stats().in_use_bytes == 3 * kMiB + 6 * kMiB + kMiB + 4 * page_bytes());
  for (const auto& [pointer, bytes] : blocks) arena.deallocate(pointer);
  REQUIRE_FALSE(arena.find(blocks.begin()->first));
  REQUIRE(arena.stats().in_use_bytes == 0);
  REQUIRE(arena.stats().peak_bytes == 10 * kMiB + 4 * page_bytes());
}

TEST_CASE("nothing is allocated for nothing, and nothing is deallocated at nullptr") {
  Arena& arena = *make_arena();
  REQUIRE(*arena.allocate(0) == nullptr);
  arena.deallocate(nullptr);
  REQUIRE(arena.stats().segments == 0);
}

TEST_CASE("a recycled block is warm: memory is populated once") {
  Arena& arena = *make_arena();
  std::byte* first = allocate(arena, 8 * kMiB);
  arena.deallocate(first);
  REQUIRE(arena.stats().resident_bytes == 8 * kMiB);
  for (int i = 0; i < 10; ++i) {
    std::byte* again = allocate(arena, 8 * kMiB);
    REQUIRE(again == first);
    arena.deallocate(again);
  }
  REQUIRE(arena.stats().resident_bytes == 8 * kMiB);
  REQUIRE(arena.stats().segments == 1);
}

TEST_CASE("AR-1: the memory of a leased block is not reused, and its bytes stay, after it was deallocated") {
  Arena& arena = *make_arena({.memory_limit = 4 * kMiB, .segment_bytes = 4 * kMiB});
  std::byte* block = allocate(arena, kMiB);
  std::memset(block, 77, kMiB);
  const auto handle = arena.lease(block + 100, kReader);
  REQUIRE(handle);
  REQUIRE(handle->bytes == kMiB);
  arena.deallocate(block);
  REQUIRE_FALSE(arena.find(block));
  REQUIRE_FALSE(arena.lease(block, kReader));
  std::vector<std::byte*> others;
  while (auto pointer = arena.allocate(256 << 10)) {
    others.push_back(static_cast<std::byte*>(*pointer));
    std::memset(others.back(), 1, 256 << 10);
  }
  REQUIRE(others.size() == 12);
  arena.trim();
  REQUIRE(std::all_of(block, block + kMiB, [](std::byte b) { return b == std::byte{77}; }));
  REQUIRE(arena.stats().leased_bytes == kMiB);
  REQUIRE(arena.release(handle->lease));
  REQUIRE(allocate(arena, kMiB) == block);
}

TEST_CASE("AR-2: a block is given back once, whichever of deallocate and its leases ends last") {
  Arena& arena = *make_arena();
  for (int order = 0; order < 3; ++order) {
    std::byte* block = allocate(arena, kMiB);
    const LeaseId first = arena.lease(block, kReader)->lease;
    const LeaseId second = arena.lease(block, {"cpu1", 1})->lease;
    if (order == 0) arena.deallocate(block);
    REQUIRE(arena.release(first));
    REQUIRE_FALSE(arena.release(first));
    REQUIRE(arena.stats().in_use_bytes == kMiB);
    if (order == 1) arena.deallocate(block);
    REQUIRE(arena.stats().leased_bytes == kMiB);
    REQUIRE(arena.release(second));
    REQUIRE(arena.stats().leased_bytes == 0);
    if (order == 2) {
      REQUIRE(arena.find(block));
      arena.deallocate(block);
    }
    REQUIRE(arena.stats().in_use_bytes == 0);
    REQUIRE_FALSE(arena.release(second));
    REQUIRE(arena.stats().in_use_bytes == 0);
  }
}

TEST_CASE("AR-2: a holder's end ends all of its leases and nobody else's") {
  Arena& arena = *make_arena();
  std::byte* kept = allocate(arena, kMiB);
  std::byte* dropped = allocate(arena, kMiB);
  arena.lease(kept, kReader);
  arena.lease(kept, kReader);
  arena.lease(dropped, kReader);
  const auto other = arena.lease(kept, {"cpu1", 1});
  arena.deallocate(dropped);
  REQUIRE(arena.leases().size() == 4);
  REQUIRE(arena.holder_gone(kReader) == 3);
  REQUIRE(arena.holder_gone(kReader) == 0);
  REQUIRE(arena.stats().in_use_bytes == kMiB);
  REQUIRE(arena.stats().leases == 1);
  REQUIRE(arena.leases().front().holder == ActorId{"cpu1", 1});
  REQUIRE(arena.release(other->lease));
  // A result that was on its way to the holder when it died does not stay for ever.
  const auto late = arena.lease(kept, kReader);
  REQUIRE(late);
  arena.deallocate(kept);
  REQUIRE(arena.stats().in_use_bytes == 0);
}

TEST_CASE("AR-3: while a segment is made nothing but growth waits, and the observers may ask the arena") {
  std::promise<void> growing;
  std::promise<void> go_on;
  auto released = go_on.get_future();
  std::atomic<bool> counted{true};
  std::vector<SegmentId> dropped;
  Arena* arena = nullptr;
  SegmentObserver observer;
  observer.added = [&](SegmentId segment, UniqueFd, std::uint64_t) -> Status {
    counted = counted && arena->stats().segments == segment - 1;  // no REQUIRE: this may be the other thread
    if (segment != 2) return {};
    growing.set_value();
    if (released.wait_for(std::chrono::seconds(20)) != std::future_status::ready) {
      return fail(ErrorCode::kInternal, "the other thread waited for growth");
    }
    return {};
  };
  observer.dropped = [&](SegmentId segment) {
    REQUIRE(arena->stats().leases == 0);
    dropped.push_back(segment);
  };
  arena = make_arena({.segment_bytes = kMiB, .spare_bytes = 0}, observer);
  std::byte* first = allocate(*arena, kMiB);
  auto second = std::async(std::launch::async, [&] { return arena->allocate(8 * kMiB); });
  growing.get_future().wait();
  const auto handle = arena->lease(first, kReader);
  REQUIRE(arena->find(first));
  REQUIRE(arena->release(handle->lease));
  REQUIRE(arena->holder_gone({"nobody", 1}) == 0);
  arena->deallocate(first);
  std::byte* recycled = allocate(*arena, kMiB);
  REQUIRE(recycled == first);
  arena->deallocate(recycled);
  arena->trim();
  go_on.set_value();
  auto grown = second.get();
  REQUIRE(grown);
  REQUIRE(counted);
  arena->deallocate(*grown);
  arena->trim();
  REQUIRE(dropped == std::vector<SegmentId>{2});  // the other one is the empty segment that is kept
}

TEST_CASE("AR-4: what does not fit the limit is refused with the sizes, and nothing has changed") {
  int added = 0;
  SegmentObserver observer;
  observer.added = [&](SegmentId, UniqueFd, std::uint64_t) -> Status {
    ++added;
    return {};
  };
  Arena& arena = *make_arena({.memory_limit = 10 * kMiB, .segment_bytes = 4 * kMiB}, observer);
  std::byte* block = allocate(arena, 3 * kMiB);
  const ArenaStats before = arena.stats();
  const auto refused = arena.allocate(7 * kMiB);
  REQUIRE(refused.error().code == ErrorCode::kOutOfMemory);
  for (const char* part : {"7.0 MiB", "3.0 MiB in use", "memory_limit 10.0 MiB", "cpu0#3"}) {
    REQUIRE(refused.error().message.find(part) != std::string::npos);
  }
  // Whoever wanted the memory knows what else he could do; his error says it, once.
  REQUIRE(refused.error().hint.empty());
  const ArenaStats after = arena.stats();
  REQUIRE(after.in_use_bytes == before.in_use_bytes);
  REQUIRE(after.reserved_bytes == before.reserved_bytes);
  REQUIRE(after.resident_bytes == before.resident_bytes);
  REQUIRE(added == 1);
  REQUIRE(arena.allocate(SIZE_MAX).error().code == ErrorCode::kOutOfMemory);
  // What is left below the limit can be had, though it is no whole segment.
  arena.deallocate(allocate(arena, 6 * kMiB));
  arena.deallocate(block);
  REQUIRE(allocate(arena, 10 * kMiB));
  REQUIRE(arena.stats().reserved_bytes == 10 * kMiB);
}

TEST_CASE("AR-4: where readers hold what is wanted, the hint is to let go of results") {
  Arena& arena = *make_arena({.memory_limit = 4 * kMiB, .segment_bytes = 4 * kMiB});
  std::byte* block = allocate(arena, 3 * kMiB);
  REQUIRE(arena.allocate(2 * kMiB).error().hint.empty());
  REQUIRE(arena.lease(block, kReader));
  REQUIRE(arena.allocate(2 * kMiB).error().hint == "let go of results that are not needed any more");
}

TEST_CASE("AR-4: the machine's reserve is never taken") {
  Arena& arena = *make_arena({.machine_reserve = std::uint64_t{1} << 60});
  const auto refused = arena.allocate(kMiB);
  REQUIRE(refused.error().code == ErrorCode::kOutOfMemory);
  REQUIRE(refused.error().message.find("MemAvailable") != std::string::npos);
  REQUIRE(arena.stats().segments == 0);
  REQUIRE(arena.stats().in_use_bytes == 0);
}

TEST_CASE("AR-4: a segment that cannot be told to others is not used") {
  bool refuse = true;
  SegmentObserver observer;
  observer.added = [&](SegmentId, UniqueFd fd, std::uint64_t) -> Status {
    REQUIRE(fd);
    if (refuse) return fail(ErrorCode::kPeerLost, "the node actor is gone");
    return {};
  };
  Arena& arena = *make_arena({}, observer);
  REQUIRE(arena.allocate(kMiB).error().code == ErrorCode::kPeerLost);
  REQUIRE(arena.stats().reserved_bytes == 0);
  refuse = false;
  REQUIRE(allocate(arena, kMiB));
}

TEST_CASE("AR-4: raising the limit from nothing until a workload fits meets only clean refusals") {
  bool done = false;
  int refusals = 0;
  for (std::uint64_t limit = page_bytes(); !done; limit += 64 * page_bytes()) {
    REQUIRE(limit < 64 * kMiB);
    Arena& arena = *make_arena({.memory_limit = limit, .segment_bytes = kMiB, .spare_bytes = 0});
    std::vector<std::byte*> blocks;
    std::vector<LeaseId> leases;
    done = true;
    for (const std::size_t bytes : {kMiB / 2, 2 * kMiB, kMiB / 4, 3 * kMiB, kMiB}) {
      auto pointer = arena.allocate(bytes);
      if (!pointer) {
        REQUIRE(pointer.error().code == ErrorCode::kOutOfMemory);
        ++refusals;
        done = false;
        continue;
      }
      std::memset(*pointer, 1, bytes);
      blocks.push_back(static_cast<std::byte*>(*pointer));
      leases.push_back(arena.lease(*pointer, kReader)->lease);
    }
    REQUIRE(arena.stats().reserved_bytes <= limit);
    for (std::byte* block : blocks) arena.deallocate(block);
    for (const LeaseId lease : leases) REQUIRE(arena.release(lease));
    REQUIRE(arena.stats().in_use_bytes == 0);
    arena.trim();
    REQUIRE(arena.stats().resident_bytes == 0);
  }
  REQUIRE(refusals > 10);
}

TEST_CASE("empty segments make room for a block that no segment can hold") {
  std::set<SegmentId> open;
  SegmentObserver observer;
  observer.added = [&](SegmentId segment, UniqueFd, std::uint64_t) -> Status {
    open.insert(segment);
    return {};
  };
  observer.dropped = [&](SegmentId segment) { open.erase(segment); };
  Arena& arena = *make_arena({.memory_limit = 16 * kMiB, .segment_bytes = 4 * kMiB}, observer);
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(allocate(arena, 4 * kMiB));
  const auto handle = arena.lease(blocks[0], kReader);
  for (std::byte* block : blocks) arena.deallocate(block);
  REQUIRE(allocate(arena, 12 * kMiB));
  REQUIRE(open.size() == 2);
  REQUIRE(arena.stats().segments == 2);
  REQUIRE(arena.release(handle->lease));
}

TEST_CASE("trim gives back what is free beyond the spare pages and keeps what is in use or leased") {
  std::vector<SegmentId> dropped;
  SegmentObserver observer;
  observer.dropped = [&](SegmentId segment) { dropped.push_back(segment); };
  Arena& arena = *make_arena({.segment_bytes = 4 * kMiB, .spare_bytes = kMiB}, observer);
  std::byte* used = allocate(arena, 2 * kMiB);
  std::byte* beside = allocate(arena, 2 * kMiB);
  std::byte* large = allocate(arena, 32 * kMiB);
  std::byte* leased = allocate(arena, 4 * kMiB);
  std::memset(used, 5, 2 * kMiB);
  std::memset(leased, 6, 4 * kMiB);
  const auto handle = arena.lease(leased, kReader);
  for (std::byte* block : {beside, large, leased}) arena.deallocate(block);
  REQUIRE(arena.stats().resident_bytes == 40 * kMiB);
  arena.trim();
  REQUIRE(dropped.size() == 1);
  REQUIRE(arena.stats().resident_bytes == 7 * kMiB);
  REQUIRE(arena.stats().in_use_bytes == 6 * kMiB);
  REQUIRE(std::all_of(used, used + 2 * kMiB, [](std::byte b) { return b == std::byte{5}; }));
  REQUIRE(std::all_of(leased, leased + 4 * kMiB, [](std::byte b) { return b == std::byte{6}; }));
  REQUIRE(arena.release(handle->lease));
  arena.deallocate(used);
  arena.trim();
  REQUIRE(arena.stats().segments == 1);
  REQUIRE(arena.stats().resident_bytes == kMiB);
}

TEST_CASE("a busy arena gives a peak back, and keeps what its work uses again and again") {
  Arena& arena = *make_arena({.segment_bytes = 16 * kMiB, .spare_bytes = kMiB});
  const auto work = [&] { arena.deallocate(allocate(arena, 8 * kMiB)); };
  std::byte* used = allocate(arena, 2 * kMiB);
  std::byte* large = allocate(arena, 64 * kMiB);
  arena.deallocate(large);
  work();
  arena.trim_unused();  // the peak was in this interval
  REQUIRE(arena.stats().resident_bytes >= 66 * kMiB);
  work();
  arena.trim_unused();
  REQUIRE(arena.stats().resident_bytes <= 16 * kMiB);
  work();  // where nothing of the peak is left
  for (int interval = 0; interval < 3; ++interval) {
    work();
    arena.trim_unused();
    REQUIRE(arena.stats().resident_bytes >= 10 * kMiB);
    REQUIRE(arena.stats().resident_bytes <= 16 * kMiB);
  }
  arena.trim_unused();  // nothing was used in this one
  REQUIRE(arena.stats().resident_bytes == 3 * kMiB);
  arena.deallocate(used);
}

TEST_CASE("a small block does not settle in a large block's segment while there is room elsewhere") {
  Arena& arena = *make_arena({.segment_bytes = 4 * kMiB, .spare_bytes = 0});
  std::byte* large = allocate(arena, 64 * kMiB);
  std::byte* small = allocate(arena, kMiB);
  arena.deallocate(large);
  std::byte* another = allocate(arena, kMiB);
  arena.trim();
  REQUIRE(arena.stats().segments == 1);
  REQUIRE(arena.find(another)->segment == arena.find(small)->segment);
}

TEST_CASE("many threads allocate, lease, release and trim without damage") {
  Arena& arena = *make_arena({.memory_limit = 64 * kMiB, .segment_bytes = 2 * kMiB, .spare_bytes = kMiB});
  std::mutex mutex;
  std::vector<LeaseId> to_release;
  std::atomic<int> damaged{0};
  const auto work = [&](std::uint32_t seed) {
    std::mt19937 random(seed);
    for (int round = 0; round < 400; ++round) {
      const std::size_t bytes = 4096 * (1 + random() % 600);
      auto pointer = arena.allocate(bytes);
      if (!pointer) continue;
      auto* data = static_cast<std::uint32_t*>(*pointer);
      data[0] = seed + static_cast<std::uint32_t>(round);
      data[bytes / 4 - 1] = data[0];
      const bool leased = random() % 2 == 0;
      if (leased) {
        const auto handle = arena.lease(data + 5, {"reader", seed});
        std::lock_guard lock(mutex);
        to_release.push_back(handle->lease);
      }
      if (random() % 16 == 0) arena.trim();
      if (data[0] != seed + static_cast<std::uint32_t>(round) || data[bytes / 4 - 1] != data[0]) ++damaged;
      arena.deallocate(data);
      LeaseId lease = 0;
      {
        std::lock_guard lock(mutex);
        if (!to_release.empty()) {
          std::swap(to_release[random() % to_release.size()], to_release.back());
          lease = to_release.back();
          to_release.pop_back();
        }
      }
      if (lease != 0 && !arena.release(lease)) ++damaged;
    }
  };
  std::vector<std::thread> threads;
  for (std::uint32_t seed = 1; seed <= 4; ++seed) threads.emplace_back(work, seed * 1000);
  for (std::thread& thread : threads) thread.join();
  for (const LeaseId lease : to_release) REQUIRE(arena.release(lease));
  REQUIRE(damaged == 0);
  REQUIRE(arena.stats().leases == 0);
  REQUIRE(arena.stats().in_use_bytes == 0);
  REQUIRE(arena.stats().leased_bytes == 0);
}

TEST_CASE("an arena whose segments are smaller than a page is refused") {
  REQUIRE(Arena::create({.owner = {"x", 1}, .segment_bytes = 100}, {}).error().code == ErrorCode::kBadArgument);
}

}  // namespace
}  // namespace callboard::kernels
