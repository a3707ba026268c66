#include "kernels/cuda/gpu_results.h"

#include <atomic>
#include <mutex>
#include <thread>

#include "tests/kernels/cuda/pair.h"

namespace callboard::kernels::cuda {
namespace {

using namespace testing;

const ActorId kClient{"client", 1};
const std::string kResult(64, 'r');

/// A device that left a result on its GPU, and a client with a runtime of its own.
struct LeftResult {
  explicit LeftResult(std::vector<int> visible = {}, SlabPoolOptions slabs = small_slabs())
      : machine(FakeMachine::create(2, 64 * kMiB)),
        exporter(machine, std::move(slabs)),
        client(machine, std::move(visible)) {
    auto made = GpuResults::create(*client.runtime, kClient, [this](const ActorId& owner, LeaseId lease) {
      if (owner == kExporter && exporter.pool->release(lease)) ++released;  // on a thread that must not assert
    });
    REQUIRE(made);
    results = std::move(*made);
  }
  CudaIpcBlock leave(const std::string& bytes = kResult) {
    std::byte* const memory = exporter.allocate(2 * kMiB);
    exporter.fill(memory, bytes);
    const CudaIpcBlock block = exporter.lease(memory, bytes.size(), {}, kClient);
    exporter.pool->deallocate(memory, exporter.stream);
    return block;
  }
  /// The thread that ends leases is given time to do so.
  void wait_for_releases(int count) {
    const TimePoint deadline = Clock::now() + std::chrono::seconds(20);
    while (released < count && Clock::now() < deadline) std::this_thread::yield();
    CHECK(released == count);
  }

  std::shared_ptr<FakeMachine> machine;
  Exporter exporter;
  Side client;
  std::atomic<int> released{0};
  std::unique_ptr<GpuResults> results;
};

TEST_CASE("a client reads a result where it lies, behind its writer, and the lease ends behind the reads") {
  LeftResult left;
  left.exporter.runtime->hold(left.exporter.stream);
  auto opened = left.results->open(left.leave());
  REQUIRE(opened);
  CHECK(opened->memory->ordinal() == 0);
  REQUIRE(opened->memory->use_on(left.client.stream));
  std::string seen(kResult.size(), '?');
  REQUIRE(left.client.runtime->memcpy_async(seen.data(), opened->data, seen.size(), left.client.stream) == kSuccess);
  opened->memory.reset();
  CHECK(left.released == 0);  // neither written nor read yet
  left.exporter.runtime->run(left.exporter.stream);
  REQUIRE(left.client.runtime->stream_synchronize(left.client.stream) == kSuccess);
  CHECK(seen == kResult);
  left.wait_for_releases(1);
  CHECK(left.exporter.pool->stats().leases == 0);
}

TEST_CASE("a result that nobody reads costs no stream anything, and its lease ends with it") {
  LeftResult left;
  left.exporter.runtime->hold(left.exporter.stream);
  auto opened = left.results->open(left.leave());
  REQUIRE(opened);
  opened->memory.reset();
  left.wait_for_releases(1);
  left.exporter.runtime->run(left.exporter.stream);
}

TEST_CASE("slabs that were opened for handles that are no good are closed, too") {
  SlabPoolOptions slabs = small_slabs();
  slabs.slab_bytes = 2 * kMiB;  // one result each
  LeftResult left({}, slabs);
  constexpr std::size_t kKept = 16;  // SlabReaderOptions::idle_slabs_max
  for (std::size_t i = 0; i < kKept + 4; ++i) {
    CudaIpcBlock handle = left.exporter.lease(left.exporter.allocate(2 * kMiB), 64, {}, kClient);
    handle.offset = 3 * kMiB;
    CHECK(code_of(left.results->open(handle)) == ErrorCode::kMalformed);
  }
  const TimePoint deadline = Clock::now() + std::chrono::seconds(20);
  while (left.client.runtime->open_mappings() > kKept && Clock::now() < deadline) std::this_thread::yield();
  CHECK(left.client.runtime->open_mappings() == kKept);
}

TEST_CASE("the thread that ends leases breaks no capture of others") {
  LeftResult left;
  FakeRuntime& runtime = *left.client.runtime;
  Stream capturing = nullptr;
  REQUIRE(runtime.stream_create(&capturing) == kSuccess);
  auto opened = left.results->open(left.leave());
  REQUIRE(opened);
  REQUIRE(opened->memory->use_on(left.client.stream));
  runtime.hold(left.client.stream);
  std::string seen(kResult.size(), '?');
  REQUIRE(runtime.memcpy_async(seen.data(), opened->data, seen.size(), left.client.stream) == kSuccess);
  runtime.begin_capture(capturing);
  opened->memory.reset();
  const std::size_t asked = runtime.calls(Call::kEventQuery);
  const TimePoint deadline = Clock::now() + std::chrono::seconds(20);
  while (runtime.calls(Call::kEventQuery) < asked + 3 && Clock::now() < deadline) std::this_thread::yield();
  CHECK(runtime.calls(Call::kEventQuery) >= asked + 3);
  CHECK(runtime.end_capture(capturing));
  runtime.run(left.client.stream);
  left.wait_for_releases(1);
}

TEST_CASE("the client's end gives everything back, also for its slabs") {
  LeftResult left;
  auto opened = left.results->open(left.leave());
  REQUIRE(opened);
  opened->memory.reset();
  left.results.reset();
  CHECK(left.exporter.pool->stats().leases == 0);
  CHECK(left.exporter.pool->stats().mappings == 0);
  CHECK(left.client.runtime->open_mappings() == 0);
  CHECK(left.machine->violations() == 0);
}

TEST_CASE("R5: a result whose maker has ended is lost before it is read, and when it is checked after") {
  LeftResult left;
  auto opened = left.results->open(left.leave());
  REQUIRE(opened);
  REQUIRE(opened->memory->use_on(left.client.stream));
  REQUIRE(opened->memory->check());
  left.exporter.runtime->die();
  left.results->owner_gone(kExporter);
  CHECK(code_of(opened->memory->check()) == ErrorCode::kTensorLost);
  CHECK(code_of(opened->memory->use_on(left.client.stream)) == ErrorCode::kTensorLost);
}

TEST_CASE("a GPU that the client does not see is refused by its number, and the lease ends") {
  LeftResult left({1});
  const auto refused = left.results->open(left.leave());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kUnsupported);
  CHECK(refused.error().message.find(left.machine->uuid(0).to_string()) != std::string::npos);
  CHECK(left.released == 1);
}

TEST_CASE("the visible GPUs are told by their numbers, and why there are none") {
  const auto machine = FakeMachine::create(2, kMiB);
  FakeRuntime both(machine);
  FakeRuntime second(machine, {1});
  CHECK(visible_gpus(both).value() ==
        std::vector<std::string>{machine->uuid(0).to_string(), machine->uuid(1).to_string()});
  CHECK(visible_gpus(second).value() == std::vector<std::string>{machine->uuid(1).to_string()});
  both.inject(Call::kDeviceCount, 35);  // cudaErrorInsufficientDriver
  const auto none = visible_gpus(both);
  REQUIRE_FALSE(none);
  CHECK(none.error().code == ErrorCode::kEnvironment);
  CHECK(none.error().message.find("cudaErrorInsufficientDriver") != std::string::npos);
}

}  // namespace
}  // namespace callboard::kernels::cuda
