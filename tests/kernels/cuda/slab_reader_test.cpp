#include "kernels/cuda/slab_reader.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "tests/kernels/cuda/pair.h"

namespace callboard::kernels::cuda {
namespace {

using namespace testing;

const std::string kOld(64, 'o');
const std::string kNew(64, 'n');

/// An exporter with one block, and a reader.
struct Exchange {
  explicit Exchange(SlabReaderOptions options = {})
      : exporter(machine), reader(machine, exporter, std::move(options)), block(exporter.allocate(2 * kMiB)) {
    exporter.runtime->write(block, kOld);
  }
  Result<std::shared_ptr<ReadableBlock>> open(const CudaIpcBlock& handle) {
    return reader.reader->open(handle, reader.stream);
  }
  std::shared_ptr<ReadableBlock> opened(const CudaIpcBlock& handle) {
    auto result = open(handle);
    REQUIRE(result);
    return *result;
  }
  CudaIpcBlock lease() { return exporter.lease(block, kOld.size()); }

  std::shared_ptr<FakeMachine> machine = FakeMachine::create(2, 64 * kMiB);
  Exporter exporter;
  Reader reader;
  std::byte* block;
};

TEST_CASE("SR-1, R11: what a reader's stream does waits for the writer, with every open") {
  Exchange exchange;
  for (int round = 0; round < 3; ++round) {  // the slab and then the event are open already
    const std::string text(64, static_cast<char>('0' + round));
    exchange.exporter.runtime->hold(exchange.exporter.stream);
    exchange.exporter.fill(exchange.block, text);
    const auto block = exchange.opened(exchange.lease());
    std::string seen(64, '?');
    REQUIRE(exchange.reader.runtime->memcpy_async(seen.data(), block->data(), 64, exchange.reader.stream) == kSuccess);
    CHECK(exchange.reader.runtime->queued(exchange.reader.stream) == 2);
    exchange.exporter.runtime->run(exchange.exporter.stream);
    REQUIRE(exchange.reader.runtime->stream_synchronize(exchange.reader.stream) == kSuccess);
    CHECK(seen == text);
    REQUIRE(block->check());
  }
  CHECK(exchange.reader.runtime->calls(Call::kIpcOpenMemory) == 1);
  CHECK(exchange.reader.runtime->calls(Call::kIpcOpenEvent) == 1);
}

TEST_CASE("SR-1: a second stream that reads waits too") {
  Exchange exchange;
  Stream other = nullptr;
  REQUIRE(exchange.reader.runtime->stream_create(&other) == kSuccess);
  exchange.exporter.runtime->hold(exchange.exporter.stream);
  exchange.exporter.fill(exchange.block, kNew);
  const auto block = exchange.opened(exchange.lease());
  REQUIRE(block->used_on(other));
  std::string seen(64, '?');
  REQUIRE(exchange.reader.runtime->memcpy_async(seen.data(), block->data(), 64, other) == kSuccess);
  exchange.exporter.runtime->run(exchange.exporter.stream);
  REQUIRE(exchange.reader.runtime->stream_synchronize(other) == kSuccess);
  CHECK(seen == kNew);
}

TEST_CASE("SR-2: a lease ends when the reads of all streams are done, not when its block goes") {
  Exchange exchange;
  Stream other = nullptr;
  REQUIRE(exchange.reader.runtime->stream_create(&other) == kSuccess);
  const CudaIpcBlock handle = exchange.lease();
  auto block = exchange.opened(handle);
  REQUIRE(block->used_on(other));
  exchange.reader.runtime->hold(exchange.reader.stream);
  exchange.reader.runtime->hold(other);
  std::string seen(64, '?');
  REQUIRE(exchange.reader.runtime->memcpy_async(seen.data(), block->data(), 64, other) == kSuccess);
  block.reset();
  CHECK(exchange.reader.reader->pending());
  CHECK(exchange.reader.reader->stats().releasing == 1);
  exchange.reader.runtime->run(exchange.reader.stream);
  REQUIRE(exchange.reader.reader->poll(Clock::now()));
  CHECK(exchange.reader.released.empty());
  exchange.exporter.pool->deallocate(exchange.block, exchange.exporter.stream);
  CHECK(exchange.exporter.allocate(2 * kMiB) != exchange.block);  // still being read
  exchange.reader.runtime->run(other);
  REQUIRE(exchange.reader.reader->poll(Clock::now()));
  CHECK(seen == kOld);
  CHECK(exchange.reader.released == std::vector<LeaseId>{handle.lease});
  CHECK(exchange.reader.reader->stats().releasing == 0);
}

TEST_CASE("SR-2: a block whose reads cannot be asked for keeps no other one") {
  Exchange exchange;
  auto one = exchange.opened(exchange.lease());
  auto two = exchange.opened(exchange.lease());
  exchange.reader.runtime->hold(exchange.reader.stream);
  one.reset();
  two.reset();
  exchange.reader.runtime->run(exchange.reader.stream);
  exchange.reader.runtime->inject(Call::kEventQuery, 400);  // of whichever comes first
  const Status told = exchange.reader.reader->poll(Clock::now());
  REQUIRE_FALSE(told);
  CHECK(told.error().message.find("cudaEventQuery") != std::string::npos);
  CHECK(exchange.reader.released.size() == 1);
  REQUIRE(exchange.reader.reader->poll(Clock::now()));
  CHECK(exchange.reader.released.size() == 2);
}

TEST_CASE("SR-2: a captured stream is asked when the capture is over, which stays whole and keeps no other stream") {
  Exchange exchange;
  FakeRuntime& runtime = *exchange.reader.runtime;
  Stream other = nullptr;
  REQUIRE(runtime.stream_create(&other) == kSuccess);
  auto block = exchange.opened(exchange.lease());
  auto beside = exchange.reader.reader->open(exchange.lease(), other).value();
  runtime.begin_capture(exchange.reader.stream);
  block.reset();
  beside.reset();
  CHECK(exchange.reader.released.size() == 1);
  REQUIRE(exchange.reader.reader->poll(Clock::now()));
  CHECK(exchange.reader.reader->stats().releasing == 1);
  CHECK(runtime.end_capture(exchange.reader.stream));
  REQUIRE(exchange.reader.reader->poll(Clock::now()));
  CHECK(exchange.reader.released.size() == 2);
}

TEST_CASE("SR-2: an event that a capture took after all is recorded again") {
  Exchange exchange;
  auto block = exchange.opened(exchange.lease());
  exchange.reader.runtime->inject(Call::kEventQuery, 907);
  block.reset();
  CHECK(exchange.reader.released.empty());
  CHECK(exchange.reader.runtime->calls(Call::kEventRecord) == 1);
  REQUIRE(exchange.reader.reader->poll(Clock::now()));
  CHECK(exchange.reader.runtime->calls(Call::kEventRecord) == 2);
  CHECK(exchange.reader.released.size() == 1);
}

TEST_CASE("two devices: each has its own events, and its slabs are closed with it current") {
  const auto machine = FakeMachine::create(2, 64 * kMiB);
  std::vector<std::unique_ptr<Exporter>> exporters;
  for (int i = 0; i < 2; ++i) {
    SlabPoolOptions options = small_slabs();
    options.owner = {"cuda" + std::to_string(i), 1};
    exporters.push_back(std::make_unique<Exporter>(machine, options, std::vector<int>{i}));
  }
  Side client(machine);
  std::vector<Stream> streams{client.stream, nullptr};
  REQUIRE(client.runtime->set_device(1) == kSuccess);
  REQUIRE(client.runtime->stream_create(&streams[1]) == kSuccess);
  REQUIRE(client.runtime->set_device(0) == kSuccess);
  SlabReaderOptions options;
  options.self = {"client", 1};
  auto reader = SlabReader::create(*client.runtime, client.health, options, [&](const ActorId& owner, LeaseId lease) {
                  exporters[owner.name == "cuda1" ? 1 : 0]->pool->release(lease);
                }).value();
  for (int round = 0; round < 4; ++round) {
    for (std::size_t i = 0; i < 2; ++i) {
      const auto block = reader->open(exporters[i]->lease(exporters[i]->allocate(2 * kMiB), 64), streams[i]);
      INFO((block ? "" : block.error().to_string()));
      REQUIRE(block);
      CHECK((*block)->device() == static_cast<int>(i));
    }
  }
  CHECK(client.runtime->calls(Call::kStreamSynchronize) == 0);
  REQUIRE(reader->poll(Clock::now() + std::chrono::seconds(6)));
  CHECK(client.runtime->open_mappings() == 0);
  for (const auto& exporter : exporters) {
    CHECK(exporter->pool->stats().leases == 0);
    CHECK(exporter->pool->stats().mappings == 0);
  }
  int now = -1;
  REQUIRE(client.runtime->get_device(&now) == kSuccess);
  CHECK(now == 0);
}

TEST_CASE("SR-3: an idle slab stays open for a while and is closed before its mapping's lease ends") {
  Exchange exchange;
  const CudaIpcBlock handle = exchange.lease();
  exchange.opened(handle).reset();
  REQUIRE(exchange.reader.reader->poll(Clock::now()));
  CHECK(exchange.reader.runtime->open_mappings() == 1);
  CHECK(exchange.reader.reader->stats().open_slabs == 1);
  CHECK(exchange.reader.reader->stats().open_bytes == 8 * kMiB);
  exchange.exporter.pool->deallocate(exchange.block, exchange.exporter.stream);
  REQUIRE(exchange.exporter.pool->release_cached());
  CHECK(exchange.machine->allocations() == 1);
  CHECK(exchange.reader.reader->pending());
  REQUIRE(exchange.reader.reader->poll(Clock::now() + std::chrono::seconds(6)));
  CHECK(exchange.reader.runtime->open_mappings() == 0);
  CHECK(exchange.reader.released == std::vector<LeaseId>{handle.lease, handle.mapping});
  CHECK_FALSE(exchange.reader.reader->pending());
  REQUIRE(exchange.exporter.pool->release_cached());
  CHECK(exchange.machine->allocations() == 0);
  CHECK(exchange.machine->violations() == 0);
}

TEST_CASE("SR-3: a handle on its way while its mapping's lease ends is closed with its last block") {
  Exchange exchange;
  const CudaIpcBlock first = exchange.lease();
  const CudaIpcBlock late = exchange.lease();
  CHECK(late.mapping == first.mapping);
  exchange.opened(first).reset();
  REQUIRE(exchange.reader.reader->poll(Clock::now() + std::chrono::seconds(6)));
  CHECK(exchange.exporter.pool->stats().mappings == 0);
  auto block = exchange.opened(late);
  CHECK(exchange.reader.read(*block) == kOld);
  exchange.exporter.pool->deallocate(exchange.block, exchange.exporter.stream);
  block.reset();
  REQUIRE(exchange.reader.reader->poll(Clock::now()));
  CHECK(exchange.reader.runtime->open_mappings() == 0);
  REQUIRE(exchange.exporter.pool->release_cached());
  CHECK(exchange.machine->allocations() == 0);
  CHECK(exchange.machine->violations() == 0);

  // What is granted after that is trusted again.
  exchange.block = exchange.exporter.allocate(2 * kMiB);
  const CudaIpcBlock next = exchange.lease();
  exchange.opened(next).reset();
  REQUIRE(exchange.reader.reader->poll(Clock::now()));
  CHECK(exchange.reader.runtime->open_mappings() == 1);
}

TEST_CASE("SP-3, SR-3: with every lease that a reader gives back the exporter knows whether the slab stays open") {
  SlabReaderOptions options;
  options.idle_slabs_max = 0;  // closed as soon as nothing of it is held
  Exchange keeps;
  Exchange closes(options);
  for (Exchange* exchange : {&keeps, &closes}) {
    const bool stays = exchange == &keeps;
    auto first = exchange->opened(exchange->lease());
    exchange->opened(exchange->lease()).reset();
    REQUIRE(exchange->reader.reader->poll(Clock::now()));
    CHECK(exchange->exporter.pool->stats().mappings == 1);
    // One that somebody else gives back for the reader changes nothing.
    CHECK(exchange->exporter.pool->release(exchange->lease().lease));
    CHECK(exchange->exporter.pool->stats().mappings == 1);
    first.reset();
    REQUIRE(exchange->reader.reader->poll(Clock::now()));
    CHECK(exchange->reader.runtime->open_mappings() == (stays ? 1 : 0));
    CHECK(exchange->exporter.pool->stats().mappings == (stays ? 1 : 0));
    exchange->exporter.pool->deallocate(exchange->block, exchange->exporter.stream);
    REQUIRE(exchange->exporter.pool->release_cached());
    CHECK(exchange->machine->allocations() == (stays ? 1 : 0));
    CHECK(exchange->machine->violations() == 0);
  }
}

TEST_CASE("SR-3: a slab that cannot be closed keeps its mapping's lease, and is tried again") {
  Exchange exchange;
  exchange.opened(exchange.lease()).reset();
  exchange.exporter.pool->deallocate(exchange.block, exchange.exporter.stream);
  exchange.reader.runtime->inject(Call::kIpcCloseMemory, 1);
  const Status refused = exchange.reader.reader->poll(Clock::now() + std::chrono::seconds(6));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.find("cudaIpcCloseMemHandle") != std::string::npos);
  REQUIRE(exchange.exporter.pool->release_cached());
  CHECK(exchange.machine->allocations() == 1);
  REQUIRE(exchange.reader.reader->poll(Clock::now() + std::chrono::seconds(6)));
  REQUIRE(exchange.exporter.pool->release_cached());
  CHECK(exchange.machine->allocations() == 0);
  CHECK(exchange.machine->violations() == 0);
}

TEST_CASE("SR-3, SR-4: with a slab that cannot be closed its last block's lease waits, and is given back after it") {
  SlabReaderOptions options;
  options.idle_slabs_max = 0;
  Exchange exchange(options);
  auto block = exchange.opened(exchange.lease());
  exchange.reader.runtime->inject(Call::kIpcCloseMemory, 1);
  block.reset();
  CHECK(exchange.reader.runtime->open_mappings() == 1);
  CHECK(exchange.reader.released.empty());
  CHECK(exchange.reader.reader->pending());
  REQUIRE(exchange.reader.reader->poll(Clock::now()));
  CHECK(exchange.reader.runtime->open_mappings() == 0);
  CHECK(exchange.exporter.pool->stats().leases == 0);
  CHECK(exchange.exporter.pool->stats().mappings == 0);
}

TEST_CASE("an untrusted mapping is kept once a handle brings a lease that stands") {
  Exchange exchange;
  const CudaIpcBlock first = exchange.lease();
  const CudaIpcBlock late = exchange.lease();
  exchange.opened(first).reset();
  REQUIRE(exchange.reader.reader->poll(Clock::now() + std::chrono::seconds(6)));
  auto untrusted = exchange.opened(late);
  const CudaIpcBlock fresh = exchange.lease();
  CHECK(fresh.mapping > late.mapping);
  exchange.opened(fresh).reset();
  untrusted.reset();
  REQUIRE(exchange.reader.reader->poll(Clock::now()));
  CHECK(exchange.reader.runtime->open_mappings() == 1);
  CHECK(exchange.exporter.pool->stats().mappings == 1);
}

TEST_CASE("idle slabs and opened events are bounded") {
  SlabReaderOptions options;
  options.idle_slabs_max = 2;
  options.events_max = 3;
  Exchange exchange(options);
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 5; ++i) blocks.push_back(exchange.exporter.allocate(8 * kMiB));
  std::vector<std::shared_ptr<ReadableBlock>> open;
  for (std::byte* block : blocks) open.push_back(exchange.opened(exchange.exporter.lease(block, 64)));
  CHECK(exchange.reader.runtime->open_mappings() == 5);
  CHECK(exchange.reader.reader->stats().opened_events == 5);
  CHECK(exchange.reader.reader->stats().blocks == 5);
  open.clear();
  REQUIRE(exchange.reader.reader->poll(Clock::now()));
  CHECK(exchange.reader.runtime->open_mappings() == 2);
  CHECK(exchange.reader.reader->stats().opened_events <= 3);
  CHECK(exchange.exporter.pool->stats().mappings == 2);
}

