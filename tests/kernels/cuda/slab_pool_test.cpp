#include "kernels/cuda/slab_pool.h"

#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "tests/kernels/cuda/pair.h"

namespace callboard::kernels::cuda {
namespace {

using namespace testing;

/// A block that its stream let go while a write to it waits there, and another stream that would like to have it.
struct LetGo {
  explicit LetGo(std::uint64_t device_bytes)
      : machine(FakeMachine::create(1, device_bytes)), exporter(machine), block(exporter.allocate(8 * kMiB)) {
    REQUIRE(exporter.runtime->stream_create(&other) == kSuccess);
    exporter.runtime->hold(exporter.stream);
    exporter.fill(block, "late");
    exporter.pool->deallocate(block, exporter.stream);
  }
  std::shared_ptr<FakeMachine> machine;
  Exporter exporter;
  Stream other = nullptr;
  std::byte* block = nullptr;
};

TEST_CASE("blocks share slabs, large ones get their own, and addresses are found in their blocks") {
  const auto machine = FakeMachine::create(1, 64 * kMiB);
  Exporter exporter(machine);
  std::byte* const first = exporter.allocate(1);
  std::byte* const second = exporter.allocate(3 * kMiB);
  std::byte* const large = exporter.allocate(20 * kMiB);
  CHECK(machine->allocations() == 2);
  CHECK(exporter.pool->stats().reserved_bytes == 28 * kMiB);
  CHECK(exporter.pool->stats().in_use_bytes == 26 * kMiB);
  CHECK(exporter.pool->allocate(0, exporter.stream).value() == nullptr);
  const auto inside = exporter.pool->find(second + 4'000'000);
  REQUIRE(inside);
  CHECK(inside->block == second);
  CHECK(inside->block_bytes == 4 * kMiB);
  CHECK(inside->block_offset == 2 * kMiB);
  CHECK(inside->offset == 2 * kMiB + 4'000'000);
  CHECK(exporter.pool->find(first)->slab == inside->slab);
  CHECK(exporter.pool->find(large)->slab != inside->slab);
  CHECK_FALSE(exporter.pool->find(second + 4 * kMiB));
  CHECK_FALSE(exporter.pool->find(&machine));
  exporter.pool->deallocate(second, exporter.stream);
  CHECK_FALSE(exporter.pool->find(second));
  exporter.pool->deallocate(nullptr, exporter.stream);
}

TEST_CASE("SP-1: what a stream let go is another one's only when it is done, and its own at once") {
  LetGo late(64 * kMiB);
  Exporter& exporter = late.exporter;
  void* const elsewhere = exporter.pool->allocate(8 * kMiB, late.other).value();
  CHECK(elsewhere != late.block);
  CHECK(late.machine->allocations() == 2);
  void* const again = exporter.pool->allocate(8 * kMiB, exporter.stream).value();
  CHECK(again == late.block);
  exporter.pool->deallocate(again, exporter.stream);
  exporter.runtime->run(exporter.stream);
  CHECK(exporter.pool->allocate(8 * kMiB, late.other).value() == late.block);
  CHECK(late.machine->allocations() == 2);
}

TEST_CASE("SP-1: a part of what a stream let go leaves the rest waiting") {
  const auto machine = FakeMachine::create(1, 16 * kMiB);
  Exporter exporter(machine);
  Stream other = nullptr;
  REQUIRE(exporter.runtime->stream_create(&other) == kSuccess);
  std::byte* const block = exporter.allocate(8 * kMiB);
  exporter.runtime->hold(exporter.stream);
  exporter.pool->deallocate(block, exporter.stream);
  CHECK(exporter.pool->allocate(2 * kMiB, exporter.stream).value() == block);
  CHECK(exporter.pool->stats().in_use_bytes == 8 * kMiB);
  exporter.runtime->run(exporter.stream);
  REQUIRE(exporter.pool->trim());
  CHECK(exporter.pool->stats().in_use_bytes == 2 * kMiB);
  CHECK(exporter.pool->allocate(6 * kMiB, other).value() == block + 2 * kMiB);
}

TEST_CASE("SP-2: a leased block is given back once, by whichever of its owner and its leases ends last") {
  const auto machine = FakeMachine::create(1, 64 * kMiB);
  Exporter exporter(machine);
  const bool owner_first = GENERATE(true, false);
  std::byte* const block = exporter.allocate(8 * kMiB);
  const CudaIpcBlock one = exporter.lease(block, 100);
  const CudaIpcBlock two = exporter.lease(block + 4096, 200);
  CHECK(two.offset - one.offset == 4096);
  CHECK(exporter.pool->stats().leases == 2);
  CHECK(exporter.pool->stats().leased_bytes == 300);
  if (owner_first) exporter.pool->deallocate(block, exporter.stream);
  CHECK(exporter.pool->release(one.lease));
  CHECK_FALSE(exporter.pool->release(one.lease));
  REQUIRE(exporter.pool->trim());
  CHECK(exporter.pool->stats().in_use_bytes == 8 * kMiB);
  CHECK(exporter.pool->release(two.lease));
  if (!owner_first) exporter.pool->deallocate(block, exporter.stream);
  REQUIRE(exporter.pool->trim());
  CHECK(exporter.pool->stats().in_use_bytes == 0);
  CHECK(exporter.pool->stats().leases == 0);
  CHECK(exporter.pool->stats().leased_bytes == 0);
}

TEST_CASE("what a lease keeps goes with it, and may come back into the pool") {
  Exporter exporter(FakeMachine::create(1, 64 * kMiB));
  std::byte* const block = exporter.allocate(2 * kMiB);
  // As a tensor's storage does: its end gives the block back.
  std::shared_ptr<void> storage(block, [&](void* pointer) { exporter.pool->deallocate(pointer, exporter.stream); });
  const CudaIpcBlock handle = exporter.lease(block, 64, storage);
  const std::weak_ptr<void> alive = storage;
  storage.reset();
  CHECK_FALSE(alive.expired());
  CHECK(exporter.pool->release(handle.lease));
  CHECK(alive.expired());
  CHECK_FALSE(exporter.pool->find(block));
}

TEST_CASE("SP-3: a slab goes only when no block, no lease and no reader's mapping is left") {
  const auto machine = FakeMachine::create(1, 64 * kMiB);
  Exporter exporter(machine);
  std::byte* const block = exporter.allocate(2 * kMiB);
  const CudaIpcBlock handle = exporter.lease(block, 64);
  CHECK(handle.mapping != 0);
  CHECK(exporter.lease(block, 64).mapping == handle.mapping);
  CHECK(exporter.lease(block, 64, {}, {"client", 1}).mapping != handle.mapping);
  CHECK(exporter.pool->stats().mappings == 2);
  CHECK(exporter.pool->leases().size() == 3);
  exporter.pool->deallocate(block, exporter.stream);
  REQUIRE(exporter.pool->release_cached());
  CHECK(machine->allocations() == 1);
  CHECK(exporter.pool->holder_gone({"client", 1}) == 2);
  CHECK(exporter.pool->release(handle.lease | kKeepsSlabOpen));
  for (const LeaseInfo& lease : exporter.pool->leases()) CHECK(exporter.pool->release(lease.lease));
  REQUIRE(exporter.pool->release_cached());
  CHECK(machine->allocations() == 1);  // the reader has it open still
  CHECK(exporter.pool->release(handle.mapping));
  REQUIRE(exporter.pool->release_cached());
  CHECK(machine->allocations() == 0);
  CHECK(exporter.pool->stats().reserved_bytes == 0);
}

TEST_CASE("SP-3: a reader that opened nothing has no mapping when its last lease has ended, whoever gave that back") {
  const auto machine = FakeMachine::create(1, 64 * kMiB);
  Exporter exporter(machine);
  std::byte* const block = exporter.allocate(2 * kMiB);
  const CudaIpcBlock one = exporter.lease(block, 64);
  const CudaIpcBlock two = exporter.lease(block, 64);
  exporter.pool->deallocate(block, exporter.stream);
  CHECK(exporter.pool->release(one.lease));
  CHECK(exporter.pool->stats().mappings == 1);  // it may be about to open the other one
  CHECK(exporter.pool->release(two.lease));
  CHECK(exporter.pool->stats().mappings == 0);
  CHECK_FALSE(exporter.pool->release(two.mapping));
  REQUIRE(exporter.pool->release_cached());
  CHECK(machine->allocations() == 0);
}

TEST_CASE("SP-3: a mapping ends when it is given back and no sooner, in whatever order leases come back") {
  const auto machine = FakeMachine::create(1, 64 * kMiB);
  Exporter exporter(machine);
  std::byte* const block = exporter.allocate(2 * kMiB);
  const CudaIpcBlock one = exporter.lease(block, 64);
  const CudaIpcBlock two = exporter.lease(block, 64);
  SECTION("kept open, then one that was not opened") {
    CHECK(exporter.pool->release(one.lease | kKeepsSlabOpen));
    CHECK(exporter.pool->release(two.lease));
    CHECK(exporter.pool->stats().mappings == 1);
    CHECK(exporter.pool->release(one.mapping));
  }
  SECTION("one that was not opened, then kept open") {
    CHECK(exporter.pool->release(two.lease));
    CHECK(exporter.pool->release(one.lease | kKeepsSlabOpen));
    CHECK(exporter.pool->stats().mappings == 1);
    CHECK(exporter.pool->release(one.mapping));
  }
  SECTION("closed before the last leases come back") {
    CHECK(exporter.pool->release(one.mapping));
    CHECK(exporter.pool->stats().mappings == 0);
    CHECK(exporter.pool->release(one.lease | kKeepsSlabOpen));  // overtaken by its mapping's
    CHECK(exporter.pool->release(two.lease));
  }
  SECTION("its process ends while it keeps the slab open and holds a lease") {
    CHECK(exporter.pool->release(one.lease | kKeepsSlabOpen));
    CHECK(exporter.pool->holder_gone(kReader) == 2);
  }
  CHECK(exporter.pool->stats().mappings == 0);
  CHECK(exporter.pool->stats().leases == 0);
  exporter.pool->deallocate(block, exporter.stream);
  REQUIRE(exporter.pool->release_cached());
  CHECK(machine->allocations() == 0);
}

TEST_CASE("a reader that closed the slab and comes back gets a new lease on its mapping") {
  Exporter exporter(FakeMachine::create(1, 64 * kMiB));
  std::byte* const block = exporter.allocate(2 * kMiB);
  const CudaIpcBlock first = exporter.lease(block, 64);
  CHECK(exporter.pool->release(first.mapping));
  const CudaIpcBlock second = exporter.lease(block, 64);
  CHECK(second.mapping > first.mapping);
}

TEST_CASE("SP-4: events come again only after their leases, and one handle serves a slab") {
  Exporter exporter(FakeMachine::create(1, 64 * kMiB));
  std::byte* const block = exporter.allocate(2 * kMiB);
  std::vector<CudaIpcBlock> handles;
  std::set<std::string> events;
  for (int i = 0; i < 8; ++i) {
    handles.push_back(exporter.lease(block, 64));
    events.insert(std::string(handles.back().event_handle()));
    CHECK(handles.back().memory_handle() == handles.front().memory_handle());
  }
  CHECK(events.size() == 8);
  for (const CudaIpcBlock& handle : handles) CHECK(exporter.pool->release(handle.lease));
  for (int i = 0; i < 100; ++i) {
    const CudaIpcBlock handle = exporter.lease(block, 64);
    CHECK(events.contains(std::string(handle.event_handle())));
    CHECK(exporter.pool->release(handle.lease));
  }
  CHECK(exporter.pool->stats().events == 8);
  CHECK(exporter.runtime->calls(Call::kIpcGetMemory) == 1);
  CHECK(exporter.runtime->calls(Call::kIpcGetEvent) == 8);
}

TEST_CASE("a lease's handles are of its slab, event and device") {
  const auto machine = FakeMachine::create(2, 64 * kMiB);
  SlabPoolOptions options = small_slabs();
  options.device = 0;
  Exporter exporter(machine, options, {1, 0});  // CUDA_VISIBLE_DEVICES=1,0
  CHECK(exporter.pool->device_uuid() == machine->uuid(1));
  const CudaIpcBlock handle = exporter.lease(exporter.allocate(2 * kMiB), 64);
  const DeviceUuid uuid = machine->uuid(1);
  CHECK(handle.device_uuid() == std::string_view(uuid.bytes.data(), uuid.bytes.size()));
  CHECK(handle.owner == kExporter);
  CHECK(machine->used_bytes(1) == 8 * kMiB);
  CHECK(machine->used_bytes(0) == 0);
}

TEST_CASE("a lease is refused for what is not in one block, and beyond the bound") {
  SlabPoolOptions options = small_slabs();
  options.leases_max = 2;
  Exporter exporter(FakeMachine::create(1, 64 * kMiB), options);
  std::byte* const block = exporter.allocate(2 * kMiB);
  std::byte* const next = exporter.allocate(2 * kMiB);
  const auto code = [&](const void* at, std::uint64_t bytes) {
    return code_of(exporter.pool->lease(at, bytes, kReader, exporter.stream, {}));
  };
  CHECK(code(&exporter, 1) == ErrorCode::kBadArgument);
  CHECK(code(block, 2 * kMiB + 1) == ErrorCode::kBadArgument);
  CHECK(code(next + 1, 2 * kMiB) == ErrorCode::kBadArgument);
  CHECK(code(block, UINT64_MAX) == ErrorCode::kBadArgument);
  CHECK(code(block + 64, 2 * kMiB - 64) == ErrorCode::kOk);
  CHECK(code(block, 1) == ErrorCode::kOk);
  CHECK(code(block, 1) == ErrorCode::kOverloaded);
}

TEST_CASE("a holder that is gone gets a handle without a lease, and keeps nothing") {
  Exporter exporter(FakeMachine::create(1, 64 * kMiB));
  std::byte* const block = exporter.allocate(2 * kMiB);
  auto keep = std::make_shared<int>(1);
  const std::weak_ptr<int> alive = keep;
  exporter.lease(block, 64, keep);
  CHECK(exporter.pool->holder_gone(kReader) == 2);
  const CudaIpcBlock handle = exporter.lease(block, 64, std::move(keep));
  CHECK(alive.expired());
  CHECK(handle.mapping == 0);
  CHECK_FALSE(exporter.pool->release(handle.lease));
  CHECK(exporter.pool->stats().leases == 0);
  CHECK(exporter.pool->stats().mappings == 0);
}

TEST_CASE("memory that cannot be handed out still serves, and a lease says why not") {
  const auto machine = FakeMachine::create(1, 64 * kMiB);
  SECTION("no handles") {
    Exporter exporter(machine);
    exporter.runtime->inject(Call::kIpcGetMemory, 801);
    std::byte* const block = exporter.allocate(2 * kMiB);
    const auto refused = exporter.pool->lease(block, 64, kReader, exporter.stream, {});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::kUnsupported);
    CHECK(refused.error().message.find("cudaIpcGetMemHandle") != std::string::npos);
  }
  SECTION("no events") {
    machine->set_ipc_events(0, false);
    Exporter exporter(machine);
    std::byte* const block = exporter.allocate(2 * kMiB);
    CHECK(code_of(exporter.pool->lease(block, 64, kReader, exporter.stream, {})) == ErrorCode::kUnsupported);
  }
}

TEST_CASE("SP-5: where the device is full, cached slabs are given back once and it is asked again") {
  const auto machine = FakeMachine::create(1, 32 * kMiB);
  Exporter exporter(machine);
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(exporter.allocate(8 * kMiB));
  CHECK(machine->used_bytes(0) == 32 * kMiB);
  for (std::byte* block : blocks) exporter.pool->deallocate(block, exporter.stream);
  CHECK(exporter.pool->allocate(32 * kMiB, exporter.stream));  // fits only when all four are gone
  CHECK(machine->allocations() == 1);

  const std::size_t asked = exporter.runtime->calls(Call::kMalloc);
  const auto refused = exporter.pool->allocate(2 * kMiB, exporter.stream);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kOutOfMemory);
  for (const char* part : {"2.0 MiB", "32.0 MiB in use", "cuda0#1", "GPU-", "1 slabs"}) {
    INFO(refused.error().message);
    CHECK(refused.error().message.find(part) != std::string::npos);
  }
  CHECK(exporter.runtime->calls(Call::kMalloc) - asked == 4);  // an ordinary slab, its size alone, each twice
  CHECK(exporter.pool->stats().in_use_bytes == 32 * kMiB);
  CHECK_FALSE(exporter.health->failed());
}

