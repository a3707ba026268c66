#include "kernels/memory/segment_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <random>
#include <sstream>
#include <thread>
#include <vector>

#include "kernels/memory/arena.h"
#include "kernels/memory/pages.h"
#include "kernels/memory/segment.h"
#include "tests/kernels/memory/peer_process.h"
#include "tests/support/test.h"

namespace callboard::kernels {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;
const ActorId kOwner{"owner", 1};
const ActorId kReader{"client", 1};

UniqueFd duplicate(int fd) { return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

/// An arena and a reader of it in one process, with what the node actor would do between them.
struct SegmentMapFixture {
  explicit SegmentMapFixture(ArenaOptions options = {}) {
    options.owner = kOwner;
    SegmentObserver observer;
    observer.added = [this](SegmentId id, UniqueFd fd, std::uint64_t bytes) -> Status {
      std::lock_guard lock(mutex);
      sizes[id] = bytes;
      segments[id] = std::move(fd);
      return {};
    };
    observer.dropped = [this](SegmentId id) {
      std::lock_guard lock(mutex);
      segments.erase(id);
    };
    arena = *Arena::create(options, observer);
  }
  Result<OpenedSegment> open(SegmentId id) {
    std::lock_guard lock(mutex);
    ++opens;
    const auto found = segments.find(id);
    if (found == segments.end()) return fail(ErrorCode::kTensorLost, "gone");
    return OpenedSegment{duplicate(found->second.get()), sizes[id]};
  }
  std::byte* allocate(std::size_t bytes) { return static_cast<std::byte*>(*arena->allocate(bytes)); }
  /// A path through which another process opens the segment.
  std::string path(SegmentId id) {
    return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(segments.at(id).get());
  }

  Arena* arena = nullptr;
  std::mutex mutex;
  std::map<SegmentId, UniqueFd> segments;
  std::map<SegmentId, std::uint64_t> sizes;
  int opens = 0;
  std::unique_ptr<SegmentMap> map = SegmentMap::create([this](const ActorId&, SegmentId id) { return open(id); },
                                                       [this](const ActorId& owner, LeaseId lease) {
                                                         if (owner == kOwner) arena->release(lease);
                                                       });
};

TEST_CASE("a segment is opened once for all of its blocks, and a block's end ends its lease") {
  SegmentMapFixture fixture;
  std::byte* first = fixture.allocate(kMiB);
  std::byte* second = fixture.allocate(kMiB);
  std::memset(first, 1, kMiB);
  std::memset(second, 2, kMiB);
  auto one = fixture.map->open(*fixture.arena->lease(first, kReader));
  auto two = fixture.map->open(*fixture.arena->lease(second, kReader));
  REQUIRE(one);
  REQUIRE(two);
  REQUIRE((*one)->bytes() == kMiB);
  REQUIRE((*one)->data()[kMiB - 1] == std::byte{1});
  REQUIRE((*two)->data()[0] == std::byte{2});
  REQUIRE(fixture.opens == 1);
  REQUIRE(fixture.map->mapped_bytes() == 64 * kMiB);
  REQUIRE(fixture.map->held_segments(kOwner) == std::vector<SegmentId>{1});
  const auto copy = *one;
  one->reset();
  REQUIRE(fixture.arena->stats().leases == 2);
}

TEST_CASE("after reuse of a block no stale byte of an earlier write appears") {
  SegmentMapFixture fixture;
  std::byte* block = fixture.allocate(kMiB);
  for (int round = 1; round < 20; ++round) {
    std::memset(block, round, kMiB);
    auto opened = fixture.map->open(*fixture.arena->lease(block, kReader));
    REQUIRE(opened);
    std::byte* data = (*opened)->data();
    for (std::size_t i = 0; i < kMiB; i += 1000) REQUIRE(data[i] == static_cast<std::byte>(round));
    data[static_cast<std::size_t>(round) * 5000] = std::byte{200};
    REQUIRE(block[static_cast<std::size_t>(round) * 5000] == static_cast<std::byte>(round));
    fixture.arena->deallocate(block);
    opened->reset();
    REQUIRE(fixture.arena->stats().in_use_bytes == 0);
    REQUIRE(fixture.allocate(kMiB) == block);
  }
}

TEST_CASE("two leases on one block are one range, whose pages are dropped when the last one ends") {
  SegmentMapFixture fixture;
  std::byte* block = fixture.allocate(kMiB);
  std::memset(block, 1, kMiB);
  auto first = fixture.map->open(*fixture.arena->lease(block, kReader));
  auto second = fixture.map->open(*fixture.arena->lease(block, kReader));
  REQUIRE(first);
  REQUIRE(second);
  (*first)->data()[0] = std::byte{9};
  first->reset();
  REQUIRE(fixture.arena->stats().leases == 1);
  second->reset();
  REQUIRE(fixture.arena->stats().leases == 0);
  auto third = fixture.map->open(*fixture.arena->lease(block, kReader));
  REQUIRE((*third)->data()[0] == std::byte{1});
}

TEST_CASE("a block opened while this process has written it elsewhere shows the owner's bytes") {
  SegmentMapFixture fixture;
  std::byte* block = fixture.allocate(kMiB);
  std::memset(block, 1, kMiB);
  auto written = fixture.map->open(*fixture.arena->lease(block, kReader));
  (*written)->data()[70'000] = std::byte{9};
  auto clean = fixture.map->open(*fixture.arena->lease(block, kReader));
  REQUIRE(clean);
  REQUIRE((*clean)->data()[70'000] == std::byte{1});
  REQUIRE((*written)->data()[70'000] == std::byte{9});
  (*clean)->data()[3] = std::byte{8};
  REQUIRE((*written)->data()[3] == std::byte{1});
  clean->reset();
  REQUIRE((*written)->data()[70'000] == std::byte{9});
  written->reset();
  REQUIRE(fixture.arena->stats().leases == 0);
  REQUIRE(fixture.map->mapped_bytes() == 64 * kMiB);
}

TEST_CASE("blocks that overlap only partly do not disturb each other") {
  SegmentMapFixture fixture;
  std::byte* block = fixture.allocate(kMiB);
  std::memset(block, 1, kMiB);
  const ArenaBlock whole = *fixture.arena->lease(block, kReader);
  ArenaBlock part = *fixture.arena->lease(block, kReader);
  part.offset += 5'000;
  part.bytes = 10'000;
  auto first = fixture.map->open(whole);
  auto second = fixture.map->open(part);
  REQUIRE(second);
  REQUIRE((*second)->bytes() == 10'000);
  (*first)->data()[5'000] = std::byte{9};
  (*second)->data()[1] = std::byte{8};
  REQUIRE((*second)->data()[0] == std::byte{1});
  second->reset();
  REQUIRE((*first)->data()[5'000] == std::byte{9});
  REQUIRE((*first)->data()[5'001] == std::byte{1});
}

TEST_CASE("R47: a handle that does not lie in its segment is refused before anything is touched, its lease ended") {
  SegmentMapFixture fixture;
  std::byte* block = fixture.allocate(kMiB);
  const ArenaBlock good = *fixture.arena->lease(block, kReader);
  REQUIRE(fixture.arena->release(good.lease));
  struct Bad {
    std::uint64_t offset;
    std::uint64_t bytes;
  };
  for (const Bad& bad :
       {Bad{64 * kMiB, 1}, Bad{0, 64 * kMiB + 1}, Bad{64 * kMiB - 1, 2}, Bad{UINT64_MAX, 2},
        Bad{UINT64_MAX - 4096, 4096}, Bad{4096, UINT64_MAX}, Bad{0, 0}, Bad{std::uint64_t{1} << 40, 16}}) {
    ArenaBlock handle = *fixture.arena->lease(block, kReader);
    handle.offset = bad.offset;
    handle.bytes = bad.bytes;
    CAPTURE(bad.offset, bad.bytes);
    REQUIRE(fixture.map->open(handle).error().code == ErrorCode::kMalformed);
    REQUIRE(fixture.arena->stats().leases == 0);
  }
}

TEST_CASE("R47: what is told about a segment's size is not believed") {
  auto segment = Segment::create(4 * page_bytes(), "test");
  REQUIRE(segment);
  std::vector<LeaseId> released;
  const auto map = SegmentMap::create(
      [&](const ActorId&, SegmentId) -> Result<OpenedSegment> {
        return OpenedSegment{std::move(*segment->open_read_only()), 1000 * page_bytes()};
      },
      [&](const ActorId&, LeaseId lease) { released.push_back(lease); });
  REQUIRE(map->open({kOwner, 1, 0, 5 * page_bytes(), 7}).error().code == ErrorCode::kMalformed);
  REQUIRE(released == std::vector<LeaseId>{7});
}

TEST_CASE("what is no sealed memory segment is refused") {
  const auto open_with = [](auto make) {
    const auto map = SegmentMap::create(
        [&](const ActorId&, SegmentId) -> Result<OpenedSegment> {
          return OpenedSegment{UniqueFd(make()), 4096};
        },
        {});
    return map->open({kOwner, 1, 0, 100, 0}).error().code;
  };
  REQUIRE(open_with([] { return ::open("/dev/zero", O_RDONLY | O_CLOEXEC); }) == ErrorCode::kMalformed);
  REQUIRE(open_with([] { return -1; }) == ErrorCode::kMalformed);
  REQUIRE(open_with([] {
            const int fd = ::memfd_create("unsealed", MFD_CLOEXEC);
            return ::ftruncate(fd, 4096) == 0 ? fd : -1;
          }) == ErrorCode::kMalformed);
}

TEST_CASE("a segment that is gone is a lost tensor, its lease is ended, and asking again asks again") {
  SegmentMapFixture fixture;
  std::byte* block = fixture.allocate(kMiB);
  ArenaBlock handle = *fixture.arena->lease(block, kReader);
  handle.segment = 99;
  REQUIRE(fixture.map->open(handle).error().code == ErrorCode::kTensorLost);
  REQUIRE(fixture.arena->stats().leases == 0);
  REQUIRE(fixture.map->open(handle).error().code == ErrorCode::kTensorLost);
  REQUIRE(fixture.opens == 2);
  REQUIRE(fixture.map->mapped_bytes() == 0);
}

TEST_CASE("threads that open one segment at the same time map it once") {
  SegmentMapFixture fixture;
  std::byte* block = fixture.allocate(8 * kMiB);
  std::vector<ArenaBlock> handles;
  for (std::uint64_t i = 0; i < 8; ++i) {
    handles.push_back(*fixture.arena->lease(block, kReader));
    handles.back().offset += i * kMiB;
    handles.back().bytes = kMiB;
  }
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (const ArenaBlock& handle : handles) {
    threads.emplace_back([&, handle] {
      if (!fixture.map->open(handle)) ++failures;
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(failures == 0);
  REQUIRE(fixture.opens == 1);
  REQUIRE(fixture.arena->stats().leases == 0);
}

TEST_CASE("what an owner that is gone has left is unmapped when nothing points into it any more") {
  SegmentMapFixture fixture({.segment_bytes = kMiB});
  std::byte* held = fixture.allocate(kMiB);
  std::byte* idle = fixture.allocate(kMiB);
  held[0] = std::byte{5};
  auto block = fixture.map->open(*fixture.arena->lease(held, kReader));
  REQUIRE(fixture.map->open(*fixture.arena->lease(idle, kReader)));
  REQUIRE(fixture.map->mapped_bytes() == 2 * kMiB);
  fixture.map->drop_owner({"owner", 2});
  REQUIRE(fixture.map->mapped_bytes() == 2 * kMiB);
  fixture.map->drop_owner(kOwner);
  REQUIRE(fixture.map->mapped_bytes() == kMiB);
  REQUIRE(fixture.map->held_segments(kOwner).size() == 1);
  REQUIRE((*block)->data()[0] == std::byte{5});
  block->reset();
  REQUIRE(fixture.map->mapped_bytes() == 0);
  REQUIRE(fixture.map->held_segments(kOwner).empty());
}

TEST_CASE("segments that nothing points into do not pile up") {
  SegmentMapFixture fixture({.segment_bytes = 16 * page_bytes(), .spare_bytes = 0});
  for (int i = 0; i < 300; ++i) {
    std::byte* block = fixture.allocate(64 * page_bytes());
    REQUIRE(fixture.map->open(*fixture.arena->lease(block, kReader)));
    fixture.arena->deallocate(block);
    fixture.arena->trim();
  }
  REQUIRE(fixture.map->mapped_bytes() <= 70 * 64 * page_bytes());
  REQUIRE(fixture.segments.empty());
}

TEST_CASE("a block may outlive the map that it came from; its end tells nobody then") {
  int released = 0;
  auto segment = Segment::create(page_bytes(), "test");
  auto map = SegmentMap::create(
      [&](const ActorId&, SegmentId) -> Result<OpenedSegment> {
        return OpenedSegment{std::move(*segment->open_read_only()), page_bytes()};
      },
      [&](const ActorId&, LeaseId) { ++released; });
  auto block = map->open({kOwner, 1, 0, 100, 1});
  REQUIRE(block);
  segment->data()[9] = std::byte{3};
  map.reset();
  REQUIRE((*block)->data()[9] == std::byte{3});
  block->reset();
  REQUIRE(released == 0);
}

TEST_CASE("R1: a thousand small segments are kept open under a limit of 256 files") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit low{256, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  {
    // Each segment's owner keeps no descriptor here, as another process would not.
    const auto map = SegmentMap::create(
        [](const ActorId&, SegmentId id) -> Result<OpenedSegment> {
          CALLBOARD_ASSIGN(Segment segment, Segment::create(page_bytes(), "test"));
          segment.data()[0] = static_cast<std::byte>(id % 251);
          CALLBOARD_ASSIGN(UniqueFd fd, segment.open_read_only());
          return OpenedSegment{std::move(fd), page_bytes()};
        },
        {});
    std::vector<std::shared_ptr<MappedBlock>> kept;
    for (SegmentId id = 1; id <= 1'000; ++id) {
      auto block = map->open({kOwner, id, 0, 100, 0});
      if (!block) FAIL(block.error().to_string());
      kept.push_back(*block);
    }
    for (SegmentId id = 1; id <= 1'000; ++id) REQUIRE(kept[id - 1]->data()[0] == static_cast<std::byte>(id % 251));
  }
  {
    SegmentMapFixture fixture;
    std::vector<std::shared_ptr<MappedBlock>> kept;
    for (int i = 0; i < 1'000; ++i) {
      std::byte* block = fixture.allocate(65'537);
      kept.push_back(*fixture.map->open(*fixture.arena->lease(block, kReader)));
    }
    REQUIRE(fixture.arena->stats().segments < 5);
  }
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST_CASE("R1: an owner at its limit of files gets a typed refusal that names the limit") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  SegmentMapFixture fixture({.segment_bytes = 16 * page_bytes()});
  std::byte* block = fixture.allocate(16 * page_bytes());
  std::vector<UniqueFd> fill;
  const rlimit low{64, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  for (UniqueFd fd = duplicate(0); fd; fd = duplicate(0)) fill.push_back(std::move(fd));
  const auto refused = fixture.arena->allocate(16 * page_bytes());
  fill.clear();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE(refused.error().code == ErrorCode::kResourceExhausted);
  REQUIRE(refused.error().hint.find("RLIMIT_NOFILE") != std::string::npos);
  REQUIRE(fixture.allocate(16 * page_bytes()));
  REQUIRE(fixture.arena->find(block));
}

TEST_CASE("R13: two clients lease and release 10,000 times each at once, and no lease is left") {
  SegmentMapFixture fixture({.memory_limit = 64 * kMiB});
  const auto client = [&](std::string name, std::uint32_t seed) {
    const auto map = SegmentMap::create([&](const ActorId&, SegmentId id) { return fixture.open(id); },
                                        [&](const ActorId&, LeaseId lease) { fixture.arena->release(lease); });
    std::mt19937 random(seed);
    std::vector<std::shared_ptr<MappedBlock>> held(8);
    for (int round = 0; round < 10'000; ++round) {
      auto block = fixture.arena->allocate(65'537);
      if (!block) continue;
      *static_cast<int*>(*block) = round;
      auto opened = map->open(*fixture.arena->lease(*block, {name, 1}));
      fixture.arena->deallocate(*block);
      if (!opened || *reinterpret_cast<int*>((*opened)->data()) != round) return false;
      (*opened)->data()[100] = std::byte{1};
      held[random() % held.size()] = std::move(*opened);
    }
    held.clear();
    return true;
  };
  bool first = false;
  std::thread other([&] { first = client("a", 1); });
  const bool second = client("b", 2);
  other.join();
  REQUIRE(first);
  REQUIRE(second);
  REQUIRE(fixture.arena->stats().leases == 0);
  REQUIRE(fixture.arena->stats().in_use_bytes == 0);
}

TEST_CASE("a forked child's copies of blocks end no lease of the parent") {
#if defined(CALLBOARD_SANITIZED_THREAD)
  std::cout << "skipped: ThreadSanitizer does not support going on after a fork\n";
#else
  SegmentMapFixture fixture;
  std::byte* memory = fixture.allocate(kMiB);
  auto block = fixture.map->open(*fixture.arena->lease(memory, kReader));
  (*block)->data()[0] = std::byte{7};
  const pid_t pid = ::fork();
  if (pid == 0) {
    bool released = false;
    {
      const auto last = std::move(*block);
      released = fixture.arena->stats().leases != 1;
    }
    ::_exit(released || fixture.arena->stats().leases != 1 ? 1 : 0);
  }
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 0);
  REQUIRE((*block)->data()[0] == std::byte{7});
  REQUIRE(fixture.arena->stats().leases == 1);
#endif
}

// -- other processes
// -----------------------------------------------------------------------------------------------------

std::string open_command(SegmentMapFixture& fixture, const ArenaBlock& block) {
  return "open " + fixture.path(block.segment) + " " + std::to_string(block.segment) + " " +
         std::to_string(block.offset) + " " + std::to_string(block.bytes) + " " + std::to_string(block.lease);
}

TEST_CASE("another process reads the values; what it writes reaches neither the owner nor another reader") {
  SegmentMapFixture fixture;
  std::byte* block = fixture.allocate(kMiB);
  std::memset(block, 11, kMiB);
  test::PeerProcess first({CALLBOARD_MEMORY_PEER});
  test::PeerProcess second({CALLBOARD_MEMORY_PEER});
  const ArenaBlock one = *fixture.arena->lease(block, {"reader", 1});
  const ArenaBlock two = *fixture.arena->lease(block, {"reader", 2});
  REQUIRE(first.ask(open_command(fixture, one)) == "0");
  REQUIRE(second.ask(open_command(fixture, two)) == "0");
  REQUIRE(first.ask("read 0 1048575") == "11");
  REQUIRE(first.ask("write 0 5000 99") == "ok");
  REQUIRE(first.ask("read 0 5000") == "99");
  REQUIRE(second.ask("read 0 5000") == "11");
  REQUIRE(block[5000] == std::byte{11});

  // The block is reused: the byte that the reader wrote must be gone.
  fixture.arena->deallocate(block);
  REQUIRE(first.ask("drop 0") == std::to_string(one.lease));
  REQUIRE(second.ask("drop 0") == std::to_string(two.lease));
  REQUIRE(fixture.arena->release(one.lease));
  REQUIRE(fixture.arena->release(two.lease));
  REQUIRE(fixture.allocate(kMiB) == block);
  std::memset(block, 12, kMiB);
  const ArenaBlock again = *fixture.arena->lease(block, {"reader", 1});
  REQUIRE(first.ask(open_command(fixture, again)) == "1");
  REQUIRE(first.ask("read 1 5000") == "12");
  REQUIRE(first.ask("read 1 5001") == "12");
}

TEST_CASE("another process cannot map shared, write, resize or punch a segment") {
  SegmentMapFixture fixture;
  std::byte* block = fixture.allocate(kMiB);
  block[0] = std::byte{1};
  test::PeerProcess peer({CALLBOARD_MEMORY_PEER});
  REQUIRE(peer.ask("attack " + fixture.path(1)) == "refused");
  REQUIRE(block[0] == std::byte{1});
}

std::uint64_t shmem_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::uint64_t kib = 0;
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("Shmem:")) kib = std::stoull(line.substr(6));
  }
  return kib * 1024;
}

TEST_CASE("R3, R5: killing an owner 20 times leaves no memory behind, and a kept result readable") {
  const std::uint64_t before = shmem_bytes();
  std::vector<std::shared_ptr<MappedBlock>> kept;
  std::vector<std::unique_ptr<SegmentMap>> maps;
  for (int round = 1; round <= 20; ++round) {
    test::PeerProcess owner({CALLBOARD_MEMORY_PEER});
    std::istringstream answer(owner.ask("allocate " + std::to_string(64 * kMiB) + " " + std::to_string(round)));
    std::string path;
    ArenaBlock block{kOwner, 0, 0, 0, 0};
    REQUIRE((answer >> path >> block.segment >> block.offset >> block.bytes >> block.lease));
    auto map = SegmentMap::create(
        [path](const ActorId&, SegmentId) -> Result<OpenedSegment> {
          return OpenedSegment{UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), 64 * kMiB};
        },
        {});
    auto opened = map->open(block);
    REQUIRE(opened);
    owner.kill();
    for (std::size_t i = 0; i < 64 * kMiB; i += 65'536) REQUIRE((*opened)->data()[i] == static_cast<std::byte>(round));
    if (round == 1) {
      kept.push_back(*opened);
      maps.push_back(std::move(map));
    }
  }
  REQUIRE(kept.front()->data()[12345] == std::byte{1});
  // 64 MiB are kept; 20 times as much would have been left. Other processes of the machine are counted too.
  REQUIRE(shmem_bytes() < before + 10 * 64 * kMiB);
}

}  // namespace
}  // namespace callboard::kernels
