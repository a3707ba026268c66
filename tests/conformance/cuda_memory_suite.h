// What handing CUDA memory from one process to another must hold to, over any RuntimeTable. A test file gives
// `std::optional<World> make_world()`: nothing where there is no such device, after it has said so.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/cuda/helper_room.h"
#include "kernels/cuda/slab_reader.h"
#include "kernels/cuda/transport_test.h"
#include "tests/conformance/cuda_memory_text.h"
#include "tests/kernels/memory/peer_process.h"
#include "tests/support/test.h"

namespace callboard::kernels::cuda::conformance {

struct World {
  RuntimeTable* runtime = nullptr;
  std::vector<std::string> peer;  ///< command line of the exporter
  std::function<void(int process)> after_kill = {};
  std::shared_ptr<void> keep = {};
};

/// This process reads, another one exports.
class Exchange {
 public:
  explicit Exchange(const World& world) : world_(world), peer_(world.peer) {
    const std::string hello = peer_.ask("hello");
    INFO(hello);
    REQUIRE(hello.rfind("ok ", 0) == 0);
    process_ = std::stoi(hello.substr(3));
    SlabReaderOptions options;
    options.self = kReader;
    auto made = SlabReader::create(*world_.runtime, health, options, [this](const ActorId&, LeaseId lease) {
      if (alive_) REQUIRE(peer_.ask("release " + std::to_string(lease)) == "ended");
    });
    REQUIRE(made);
    reader = std::move(*made);
    REQUIRE(world_.runtime->stream_create(&stream) == kSuccess);
  }
  ~Exchange() {
    reader.reset();
    world_.runtime->stream_destroy(stream);
  }

  std::string ask(const std::string& command) { return peer_.ask(command); }
  CudaIpcBlock write(std::size_t bytes, int value) {
    const std::string answer = ask("write " + std::to_string(bytes) + " " + std::to_string(value));
    INFO(answer);
    REQUIRE(answer.rfind("block ", 0) == 0);
    return from_text(answer);
  }
  std::shared_ptr<ReadableBlock> open(const CudaIpcBlock& handle) {
    auto block = reader->open(handle, stream);
    if (!block) FAIL(block.error().to_string());
    return *block;
  }
  void copy(std::string& to, const ReadableBlock& from) {
    REQUIRE(world_.runtime->memcpy_async(to.data(), from.data(), to.size(), stream) == kSuccess);
  }
  void wait() { REQUIRE(world_.runtime->stream_synchronize(stream) == kSuccess); }
  /// Until the reads are done and their leases released.
  void settle(TimePoint now = Clock::now()) {
    const TimePoint deadline = Clock::now() + std::chrono::seconds(20);
    do {
      REQUIRE(reader->poll(now));
    } while (reader->stats().releasing > 0 && Clock::now() < deadline);
    REQUIRE(reader->stats().releasing == 0);
  }
  void kill() {
    alive_ = false;
    peer_.kill();
    if (world_.after_kill) world_.after_kill(process_);
  }

  std::shared_ptr<DeviceHealth> health = std::make_shared<DeviceHealth>("the reader's device");
  Stream stream = nullptr;
  std::unique_ptr<SlabReader> reader;