TEST_CASE("SR-4: a lease is released once, also when its handle cannot be used") {
  Exchange exchange;
  CudaIpcBlock handle = exchange.lease();
  ErrorCode expected = ErrorCode::kMalformed;
  SECTION("it reaches past the slab") { handle.bytes = 8 * kMiB - handle.offset + 1; }
  SECTION("it begins past the slab") { handle.offset = 9 * kMiB; }
  SECTION("its end overflows") {
    handle.offset = 64;
    handle.bytes = UINT64_MAX - 32;
  }
  SECTION("its handles are cut") { handle.handles.resize(100); }
  SECTION("its memory is not there") {
    handle.handles[CudaIpcBlock::kUuidBytes] ^= 1;
    expected = ErrorCode::kTensorLost;
  }
  SECTION("its event is not there") {
    handle.handles[CudaIpcBlock::kUuidBytes + CudaIpcBlock::kHandleBytes] ^= 1;
    expected = ErrorCode::kTensorLost;
  }
  SECTION("its device is not visible here") {
    handle.handles[0] ^= 1;
    expected = ErrorCode::kUnsupported;
  }
  const auto opened = exchange.open(handle);
  REQUIRE_FALSE(opened);
  INFO(opened.error().to_string());
  CHECK(opened.error().code == expected);
  CHECK(std::count(exchange.reader.released.begin(), exchange.reader.released.end(), handle.lease) == 1);
  CHECK(exchange.exporter.pool->stats().leases == 0);
  // The books hold what is open here, no more and no less.
  CHECK(exchange.exporter.pool->stats().mappings == exchange.reader.runtime->open_mappings());
  REQUIRE(exchange.reader.reader->poll(Clock::now() + std::chrono::seconds(6)));
  CHECK(exchange.reader.runtime->open_mappings() == 0);
  CHECK(exchange.exporter.pool->stats().mappings == 0);
}