TEST_CASE("SP-5: memory that waits for a stream is waited for before a request is refused") {
  LetGo late(8 * kMiB);
  Exporter& exporter = late.exporter;
  std::atomic<bool> got{false};
  std::thread waiter([&] { got = exporter.pool->allocate(8 * kMiB, late.other).has_value(); });
  while (exporter.runtime->calls(Call::kEventSynchronize) == 0) std::this_thread::yield();
  CHECK_FALSE(got);
  exporter.runtime->run(exporter.stream);
  waiter.join();
  CHECK(got);
}

TEST_CASE("SP-5: growth stays within memory_limit and the device's reserve, and says which") {
  const auto machine = FakeMachine::create(1, 64 * kMiB);
  SlabPoolOptions options = small_slabs();
  SECTION("limit") {
    options.memory_limit = 12 * kMiB;
    Exporter exporter(machine, options);
    exporter.allocate(8 * kMiB);
    exporter.allocate(4 * kMiB);  // an ordinary slab does not fit any more, a smaller one does
    const auto refused = exporter.pool->allocate(1, exporter.stream);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::kOutOfMemory);
    CHECK(refused.error().message.find("memory_limit 12.0 MiB") != std::string::npos);
    CHECK(machine->used_bytes(0) == 12 * kMiB);
  }
  SECTION("reserve") {
    options.device_reserve = 50 * kMiB;
    Exporter exporter(machine, options);
    exporter.allocate(8 * kMiB);
    const auto refused = exporter.pool->allocate(8 * kMiB, exporter.stream);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::kOutOfMemory);
    CHECK(refused.error().message.find("50.0 MiB kept in reserve") != std::string::npos);
  }
  SECTION("a size beyond all machines") {
    Exporter exporter(machine, options);
    CHECK(code_of(exporter.pool->allocate(SIZE_MAX, exporter.stream)) == ErrorCode::kOutOfMemory);
    CHECK(exporter.runtime->calls(Call::kMalloc) == 0);
  }
}

