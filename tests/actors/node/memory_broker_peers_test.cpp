// Whole members of the memory lane, some of them in processes of their own that get killed.
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "actors/node/memory_broker.h"
#include "tests/actors/core/temp_dir.h"
#include "tests/actors/node/broker_thread.h"
#include "tests/actors/node/memory_member.h"
#include "tests/kernels/memory/peer_process.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

using test::MemoryMember;
using test::PeerProcess;

constexpr std::uint64_t kMiB = 1u << 20;

struct Fixture {
  test::TempDir folder;
  std::string path = folder.file("memory.sock");
  test::BrokerThread broker{path};

  std::unique_ptr<MemoryMember> member(const ActorId& who, kernels::ArenaOptions options = {}) {
    auto connected = MemoryMember::connect(path, who, std::move(options));
    if (!connected) FAIL(connected.error().to_string());
    return std::move(*connected);
  }
  std::unique_ptr<PeerProcess> peer(const ActorId& who) {
    auto process = std::make_unique<PeerProcess>(std::vector<std::string>{CALLBOARD_LANE_PEER});
    REQUIRE(process->ask("connect " + path + " " + who.name + " " + std::to_string(who.incarnation)) == "ok");
    return process;
  }
};

std::string open_command(const ArenaBlock& block) {
  std::ostringstream out;
  out << "open " << block.owner.name << " " << block.owner.incarnation << " " << block.segment << " " << block.offset
      << " " << block.bytes << " " << block.lease;
  return out.str();
}

/// Has `owner` make a block of `bytes` bytes `fill`, leased to `holder`.
ArenaBlock allocate(PeerProcess& owner, const ActorId& who, std::uint64_t bytes, int fill, const ActorId& holder) {
  std::istringstream answer(owner.ask("allocate " + std::to_string(bytes) + " " + std::to_string(fill) + " " +
                                      holder.name + " " + std::to_string(holder.incarnation)));
  ArenaBlock block{who, 0, 0, 0, 0};
  REQUIRE((answer >> block.segment >> block.offset >> block.bytes >> block.lease));
  return block;
}

TEST_CASE("a result goes from owner to reader and back to its owner through the node actor") {
  Fixture fixture;
  auto owner = fixture.member({"cpu0", 1});
  auto reader = fixture.member({"client", 1});
  auto* data = static_cast<std::byte*>(*owner->arena->allocate(kMiB));
  std::memset(data, 33, kMiB);
  auto block = reader->map->open(*owner->arena->lease(data, {"client", 1}));
  REQUIRE(block);
  owner->arena->deallocate(data);
  REQUIRE((*block)->data()[kMiB - 1] == std::byte{33});
  (*block)->data()[0] = std::byte{1};
  REQUIRE(data[0] == std::byte{33});
  REQUIRE(owner->arena->stats().in_use_bytes == kMiB);
  block->reset();
  REQUIRE(owner->eventually([&] { return owner->arena->stats().in_use_bytes == 0; }));
}

TEST_CASE("AR-1: a holder that is killed frees its leases at once, and nobody else's") {
  Fixture fixture;
  auto owner = fixture.member({"cpu0", 1});
  auto other = fixture.member({"client", 2});
  auto* data = static_cast<std::byte*>(*owner->arena->allocate(kMiB));
  std::memset(data, 33, kMiB);
  auto holder = fixture.peer({"client", 1});
  for (int i = 0; i < 3; ++i) {
    REQUIRE(holder->ask(open_command(*owner->arena->lease(data, {"client", 1}))) == std::to_string(i));
  }
  auto kept = other->map->open(*owner->arena->lease(data, {"client", 2}));
  REQUIRE(owner->arena->stats().leases == 4);
  REQUIRE(holder->ask("read 2 100") == "33");
  owner->arena->deallocate(data);
  holder->kill();
  REQUIRE(owner->eventually([&] { return owner->arena->stats().leases == 1; }));
  REQUIRE(owner->arena->stats().in_use_bytes == kMiB);
  kept->reset();
  REQUIRE(owner->eventually([&] { return owner->arena->stats().in_use_bytes == 0; }));
}

std::uint64_t shmem_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("Shmem:")) return std::stoull(line.substr(6)) * 1024;
  }
  return 0;
}