TEST_CASE("SR-5, R5: blocks of an exporter that died are lost, open ones too, and nothing stays open") {
  Exchange exchange;
  auto block = exchange.opened(exchange.lease());
  const CudaIpcBlock later = exchange.lease();
  REQUIRE(block->check());
  exchange.exporter.runtime->die();
  std::string seen(64, '?');
  REQUIRE(exchange.reader.runtime->memcpy_async(seen.data(), block->data(), 64, exchange.reader.stream) == kSuccess);
  REQUIRE(exchange.reader.runtime->stream_synchronize(exchange.reader.stream) == kSuccess);
  CHECK(seen != kOld);  // what the reader would have shown

  SECTION("opening is refused by the driver before anybody says so") {
    CudaIpcBlock elsewhere = later;
    elsewhere.slab += 1;
    CHECK(code_of(exchange.open(elsewhere)) == ErrorCode::kTensorLost);
  }
  exchange.reader.released.clear();
  exchange.reader.reader->owner_gone(kExporter);
  CHECK(code_of(block->check()) == ErrorCode::kTensorLost);
  CHECK(code_of(block->used_on(exchange.reader.stream)) == ErrorCode::kTensorLost);
  const auto refused = exchange.open(later);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kTensorLost);
  CHECK(refused.error().message.find("cuda0#1") != std::string::npos);
  block.reset();
  REQUIRE(exchange.reader.reader->poll(Clock::now()));
  CHECK(exchange.reader.runtime->open_mappings() == 0);
  CHECK(exchange.reader.reader->stats().opened_events == 0);
  CHECK(exchange.reader.released.empty());
  CHECK_FALSE(exchange.reader.reader->pending());
}