TEST_CASE("trim leaves spare slabs and gives the rest of a peak back") {
  const auto machine = FakeMachine::create(1, 64 * kMiB);
  SlabPoolOptions options = small_slabs();
  options.spare_bytes = 8 * kMiB;
  Exporter exporter(machine, options);
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(exporter.allocate(8 * kMiB));
  for (std::byte* block : blocks) exporter.pool->deallocate(block, exporter.stream);
  REQUIRE(exporter.pool->trim());
  CHECK(machine->used_bytes(0) == 8 * kMiB);
  CHECK(exporter.pool->stats().peak_bytes == 48 * kMiB);
  REQUIRE(exporter.pool->release_cached());
  CHECK(machine->used_bytes(0) == 0);
}

TEST_CASE("SP-6: a pool whose device failed hands out, reuses and frees nothing, with the first error for all") {
  const auto machine = FakeMachine::create(1, 64 * kMiB);
  Exporter exporter(machine);
  std::byte* const block = exporter.allocate(2 * kMiB);
  std::byte* const free_one = exporter.allocate(2 * kMiB);
  const CudaIpcBlock handle = exporter.lease(block, 64);
  exporter.pool->deallocate(free_one, exporter.stream);
  exporter.runtime->inject(Call::kEventRecord, 700);
  const auto first = exporter.pool->lease(block, 64, kReader, exporter.stream, {});
  REQUIRE_FALSE(first);
  CHECK(first.error().code == ErrorCode::kDeviceFailed);
  CHECK(exporter.pool->allocate(1, exporter.stream).error() == first.error());
  CHECK(exporter.pool->allocate(0, exporter.stream).error() == first.error());
  CHECK(exporter.pool->lease(block, 64, kReader, exporter.stream, {}).error() == first.error());
  CHECK(exporter.pool->trim().error() == first.error());
  CHECK(exporter.pool->release_cached().error() == first.error());
  CHECK(exporter.pool->own_block(handle).error() == first.error());
  CHECK(exporter.pool->release(handle.lease));
  exporter.pool->deallocate(block, exporter.stream);
  const std::size_t freed = exporter.runtime->calls(Call::kFree);
  exporter.pool.reset();
  CHECK(exporter.runtime->calls(Call::kFree) == freed);
  CHECK(machine->allocations() == 1);
}