 private:
  const World world_;
  test::PeerProcess peer_;
  bool alive_ = true;
  int process_ = 0;
};

/// The last byte is the one that is written last.
constexpr std::size_t kLargeBytes = 3u << 20;

inline void check_order(Exchange& exchange) {
  exchange.open(exchange.write(kLargeBytes, 'a')).reset();
  exchange.settle();
  REQUIRE(exchange.ask("slow") == "ok");
  const auto block = exchange.open(exchange.write(kLargeBytes, 'b'));
  std::string seen(kLargeBytes, '?');
  exchange.copy(seen, *block);
  REQUIRE(exchange.ask("go") == "ok");
  exchange.wait();
  REQUIRE(block->check());
  CHECK((seen == std::string(kLargeBytes, 'b')));
}

inline void check_rounds(Exchange& exchange) {
  for (int round = 0; round < 100; ++round) {
    const char value = static_cast<char>('A' + round % 26);
    const std::size_t bytes = 70'000 + static_cast<std::size_t>(round) * 977;
    auto block = exchange.open(exchange.write(bytes, value));
    std::string seen(bytes, '?');
    exchange.copy(seen, *block);
    block.reset();  // the lease lasts until the copy is done
    exchange.wait();
    CHECK((seen == std::string(bytes, value)));
    exchange.settle();
  }
  CHECK(exchange.reader->stats().open_slabs == 1);
}

inline void check_given_back(Exchange& exchange) {
  exchange.open(exchange.write(kLargeBytes, 'x')).reset();
  exchange.settle();
  CHECK(exchange.ask("give_back") == "0 1 1");  // open here still
  exchange.settle(Clock::now() + std::chrono::minutes(1));
  CHECK(exchange.reader->stats().open_slabs == 0);
  CHECK(exchange.ask("give_back") == "0 0 0");
}

inline void check_never_opened(Exchange& exchange) {
  const auto give_back_unread = [&](const CudaIpcBlock& handle) {
    CHECK(exchange.ask("release " + std::to_string(handle.lease)) == "ended");
  };
  give_back_unread(exchange.write(kLargeBytes, 'n'));
  CHECK(exchange.ask("give_back") == "0 0 0");
  // Beside one that was opened, it is that one's slab.
  exchange.open(exchange.write(kLargeBytes, 'o')).reset();
  exchange.settle();
  give_back_unread(exchange.write(kLargeBytes, 'p'));
  CHECK(exchange.ask("give_back") == "0 1 1");
  exchange.settle(Clock::now() + std::chrono::minutes(1));
  CHECK(exchange.ask("give_back") == "0 0 0");
}

/// A second reader holds one block and has another one on its way when it is killed.
inline void check_reader_death(Exchange& exchange, const World& world) {
  test::PeerProcess second(world.peer);
  const std::string hello = second.ask("hello");
  REQUIRE(hello.rfind("ok ", 0) == 0);
  const std::string opened = exchange.ask("write_for_second " + std::to_string(kLargeBytes) + " 115");
  CHECK(second.ask("open " + opened) == "read s");
  const std::string on_its_way = exchange.ask("write_for_second " + std::to_string(kLargeBytes) + " 116");
  REQUIRE(on_its_way.rfind("block ", 0) == 0);
  CHECK(exchange.ask("give_back") == "2 1 1");
  second.kill();
  if (world.after_kill) world.after_kill(std::stoi(hello.substr(3)));
  CHECK(exchange.ask("second_gone") == "3");
  CHECK(exchange.ask("give_back") == "0 0 0");
}

inline void check_death(Exchange& exchange) {
  auto block = exchange.open(exchange.write(kLargeBytes, 'y'));
  const CudaIpcBlock later = exchange.write(kLargeBytes, 'z');
  exchange.kill();
  exchange.reader->owner_gone(kExporter);
  REQUIRE_FALSE(block->check());
  CHECK(block->check().error().code == ErrorCode::kTensorLost);
  const auto refused = exchange.reader->open(later, exchange.stream);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kTensorLost);
  block.reset();
  exchange.settle();
  CHECK(exchange.reader->stats().open_slabs == 0);
  CHECK_FALSE(exchange.health->failed());
}

inline void check_nonce(Exchange& exchange, RuntimeTable& runtime) {
  const CudaIpcBlock offer = from_text(exchange.ask("offer"));
  const auto answer = answer_offer(runtime, *exchange.health, *exchange.reader, offer, exchange.stream);
  REQUIRE(answer);
  INFO(answer->problem);
  CHECK(answer->path == TransportPath::kIpc);
  exchange.settle();
  CHECK(exchange.ask("judge " + std::to_string(static_cast<int>(answer->path)) + " " +
                     to_hex({answer->read.data(), answer->read.size()})) == "ipc");
  const CudaIpcBlock again = from_text(exchange.ask("offer"));
  CHECK(exchange.ask("judge 1 " + to_hex({answer->read.data(), answer->read.size()})) == "host copy");
}