TEST_CASE("the next incarnation of an exporter is another owner") {
  Exchange exchange;
  exchange.reader.reader->owner_gone({"cuda0", 7});
  CHECK(exchange.open(exchange.lease()));
}

TEST_CASE("a handle of our own is an address, with the same order and lease") {
  const auto machine = FakeMachine::create(1, 64 * kMiB);
  Exporter exporter(machine);
  std::vector<LeaseId> released;
  SlabReaderOptions options;
  options.self = kExporter;
  options.device = 0;
  options.own_block = [&](const CudaIpcBlock& block) { return exporter.pool->own_block(block); };
  const auto reader =
      SlabReader::create(*exporter.runtime, exporter.health, options, [&](const ActorId&, LeaseId lease) {
        released.push_back(lease);
        exporter.pool->release(lease);
      });
  REQUIRE(reader);
  Stream other = nullptr;
  REQUIRE(exporter.runtime->stream_create(&other) == kSuccess);
  std::byte* const memory = exporter.allocate(2 * kMiB);
  exporter.runtime->hold(exporter.stream);
  exporter.fill(memory, kNew);
  CudaIpcBlock handle = exporter.lease(memory + 128, 64, {}, kExporter);
  auto block = (*reader)->open(handle, other);
  REQUIRE(block);
  CHECK((*block)->own());
  CHECK((*block)->same_device());
  CHECK((*block)->data() == memory + 128);
  CHECK(exporter.runtime->queued(other) == 1);
  exporter.runtime->run(exporter.stream);
  CHECK(exporter.runtime->queued(other) == 0);
  block->reset();
  CHECK(released == std::vector<LeaseId>{handle.lease});
  CHECK(exporter.pool->stats().mappings == 0);  // nothing was opened
  CHECK(exporter.runtime->calls(Call::kIpcOpenMemory) == 0);
  CHECK(code_of((*reader)->open(handle, other)) == ErrorCode::kTensorLost);
  handle = exporter.lease(memory, 64, {}, kExporter);
  handle.bytes = 9 * kMiB;
  CHECK(code_of((*reader)->open(handle, other)) == ErrorCode::kMalformed);
}