TEST_CASE("without an event the pool waits, and without that the memory stays taken") {
  const auto machine = FakeMachine::create(1, 64 * kMiB);
  Exporter exporter(machine);
  std::byte* const block = exporter.allocate(8 * kMiB);
  exporter.runtime->inject(Call::kEventCreate, 2);
  const bool waits = GENERATE(true, false);
  if (!waits) exporter.runtime->inject(Call::kStreamSynchronize, 1);
  exporter.pool->deallocate(block, exporter.stream);
  CHECK(exporter.runtime->calls(Call::kStreamSynchronize) == 1);
  REQUIRE(exporter.pool->trim());
  CHECK(exporter.pool->stats().in_use_bytes == (waits ? 0 : 8 * kMiB));
  CHECK(machine->allocations() == (waits ? 0 : 1));
}

TEST_CASE("a block whose stream cannot be asked keeps no other one, and refuses no request") {
  const auto machine = FakeMachine::create(1, 16 * kMiB);
  Exporter exporter(machine);
  Stream other = nullptr;
  REQUIRE(exporter.runtime->stream_create(&other) == kSuccess);
  std::byte* const first = exporter.allocate(8 * kMiB);
  std::byte* const second = exporter.allocate(8 * kMiB);
  exporter.pool->deallocate(first, exporter.stream);
  exporter.pool->deallocate(second, exporter.stream);
  exporter.runtime->inject(Call::kEventQuery, 400, 0, 1'000);
  CHECK_FALSE(exporter.pool->trim());
  exporter.runtime->inject(Call::kEventQuery, 400);
  CHECK(exporter.pool->allocate(8 * kMiB, other).value() == second);
  REQUIRE(exporter.pool->trim());
  CHECK(exporter.pool->stats().in_use_bytes == 8 * kMiB);
}

TEST_CASE("what a captured stream let go comes back when the capture is over, which stays whole") {
  const auto machine = FakeMachine::create(1, 16 * kMiB);
  Exporter exporter(machine);
  std::byte* const block = exporter.allocate(8 * kMiB);
  exporter.runtime->begin_capture(exporter.stream);
  exporter.pool->deallocate(block, exporter.stream);
  REQUIRE(exporter.pool->trim());
  CHECK(exporter.pool->stats().in_use_bytes == 8 * kMiB);
  CHECK(exporter.runtime->end_capture(exporter.stream));
  REQUIRE(exporter.pool->trim());
  CHECK(exporter.pool->stats().in_use_bytes == 0);
}

TEST_CASE("a pool gives all its memory and events back at its end") {
  const auto machine = FakeMachine::create(1, 64 * kMiB);
  Exporter exporter(machine);
  std::byte* const block = exporter.allocate(2 * kMiB);
  exporter.lease(block, 64, std::make_shared<int>(1));
  exporter.pool->deallocate(exporter.allocate(20 * kMiB), exporter.stream);
  exporter.pool.reset();
  CHECK(machine->allocations() == 0);
  CHECK(exporter.runtime->live_events() == 0);
}

TEST_CASE("a device that is not there is named") {
  FakeRuntime runtime(FakeMachine::create(1, kMiB));
  SlabPoolOptions options = small_slabs();
  options.device = 3;
  const auto made = SlabPool::create(runtime, std::make_shared<DeviceHealth>("cuda0#1"), options);
  REQUIRE_FALSE(made);
  CHECK(made.error().code == ErrorCode::kEnvironment);
  CHECK(made.error().message.find("device 3") != std::string::npos);
}

TEST_CASE("SP-1, SP-2: threads that allocate, lease and release never share memory", "[threads]") {
  const auto machine = FakeMachine::create(1, 64 * kMiB);
  Exporter exporter(machine);
  std::atomic<int> wrong{0};
#ifdef CALLBOARD_SANITIZED
  constexpr int kRounds = 60;
#else
  constexpr int kRounds = 400;
#endif
  const auto work = [&](unsigned seed) {
    Stream stream = nullptr;
    if (exporter.runtime->stream_create(&stream) != kSuccess) ++wrong;
    std::mt19937 random(seed);
    const std::string mark(64, static_cast<char>('a' + seed));
    for (int round = 0; round < kRounds; ++round) {
      const auto block = exporter.pool->allocate((1 + random() % 3) * 2 * kMiB, stream);
      if (!block) {
        ++wrong;
        continue;
      }
      std::string source = mark;
      std::string seen(mark.size(), '?');
      if (exporter.runtime->memcpy_async(*block, source.data(), source.size(), stream) != kSuccess) ++wrong;
      const auto handle = exporter.pool->lease(*block, 64, kReader, stream, {});
      exporter.pool->deallocate(*block, stream);
      std::this_thread::yield();
      if (exporter.runtime->memcpy_async(seen.data(), *block, seen.size(), stream) != kSuccess) ++wrong;
      if (exporter.runtime->stream_synchronize(stream) != kSuccess || seen != mark) ++wrong;
      if (!handle || !exporter.pool->release(handle->lease | kKeepsSlabOpen)) ++wrong;
      if (round % 16 == 0 && !exporter.pool->trim()) ++wrong;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(exporter.pool->holder_gone(kReader) > 0);  // its mappings
  REQUIRE(exporter.pool->release_cached());
  CHECK(exporter.pool->stats().in_use_bytes == 0);
  CHECK(machine->allocations() == 0);
}

}  // namespace
}  // namespace callboard::kernels::cuda
