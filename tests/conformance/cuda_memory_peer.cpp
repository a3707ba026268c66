// The exporting process of the suite for CUDA memory, and a second reader for it. One command a line on stdin, one
// answer a line on stdout. Built twice: over the fake runtime of the machine that is named as argument, and over the
// real one.
#include <algorithm>
#include <cstring>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include "kernels/cuda/helper_guest.h"
#include "kernels/cuda/slab_pool.h"
#include "kernels/cuda/slab_reader.h"
#include "kernels/cuda/transport_test.h"
#include "tests/conformance/cuda_memory_text.h"
#ifndef CALLBOARD_REAL_CUDA
#include "tests/kernels/cuda/fake_runtime.h"
#endif

namespace callboard::kernels::cuda::conformance {
namespace {

struct Peer {
  explicit Peer(const char* machine) {
#ifdef CALLBOARD_REAL_CUDA
    (void)machine;
    runtime = &cuda_runtime();
#else
    fake = std::make_unique<testing::FakeRuntime>(testing::FakeMachine::attach(machine));
    runtime = fake.get();
#endif
  }

  std::string hello() {
    SlabPoolOptions options;
    options.owner = kExporter;
    options.slab_bytes = 16u << 20;
    options.spare_bytes = 0;
    auto made = SlabPool::create(*runtime, health, options);
    if (!made) return "error " + made.error().message;
    pool = *made;
    if (runtime->stream_create(&stream) != kSuccess) return "error no stream";
#ifdef CALLBOARD_REAL_CUDA
    return "ok 0";
#else
    return "ok " + std::to_string(fake->process());
#endif
  }

  /// From here on what the stream is given takes its time.
  std::string slow() {
#ifdef CALLBOARD_REAL_CUDA
    constexpr std::size_t kBytes = 128u << 20;
    constexpr int kCopies = 400;  // some 30 ms on a fast device
    const auto memory = pool->allocate(2 * kBytes, stream);
    if (!memory) return "error " + memory.error().message;
    auto* from = static_cast<std::byte*>(*memory);
    for (int i = 0; i < kCopies; ++i) {
      if (runtime->memcpy_async(from + kBytes, from, kBytes, stream) != kSuccess) return "error copy";
    }
    pool->deallocate(*memory, stream);
#else
    fake->hold(stream);
#endif
    return "ok";
  }
  std::string go() {
#ifndef CALLBOARD_REAL_CUDA
    fake->run(stream);
#endif
    return "ok";
  }

  /// A result of so many bytes of one value.
  std::string write(const ActorId& holder, std::istream& in) {
    std::size_t bytes = 0;
    int value = 0;
    in >> bytes >> value;
    const auto memory = pool->allocate(bytes, stream);
    if (!memory) return "error " + memory.error().message;
    // Pinned, so that the copy is only queued: from other memory the call would wait for what the stream has to do.
    void* source = nullptr;
    if (runtime->malloc_host(&source, bytes) != kSuccess) return "error pinned memory";
    std::memset(source, value, bytes);  // kept until this process ends
    if (runtime->memcpy_async(*memory, source, bytes, stream) != kSuccess) return "error copy";
    auto handle = pool->lease(*memory, bytes, holder, stream, {});
    pool->deallocate(*memory, stream);
    return handle ? to_text(*handle) : "error " + handle.error().message;
  }

  /// As the second reader: opens the block, reads its first byte and holds it until this process ends.
  std::string open(std::istream& in) {
    SlabReaderOptions options;
    options.self = kSecondReader;
    auto made = SlabReader::create(*runtime, health, options, [](const ActorId&, LeaseId) {});
    if (!made) return "error " + made.error().message;
    reader = std::move(*made);
    std::string text;
    std::getline(in >> std::ws, text);
    auto opened = reader->open(from_text(text), stream);
    if (!opened) return "error " + opened.error().message;
    held = *opened;
    char first = 0;
    if (runtime->memcpy_async(&first, held->data(), 1, stream) != kSuccess) return "error copy";
    if (runtime->stream_synchronize(stream) != kSuccess) return "error wait";
    return "read " + std::string(1, first);
  }

  std::string offer() {
    auto made = TransportOffer::make(*runtime, health, pool, kReader, stream);
    if (!made) return "error " + made.error().message;
    offered = std::move(*made);
    return to_text(offered->block());
  }
  std::string judge(std::istream& in) {
    int path = 0;
    std::string nonce;
    in >> path >> nonce;
    TransportAnswer answer;
    answer.path = static_cast<TransportPath>(path);
    const std::string read = from_hex(nonce);
    std::copy_n(read.begin(), std::min(read.size(), answer.read.size()), answer.read.begin());
    const TransportVerdict verdict = offered->judge(answer);
    offered.reset();
    return std::string(transport_path_name(verdict.path));
  }