TEST_CASE("R3, R5: 20 killed owners leave nothing behind, and what a reader kept stays readable") {
  Fixture fixture;
  auto reader = fixture.member({"client", 1});
  const std::uint64_t before = shmem_bytes();
  std::shared_ptr<kernels::MappedBlock> kept;
  for (int round = 1; round <= 20; ++round) {
    const ActorId who{"cpu0", static_cast<Incarnation>(round)};
    auto owner = fixture.peer(who);
    const ArenaBlock block = allocate(*owner, who, 64 * kMiB, round, {"client", 1});
    auto opened = reader->map->open(block);
    REQUIRE(opened);
    owner->kill();
    REQUIRE(reader->eventually([&] { return reader->owners_gone == round; }));
    for (std::size_t i = 0; i < 64 * kMiB; i += 65'536) REQUIRE((*opened)->data()[i] == static_cast<std::byte>(round));
    // Another one that learns of the result only now still gets it.
    auto late = reader->map->open({who, block.segment, block.offset, block.bytes, 0});
    REQUIRE(late);
    REQUIRE((*late)->data()[5] == static_cast<std::byte>(round));
    if (round == 1) kept = *opened;
  }
  REQUIRE(fixture.broker.stats().orphaned_segments == 20);
  fixture.broker.advance(std::chrono::seconds(36));
  REQUIRE(reader->eventually([&] { return reader->owners_gone > 20; }));
  fixture.broker.advance(std::chrono::seconds(31));
  REQUIRE(fixture.broker.stats().orphaned_segments == 1);
  REQUIRE(kept->data()[12'345] == std::byte{1});
  REQUIRE(reader->map->mapped_bytes() == 64 * kMiB);
  REQUIRE(shmem_bytes() < before + 10 * 64 * kMiB);
  kept.reset();
  REQUIRE(reader->map->mapped_bytes() == 0);
}

TEST_CASE("R1: a reader at its limit of files gets a typed refusal, and its lease is over") {
  Fixture fixture;
  auto owner = fixture.member({"cpu0", 1});
  auto holder = fixture.peer({"client", 1});
  auto* data = static_cast<std::byte*>(*owner->arena->allocate(kMiB));
  data[9] = std::byte{5};
  REQUIRE(holder->ask("exhaust") == "ok");
  REQUIRE(holder->ask(open_command(*owner->arena->lease(data, {"client", 1}))) == "error resource_exhausted");
  REQUIRE(owner->eventually([&] { return owner->arena->stats().leases == 0; }));
  REQUIRE(holder->ask("relax") == "ok");
  REQUIRE(holder->ask(open_command(*owner->arena->lease(data, {"client", 1}))) == "0");
  REQUIRE(holder->ask("read 0 9") == "5");
}

TEST_CASE("R6: a handle that is passed on is the owner's handle with one more lease") {
  Fixture fixture;
  auto owner = fixture.member({"cpu0", 1});
  auto middle = fixture.member({"cpu1", 1});
  auto client = fixture.member({"client", 1});
  auto* data = static_cast<std::byte*>(*owner->arena->allocate(kMiB));
  data[7] = std::byte{8};
  auto at_middle = middle->map->open(*owner->arena->lease(data, {"cpu1", 1}));
  auto at_client = client->map->open(*owner->arena->lease(data, {"client", 1}));
  owner->arena->deallocate(data);
  at_middle->reset();
  REQUIRE(owner->eventually([&] { return owner->arena->stats().leases == 1; }));
  REQUIRE((*at_client)->data()[7] == std::byte{8});
  at_client->reset();
  REQUIRE(owner->eventually([&] { return owner->arena->stats().leases == 0; }));
  REQUIRE(owner->arena->stats().in_use_bytes == 0);
}

TEST_CASE("R13: two clients take and drop 10,000 results each at once, and no lease is left") {
  Fixture fixture;
  auto owner = fixture.member({"cpu0", 1}, {.memory_limit = 256 * kMiB});
  std::atomic<int> failures{0};
  const auto client = [&](MemoryMember& member, const ActorId& who) {
    std::mt19937 random(static_cast<std::uint32_t>(who.incarnation));
    std::vector<std::shared_ptr<kernels::MappedBlock>> held(8);
    for (int round = 0; round < 10'000; ++round) {
      auto pointer = owner->arena->allocate(65'537);
      if (!pointer) {
        ++failures;
        continue;
      }
      *static_cast<int*>(*pointer) = round;
      auto opened = member.map->open(*owner->arena->lease(*pointer, who));
      owner->arena->deallocate(*pointer);
      if (!opened || *reinterpret_cast<int*>((*opened)->data()) != round) ++failures;
      if (opened) held[random() % held.size()] = std::move(*opened);
    }
  };
  auto first = fixture.member({"client", 1});
  auto second = fixture.member({"client", 2});
  std::thread other([&] { client(*first, {"client", 1}); });
  client(*second, {"client", 2});
  other.join();
  REQUIRE(failures == 0);
  REQUIRE(owner->eventually([&] { return owner->arena->stats().leases == 0; }));
  REQUIRE(owner->arena->stats().in_use_bytes == 0);
}

TEST_CASE("a segment that was given back is dropped by the node actor too") {
  Fixture fixture;
  auto owner = fixture.member({"cpu0", 1}, {.spare_bytes = 0});
  void* large = *owner->arena->allocate(128 * kMiB);
  void* small = *owner->arena->allocate(kMiB);
  REQUIRE(fixture.broker.eventually([](const auto& stats) { return stats.segments == 2; }));
  owner->arena->deallocate(large);
  owner->arena->trim();
  REQUIRE(fixture.broker.eventually([](const auto& stats) { return stats.segments == 1; }));
  REQUIRE(fixture.broker.stats().segment_bytes == 64 * kMiB);
  owner->arena->deallocate(small);
}

TEST_CASE("the node actor's end is told, and growth fails from then on") {
  test::TempDir folder;
  const std::string path = folder.file("memory.sock");
  auto broker = std::make_unique<test::BrokerThread>(path);
  auto member = MemoryMember::connect(path, {"cpu0", 1});
  REQUIRE(member);
  broker.reset();
  REQUIRE((*member)->eventually([&] { return (*member)->node_gone.load(); }));
  REQUIRE((*member)->arena->allocate(kMiB).error().code == ErrorCode::kPeerLost);
  REQUIRE((*member)->arena->stats().reserved_bytes == 0);
}

}  // namespace
}  // namespace callboard::actors