TEST_CASE("devices are told by uuid, whatever number they have on either side") {
  const auto machine = FakeMachine::create(3, 32 * kMiB);
  Exporter exporter(machine, small_slabs(), {2});
  Reader client(machine, exporter, {}, {1, 2, 0});
  std::byte* const memory = exporter.allocate(2 * kMiB);
  exporter.runtime->write(memory, kNew);
  const auto block = client.reader->open(exporter.lease(memory, 64), client.stream);
  REQUIRE(block);
  CHECK((*block)->device() == 1);
  CHECK((*block)->same_device());
  CHECK(client.reader->visible(machine->uuid(2)) == 1);
  CHECK(client.reader->visible(machine->uuid(0)) == 2);

  Reader blind(machine, exporter, {}, {0});
  CHECK_FALSE(blind.reader->visible(machine->uuid(2)));
  const auto refused = blind.reader->open(exporter.lease(memory, 64), blind.stream);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kUnsupported);
  CHECK(refused.error().message.find("GPU-43434343") != std::string::npos);
}

TEST_CASE("another device's memory is read across where the devices reach each other, else host copies are named") {
  const auto machine = FakeMachine::create(2, 32 * kMiB);
  const bool visible = GENERATE(true, false);
  const bool reach = GENERATE(true, false);
  machine->set_peer_access(1, 0, reach);
  Exporter exporter(machine, small_slabs(), {0});
  SlabReaderOptions options;
  options.device = visible ? 1 : 0;
  Reader reader(machine, exporter, options, visible ? std::vector<int>{0, 1} : std::vector<int>{1});
  std::byte* const memory = exporter.allocate(2 * kMiB);
  exporter.runtime->write(memory, kNew);
  const auto block = reader.reader->open(exporter.lease(memory, 64), reader.stream);
  if (reach) {
    REQUIRE(block);
    CHECK_FALSE((*block)->same_device());
    CHECK((*block)->device() == options.device);
    CHECK(reader.read(**block) == kNew);
  } else {
    REQUIRE_FALSE(block);
    CHECK(block.error().code == ErrorCode::kUnsupported);
    CHECK(block.error().hint.find("host memory") != std::string::npos);
    CHECK(exporter.pool->stats().leases == 0);
  }
}

