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

TEST_CASE("a handle of our own leads back to the same memory and its lease ends with the last pointer") {
  OwnBlocks own(arena(), kOwner);
  void* block = arena()->allocate(kBytes).value();
  std::memset(block, 5, kBytes);
  const auto leased = own.lease(static_cast<std::byte*>(block) + 64, kReader);
  REQUIRE(leased);
  arena()->deallocate(block);
  auto opened = own.open(leased->handle);
  REQUIRE(opened);
  CHECK(static_cast<void*>(opened->get()) == static_cast<void*>(leased->start));
  CHECK(*opened->get() == std::byte{5});
  CHECK(arena()->stats().leases == 2);
  opened->reset();
  CHECK(arena()->stats().leases == 0);
  CHECK_FALSE(arena()->release(leased->handle.lease));
}

TEST_CASE("a handle whose lease has ended is lost even when its block was handed out again") {
  OwnBlocks own(arena(), kOwner);
  void* block = arena()->allocate(kBytes).value();
  const ArenaBlock handle = own.lease(block, kReader)->handle;
  REQUIRE(arena()->release(handle.lease));
  CHECK(own.open(handle).error().code == ErrorCode::kTensorLost);
  CHECK(arena()->stats().leases == 0);
  arena()->deallocate(block);
  CHECK(own.open(handle).error().code == ErrorCode::kTensorLost);
}

TEST_CASE("a handle that reaches beyond its block, or names an unknown segment, is refused and its lease released") {
  OwnBlocks own(arena(), kOwner);
  void* block = arena()->allocate(kBytes).value();
  ArenaBlock handle = own.lease(block, kReader)->handle;
  handle.bytes += 1u << 20;
  CHECK(own.open(handle).error().code == ErrorCode::kTensorLost);
  CHECK(arena()->stats().leases == 0);
  ArenaBlock elsewhere = own.lease(block, kReader)->handle;
  elsewhere.segment += 1'000;
  CHECK(own.open(elsewhere).error().code == ErrorCode::kTensorLost);
  CHECK(arena()->stats().leases == 0);
  arena()->deallocate(block);
}

TEST_CASE("memory that is not the arena's cannot be leased") {
  OwnBlocks own(arena(), kOwner);
  int local = 0;
  CHECK_FALSE(own.lease(&local, kReader));
}
