#include "kernels/own_blocks.h"

#include <cstring>
#include <stdexcept>

#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::kernels;

namespace {

const ActorId kOwner{"cpu0", 1};
const ActorId kReader{"client", 1};
constexpr std::size_t kBytes = 200'000;

Arena* arena() {
  static Arena* const instance = [] {
    ArenaOptions options;
    options.owner = kOwner;
    options.memory_limit = 256u << 20;
    auto made = Arena::create(options, {});
    if (!made) throw std::runtime_error(made.error().to_string());
    return *made;
  }();
  return instance;
}

}  // namespace

TEST_CASE("a handle that we hold on our own block leads back to its memory and its lease ends with the last pointer") {
  OwnBlocks own(arena(), kOwner);
  void* block = arena()->allocate(kBytes).value();
  std::memset(block, 5, kBytes);
  const auto leased = own.lease(static_cast<std::byte*>(block) + 64, kOwner);
  REQUIRE(leased);
  arena()->deallocate(block);
  REQUIRE(own.can_open(leased->handle));
  auto opened = own.open(leased->handle);
  REQUIRE(opened);
  CHECK(static_cast<void*>(opened->get()) == block);
  CHECK(*opened->get() == std::byte{5});
  CHECK(arena()->stats().leases == 1);
  opened->reset();
  CHECK(arena()->stats().leases == 0);
  CHECK_FALSE(own.can_open(leased->handle));
  CHECK(own.open(leased->handle).error().code == ErrorCode::kTensorLost);
}

TEST_CASE("a handle that somebody else holds is not opened by address") {
  OwnBlocks own(arena(), kOwner);
  void* block = arena()->allocate(kBytes).value();
  const ArenaBlock handle = own.lease(block, kReader)->handle;
  CHECK_FALSE(own.can_open(handle));
  ArenaBlock of_another = own.lease(block, kOwner)->handle;
  of_another.owner = kReader;
  CHECK_FALSE(own.can_open(of_another));
  arena()->holder_gone(kReader);
  arena()->release(of_another.lease);
  arena()->deallocate(block);
}

TEST_CASE("a handle whose lease has ended is lost even when its block was handed out again") {
  OwnBlocks own(arena(), kOwner);
  void* block = arena()->allocate(kBytes).value();
  const ArenaBlock handle = own.lease(block, kOwner)->handle;
  REQUIRE(arena()->release(handle.lease));
  CHECK(own.open(handle).error().code == ErrorCode::kTensorLost);
  arena()->deallocate(block);
}

TEST_CASE("a handle that names more than its block is refused and its lease ends") {
  OwnBlocks own(arena(), kOwner);
  void* block = arena()->allocate(kBytes).value();
  ArenaBlock longer = own.lease(block, kOwner)->handle;
  longer.bytes += 1;
  CHECK(own.open(longer).error().code == ErrorCode::kMalformed);
  ArenaBlock elsewhere = own.lease(block, kOwner)->handle;
  elsewhere.segment += 1'000;
  CHECK(own.open(elsewhere).error().code == ErrorCode::kMalformed);
  CHECK(arena()->stats().leases == 0);
  arena()->deallocate(block);
}

TEST_CASE("handles that never come back are forgotten once their leases have ended") {
  OwnBlocks own(arena(), kOwner);
  void* block = arena()->allocate(kBytes).value();
  for (int i = 0; i < 3'000; ++i) REQUIRE(arena()->release(own.lease(block, kOwner)->handle.lease));
  const ArenaBlock kept = own.lease(block, kOwner)->handle;
  CHECK(own.can_open(kept));
  CHECK(own.open(kept));
  arena()->deallocate(block);
}

TEST_CASE("memory that is not the arena's cannot be leased") {
  OwnBlocks own(arena(), kOwner);
  int local = 0;
  CHECK_FALSE(own.lease(&local, kReader));
}