/// This process is a device, the other one a helper of a GIL domain of it.
class Domain {
 public:
  explicit Domain(const World& world) : runtime_(*world.runtime), world_(world), peer_(world.peer) {
    const std::string hello = peer_.ask("helper");
    INFO(hello);
    REQUIRE(hello.rfind("ok ", 0) == 0);
    process_ = std::stoi(hello.substr(3));
    SlabPoolOptions options;
    options.owner = kExporter;
    options.slab_bytes = 16u << 20;
    options.spare_bytes = 0;
    auto made = SlabPool::create(runtime_, health, options);
    REQUIRE(made);
    pool = *made;
    REQUIRE(runtime_.stream_create(&stream) == kSuccess);
    HelperRoomOptions of_helper;
    of_helper.helper = kReader;
    auto made_room = HelperRoom::create(runtime_, health, pool, stream, of_helper);
    REQUIRE(made_room);
    room = std::move(*made_room);
    argument = static_cast<std::byte*>(pool->allocate(kLargeBytes, stream).value());
    REQUIRE(runtime_.malloc_host(&source_, kLargeBytes) == kSuccess);
  }
  ~Domain() {
    runtime_.stream_synchronize(stream);
    runtime_.free_host(source_);
    peer_.kill();
    room.reset();
    pool.reset();
    runtime_.stream_destroy(stream);
  }

  /// A call whose argument is full of `value`, which the device's stream writes there.
  void begin(char value) {
    REQUIRE(runtime_.stream_synchronize(stream) == kSuccess);
    std::memset(source_, value, kLargeBytes);
    REQUIRE(runtime_.memcpy_async(argument, source_, kLargeBytes, stream) == kSuccess);
    const auto lent = room->lend(argument, kLargeBytes, {});
    REQUIRE(lent);
    const auto order = room->begin_call();
    REQUIRE(order);
    std::string answer = peer_.ask("begin " + std::to_string(room->take_let_go().size()) + " " +
                                   to_hex({order->bytes.data(), order->bytes.size()}) + " " + to_text(*lent));
    while (answer.rfind("need ", 0) == 0) {
      const auto granted = room->grant(std::stoull(answer.substr(5)));
      REQUIRE(granted);
      answer = peer_.ask(to_text(*granted));
    }
    CHECK(answer == "begun");
  }
  struct Answer {
    SlabPlace place;
    IpcEventHandle done;
    std::vector<LeaseId> released;
  };
  Answer answer() {
    const std::string text = peer_.ask("end");
    INFO(text);
    REQUIRE(text.rfind("done ", 0) == 0);
    std::istringstream in(text.substr(5));
    Answer answer;
    std::string event;
    in >> answer.place.slab >> answer.place.offset >> answer.place.bytes >> event;
    const std::string raw = from_hex(event);
    std::copy_n(raw.begin(), std::min(raw.size(), answer.done.bytes.size()), answer.done.bytes.begin());
    for (LeaseId lease = 0; in >> lease;) answer.released.push_back(lease);
    return answer;
  }
  std::shared_ptr<std::byte> result(const Answer& answer) {
    REQUIRE(room->end_call(answer.done, answer.released));
    auto taken = room->take(answer.place);
    REQUIRE(taken);
    return *taken;
  }
  std::string read(const std::shared_ptr<std::byte>& memory) {
    std::string seen(kLargeBytes, '?');
    REQUIRE(runtime_.memcpy_async(seen.data(), memory.get(), seen.size(), stream) == kSuccess);
    REQUIRE(runtime_.stream_synchronize(stream) == kSuccess);
    return seen;
  }
  void kill() {
    peer_.kill();
    if (world_.after_kill) world_.after_kill(process_);
    room->gone();
  }
  void check_nothing_left() {
    pool->deallocate(argument, stream);
    REQUIRE(runtime_.stream_synchronize(stream) == kSuccess);
    REQUIRE(pool->release_cached());
    CHECK(pool->stats().leases == 0);
    CHECK(pool->stats().mappings == 0);
    CHECK(pool->stats().slabs == 0);
    CHECK_FALSE(health->failed());
  }