  // -- as the helper of a device in the other process; what it needs meanwhile it asks for by a line of its own

  std::string helper() {
    if (runtime->stream_create(&stream) != kSuccess) return "error no stream";
    auto made = HelperGuest::create(*runtime, health, stream, [](std::uint64_t bytes) -> Result<CudaIpcBlock> {
      std::cout << "need " << bytes << std::endl;
      std::string line;
      std::getline(std::cin, line);
      if (line.rfind("block ", 0) != 0) return fail(ErrorCode::kOutOfMemory, line);
      return from_text(line);
    });
    if (!made) return "error " + made.error().message;
    guest = *made;
#ifdef CALLBOARD_REAL_CUDA
    return "ok 0";
#else
    return "ok " + std::to_string(fake->process());
#endif
  }
  /// Copies its argument, behind the device's event, into a segment that it asks for, or that is its own again.
  std::string begin(std::istream& in) {
    std::size_t gone = 0;
    std::string order;
    std::string text;
    std::getline(in >> gone >> order >> std::ws, text);
    IpcEventHandle event;
    const std::string raw = from_hex(order);
    std::copy_n(raw.begin(), std::min(raw.size(), event.bytes.size()), event.bytes.begin());
    if (const Status begun = guest->begin_call(event); !begun) return "error " + begun.error().message;
    const CudaIpcBlock block = from_text(text);
    auto argument = guest->open(block);
    if (!argument) return "error " + argument.error().message;
    if (gone > 0) guest->let_go(given);
    if (gone == 0) {  // the last result is the device's still
      const auto asked = guest->allocate(block.bytes, stream);
      if (!asked) return "error " + asked.error().message;
      segment = *asked;
    }
    if (runtime->memcpy_async(segment, argument->get(), block.bytes, stream) != kSuccess) return "error copy";
    given = {guest->place_of(segment, block.bytes).value()};
    guest->give(given[0], {});
    return "begun";
  }
  std::string end() {
    const auto done = guest->end_call();
    if (!done) return "error " + done.error().message;
    std::ostringstream out;
    out << "done " << given[0].slab << ' ' << given[0].offset << ' ' << given[0].bytes << ' '
        << to_hex({done->done.bytes.data(), done->done.bytes.size()});
    for (const LeaseId lease : done->released) out << ' ' << lease;
    return out.str();
  }

  std::string answer(const std::string& command, std::istream& in) {
    if (command == "helper") return helper();
    if (command == "begin") return begin(in);
    if (command == "end") return end();
    if (command == "hello") return hello();
    if (command == "slow") return slow();
    if (command == "go") return go();
    if (command == "write") return write(kReader, in);
    if (command == "write_for_second") return write(kSecondReader, in);
    if (command == "open") return open(in);
    if (command == "second_gone") return std::to_string(pool->holder_gone(kSecondReader));
    if (command == "offer") return offer();
    if (command == "judge") return judge(in);
    if (command == "release") {
      LeaseId lease = 0;
      in >> lease;
      return pool->release(lease) ? "ended" : "none";
    }
    if (command == "give_back") {
      const Status done = pool->release_cached();
      const SlabPoolStats stats = pool->stats();
      if (!done) return "error " + done.error().message;
      return std::to_string(stats.leases) + " " + std::to_string(stats.mappings) + " " + std::to_string(stats.slabs);
    }
    return "unknown";
  }

  RuntimeTable* runtime = nullptr;
#ifndef CALLBOARD_REAL_CUDA
  std::unique_ptr<testing::FakeRuntime> fake;
#endif
  std::shared_ptr<DeviceHealth> health = std::make_shared<DeviceHealth>("the exporter's device");
  Stream stream = nullptr;
  std::shared_ptr<SlabPool> pool;
  std::unique_ptr<TransportOffer> offered;
  std::unique_ptr<SlabReader> reader;
  std::shared_ptr<ReadableBlock> held;
  std::shared_ptr<HelperGuest> guest;
  void* segment = nullptr;
  std::vector<SlabPlace> given;
};

int run(const char* machine) {
  Peer peer(machine);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    std::string command;
    in >> command;
    std::cout << peer.answer(command, in) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace callboard::kernels::cuda::conformance

int main(int count, char** arguments) {
  return callboard::kernels::cuda::conformance::run(count > 1 ? arguments[1] : "");
}