TEST_CASE("blocks may outlive their reader; the last one waits for its reads and closes all") {
  const auto machine = FakeMachine::create(1, 64 * kMiB);
  Exporter exporter(machine);
  Reader reader(machine, exporter);
  std::byte* const memory = exporter.allocate(2 * kMiB);
  auto block = *reader.reader->open(exporter.lease(memory, 64), reader.stream);
  reader.reader.reset();
  CHECK(reader.runtime->open_mappings() == 1);
  CHECK(reader.released.empty());
  reader.runtime->hold(reader.stream);
  std::string seen(64, '?');
  REQUIRE(reader.runtime->memcpy_async(seen.data(), block->data(), 64, reader.stream) == kSuccess);
  std::thread last([&] { block.reset(); });
  while (reader.runtime->calls(Call::kEventSynchronize) == 0) std::this_thread::yield();
  CHECK(exporter.pool->stats().leases == 1);
  reader.runtime->run(reader.stream);
  last.join();
  CHECK(reader.released.size() == 2);
  CHECK(reader.runtime->open_mappings() == 0);
  CHECK(reader.runtime->live_events() == 0);
  CHECK(exporter.pool->stats().leases == 0);
  CHECK(exporter.pool->stats().mappings == 0);
}

TEST_CASE("SR-4, R85: after a sticky error nothing is opened and nothing released") {
  Exchange exchange;
  auto block = exchange.opened(exchange.lease());
  exchange.reader.runtime->fail_device(719);
  CHECK(code_of(exchange.open(exchange.lease())) == ErrorCode::kDeviceFailed);
  CHECK(code_of(block->check()) == ErrorCode::kDeviceFailed);
  CHECK(code_of(block->used_on(exchange.reader.stream)) == ErrorCode::kDeviceFailed);
  block.reset();
  CHECK(code_of(exchange.reader.reader->poll(Clock::now())) == ErrorCode::kDeviceFailed);
  exchange.reader.reader.reset();
  CHECK(exchange.reader.released.empty());
  CHECK(exchange.exporter.pool->stats().leases == 2);
  CHECK(exchange.exporter.pool->holder_gone(kReader) == 3);  // the end of its process
}