  std::shared_ptr<DeviceHealth> health = std::make_shared<DeviceHealth>("the device");
  Stream stream = nullptr;
  std::shared_ptr<SlabPool> pool;
  std::unique_ptr<HelperRoom> room;
  std::byte* argument = nullptr;

 private:
  RuntimeTable& runtime_;
  const World world_;
  test::PeerProcess peer_;
  int process_ = 0;
  void* source_ = nullptr;
};

inline void check_helper(Domain& domain) {
  for (int round = 0; round < 50; ++round) {
    const char value = static_cast<char>('A' + round % 26);
    domain.begin(value);
    const auto result = domain.result(domain.answer());
    CHECK((domain.read(result) == std::string(kLargeBytes, value)));
  }
  CHECK(domain.room->stats().grants == 1);
  CHECK(domain.room->stats().arguments == 0);
  CHECK(domain.pool->stats().events <= 4);
}

inline void check_helper_death(Domain& domain) {
  domain.begin('a');
  std::shared_ptr<std::byte> kept = domain.result(domain.answer());
  domain.begin('b');  // and never answers
  domain.kill();
  CHECK(domain.room->stats().arguments == 0);
  CHECK(domain.pool->stats().leases == 0);
  CHECK((domain.read(kept) == std::string(kLargeBytes, 'a')));
  kept.reset();
  domain.check_nothing_left();
}

inline void check_helper_answer_without_event(Domain& domain) {
  domain.begin('c');
  const Domain::Answer answer = domain.answer();
  domain.kill();
  const Status ended = domain.room->end_call(answer.done, answer.released);
  // A driver may still know the event, which is done; over the fake one it does not (helper_room_test.cpp).
  if (!ended) CHECK(ended.error().code == ErrorCode::kPythonFailed);
  domain.check_nothing_left();
}

}  // namespace callboard::kernels::cuda::conformance

#define CALLBOARD_CUDA_HELPER_CASE(text, ...)                      \
  TEST_CASE("CUDA memory of a device and its helper: " text) {     \
    namespace suite = callboard::kernels::cuda::conformance;       \
    const std::optional<suite::World> world = suite::make_world(); \
    if (!world) return;                                            \
    suite::Domain domain(*world);                                  \
    __VA_ARGS__;                                                   \
  }
#define CALLBOARD_CUDA_MEMORY_CASE(text, ...)                      \
  TEST_CASE("CUDA memory between two processes: " text) {          \
    namespace suite = callboard::kernels::cuda::conformance;       \
    const std::optional<suite::World> world = suite::make_world(); \
    if (!world) return;                                            \
    suite::Exchange exchange(*world);                              \
    __VA_ARGS__;                                                   \
  }
#define CALLBOARD_CUDA_MEMORY_SUITE()                                                                                  \
  CALLBOARD_CUDA_MEMORY_CASE("a reader waits for the writer", suite::check_order(exchange))                            \
  CALLBOARD_CUDA_MEMORY_CASE("a hundred results, each with its own bytes", suite::check_rounds(exchange))              \
  CALLBOARD_CUDA_MEMORY_CASE("a slab goes when its reader has closed it", suite::check_given_back(exchange))           \
  CALLBOARD_CUDA_MEMORY_CASE("a handle that was never opened leaves nothing", suite::check_never_opened(exchange))     \
  CALLBOARD_CUDA_MEMORY_CASE("a killed reader leaves nothing", suite::check_reader_death(exchange, *world))            \
  CALLBOARD_CUDA_MEMORY_CASE("a killed exporter's blocks are lost", suite::check_death(exchange))                      \
  CALLBOARD_CUDA_MEMORY_CASE("the nonce shows the way", suite::check_nonce(exchange, *world->runtime))                 \
  CALLBOARD_CUDA_HELPER_CASE("fifty calls, each with its own bytes", suite::check_helper(domain))                      \
  CALLBOARD_CUDA_HELPER_CASE("a killed helper leaves its results and nothing else", suite::check_helper_death(domain)) \
  CALLBOARD_CUDA_HELPER_CASE("an answer whose helper has ended costs the call",                                        \
                             suite::check_helper_answer_without_event(domain))