TEST_CASE("without an event a reader waits, and without that its lease stays") {
  Exchange exchange;
  auto block = exchange.opened(exchange.lease());
  const bool waits = GENERATE(true, false);
  exchange.reader.runtime->inject(Call::kEventCreate, 2);
  if (!waits) exchange.reader.runtime->inject(Call::kStreamSynchronize, 1);
  block.reset();
  REQUIRE(exchange.reader.reader->poll(Clock::now() + std::chrono::seconds(6)));
  CHECK(exchange.reader.runtime->calls(Call::kStreamSynchronize) == 1);
  CHECK(exchange.exporter.pool->stats().leases == (waits ? 0 : 1));
  CHECK(exchange.reader.runtime->open_mappings() == (waits ? 0 : 1));
}

TEST_CASE("a reader's device must be visible") {
  FakeRuntime runtime(FakeMachine::create(1, kMiB));
  SlabReaderOptions options;
  options.device = 4;
  const auto made = SlabReader::create(runtime, std::make_shared<DeviceHealth>("cuda1#1"), options, {});
  REQUIRE_FALSE(made);
  CHECK(made.error().code == ErrorCode::kEnvironment);
}

TEST_CASE("R13, R36: threads that export, open, read and drop see only what was written", "[threads]") {
  const auto machine = FakeMachine::create(1, 64 * kMiB);
  Exporter exporter(machine);
  SlabReaderOptions options;
  options.idle_slabs_max = 1;
  options.events_max = 4;
  options.idle_slab_time = std::chrono::milliseconds(1);
  Side side(machine);
  options.self = kReader;
  const auto reader = SlabReader::create(*side.runtime, side.health, options,
                                         [&](const ActorId&, LeaseId lease) { exporter.pool->release(lease); });
  REQUIRE(reader);
  std::atomic<int> wrong{0};
#ifdef CALLBOARD_SANITIZED
  constexpr int kRounds = 50;
#else
  constexpr int kRounds = 300;
#endif
  const auto work = [&](char seed) {
    Stream writing = nullptr;
    Stream reading = nullptr;
    if (exporter.runtime->stream_create(&writing) != kSuccess) ++wrong;
    if (side.runtime->stream_create(&reading) != kSuccess) ++wrong;
    for (int round = 0; round < kRounds; ++round) {
      const std::string mark(64, static_cast<char>(seed + round % 16));
      std::string seen(64, '?');
      const auto memory = exporter.pool->allocate((round % 5 == 0 ? 9 : 2) * kMiB, writing);
      if (!memory) {
        ++wrong;
        continue;
      }
      if (exporter.runtime->memcpy_async(*memory, mark.data(), 64, writing) != kSuccess) ++wrong;
      const auto handle = exporter.pool->lease(*memory, 64, kReader, writing, {});
      exporter.pool->deallocate(*memory, writing);
      auto block = (*reader)->open(*handle, reading);
      if (!block || side.runtime->memcpy_async(seen.data(), (*block)->data(), 64, reading) != kSuccess) ++wrong;
      if (block) block->reset();
      if (side.runtime->stream_synchronize(reading) != kSuccess || seen != mark) ++wrong;
      if (!(*reader)->poll(Clock::now())) ++wrong;
      if (round % 8 == 0 && !exporter.pool->trim()) ++wrong;
    }
  };
  std::vector<std::thread> threads;
  for (const char seed : {'A', 'Q', 'a', 'q'}) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  REQUIRE((*reader)->poll(Clock::now() + std::chrono::seconds(1)));
  CHECK(exporter.pool->stats().leases == 0);
  CHECK(exporter.pool->stats().mappings == 0);
  REQUIRE(exporter.pool->release_cached());
  CHECK(machine->allocations() == 0);
  CHECK(machine->violations() == 0);
}

}  // namespace
}  // namespace callboard::kernels::cuda
