#include "kernels/cuda/transport_test.h"

#include "kernels/cuda/host_staging.h"
#include "tests/kernels/cuda/pair.h"

namespace callboard::kernels::cuda {
namespace {

using namespace testing;

std::unique_ptr<TransportOffer> offer_to(Exporter& exporter, const ActorId& reader = kReader) {
  auto made = TransportOffer::make(*exporter.runtime, exporter.health, exporter.pool, reader, exporter.stream);
  REQUIRE(made);
  return std::move(*made);
}
TransportAnswer answer(Reader& reader, const TransportOffer& offer) {
  auto answered = answer_offer(*reader.runtime, *reader.health, *reader.reader, offer.block(), reader.stream);
  REQUIRE(answered);
  return *answered;
}

TEST_CASE("R8, R10: the nonce shows which way works, and the test leaves nothing behind") {
  const auto machine = FakeMachine::create(2, 32 * kMiB);
  const int own = GENERATE(0, 1);
  SlabReaderOptions options;
  options.device = own;
  {
    Exporter exporter(machine);
    Reader reader(machine, exporter, options);
    const auto offer = offer_to(exporter);
    const TransportVerdict verdict = offer->judge(answer(reader, *offer));
    CHECK(verdict.path == (own == 0 ? TransportPath::kIpc : TransportPath::kPeer));
    CHECK(verdict.reason.empty() == (own == 0));
  }
  CHECK(machine->allocations() == 0);
  CHECK(machine->violations() == 0);
}

TEST_CASE("two offers never hold the same nonce, and another's answer is not taken") {
  const auto machine = FakeMachine::create(1, 32 * kMiB);
  Exporter exporter(machine);
  Reader reader(machine, exporter);
  const auto first = offer_to(exporter);
  const auto second = offer_to(exporter);
  const TransportAnswer one = answer(reader, *first);
  const TransportAnswer two = answer(reader, *second);
  CHECK(one.read != two.read);
  CHECK(first->judge(two).path == TransportPath::kHostCopy);
  CHECK(first->judge(TransportAnswer{TransportPath::kIpc, {}, {}}).path == TransportPath::kHostCopy);
  CHECK(second->judge(two).path == TransportPath::kIpc);
}

TEST_CASE("a reader that wrongly takes itself for the exporter gets host copies") {
  Exporter exporter(FakeMachine::create(1, 32 * kMiB));
  const auto offer = offer_to(exporter);
  TransportAnswer claimed{TransportPath::kSameProcess, {}, {}};
  const std::string nonce = exporter.runtime->read(exporter.pool->own_block(offer->block())->address, 32);
  std::copy(nonce.begin(), nonce.end(), claimed.read.begin());
  const TransportVerdict verdict = offer->judge(claimed);
  CHECK(verdict.path == TransportPath::kHostCopy);
  CHECK(verdict.reason.find("cuda1#1") != std::string::npos);
}

TEST_CASE("an offer may outlive the stream that it was written on") {
  Exporter exporter(FakeMachine::create(1, 32 * kMiB));
  auto offer = offer_to(exporter);
  CHECK(exporter.pool->release(offer->block().lease));
  REQUIRE(exporter.runtime->stream_destroy(exporter.stream) == kSuccess);
  offer.reset();
  REQUIRE(exporter.pool->trim());
  CHECK(exporter.pool->stats().in_use_bytes == 0);
}

TEST_CASE("what does not work ends as host copies with the reason, whichever call refuses") {
  const auto machine = FakeMachine::create(2, 32 * kMiB);
  Exporter exporter(machine);
  Reader reader(machine, exporter);
  const auto offer = offer_to(exporter);
  const auto [call, code, named] = GENERATE(table<Call, Code, std::string>({
      {Call::kIpcOpenMemory, 304, "cudaErrorOperatingSystem"},
      {Call::kIpcOpenMemory, 1, "cudaErrorInvalidValue"},
      {Call::kIpcOpenMemory, 217, "cudaErrorPeerAccessUnsupported"},
      {Call::kIpcOpenEvent, 801, "cudaErrorNotSupported"},
      {Call::kStreamWaitEvent, 400, "cudaStreamWaitEvent"},
      {Call::kMemcpyAsync, 1, "cudaMemcpyAsync"},
      {Call::kMalloc, 2, "cudaErrorMemoryAllocation"},
  }));
  reader.runtime->inject(call, code);
  const TransportAnswer answered = answer(reader, *offer);
  CHECK(answered.path == TransportPath::kHostCopy);
  const TransportVerdict verdict = offer->judge(answered);
  CHECK(verdict.path == TransportPath::kHostCopy);
  INFO(verdict.reason);
  CHECK(verdict.reason.find(named) != std::string::npos);
}

TEST_CASE("a device that fails during the test is the device's failure, not a path") {
  const auto machine = FakeMachine::create(1, 32 * kMiB);
  Exporter exporter(machine);
  Reader reader(machine, exporter);
  const auto offer = offer_to(exporter);
  reader.runtime->inject(Call::kStreamSynchronize, 719);
  CHECK(code_of(answer_offer(*reader.runtime, *reader.health, *reader.reader, offer->block(), reader.stream)) ==
        ErrorCode::kDeviceFailed);
  exporter.runtime->inject(Call::kMemcpyAsync, 700);
  CHECK(code_of(TransportOffer::make(*exporter.runtime, exporter.health, exporter.pool, kReader, exporter.stream)) ==
        ErrorCode::kDeviceFailed);
}

TEST_CASE("every path has a name") {
  CHECK(transport_path_name(TransportPath::kSameProcess) == "same process");
  CHECK(transport_path_name(TransportPath::kIpc) == "ipc");
  CHECK(transport_path_name(TransportPath::kPeer) == "peer");
  CHECK(transport_path_name(TransportPath::kHostCopy) == "host copy");
}

// -- host staging ----------------------------------------------------------------------------------------------------

std::string pattern(std::size_t bytes) {
  std::string text(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 2654435761u >> 13);
  return text;
}

struct Staged {
  Staged() : exporter(FakeMachine::create(1, 32 * kMiB)), device(exporter.allocate(2 * kMiB)) {
    staging = HostStaging::create(*exporter.runtime, exporter.health, 0, exporter.stream, kChunk);
  }
  static constexpr std::size_t kChunk = 1'000;
  Exporter exporter;
  std::byte* device;
  std::unique_ptr<HostStaging> staging;
};

TEST_CASE("staged copies carry every byte, for whole and broken chunks, in both directions, again and again") {
  Staged staged;
  for (const std::size_t bytes : {0, 1, 999, 1'000, 1'001, 2'000, 7'123}) {
    const std::string sent = pattern(bytes);
    std::string back(bytes, '?');
    REQUIRE(staged.staging->to_device(staged.device, sent.data(), bytes, kNever));
    REQUIRE(staged.staging->to_host(back.data(), staged.device, bytes, kNever));
    CHECK(back == sent);
  }
}

TEST_CASE("a staged copy comes after what its stream had queued, and meets its deadline") {
  Staged staged;
  std::string back(3'000, '?');
  staged.exporter.runtime->hold(staged.exporter.stream);
  const Status late = staged.staging->to_host(back.data(), staged.device, back.size(), Clock::now());
  REQUIRE_FALSE(late);
  CHECK(late.error().code == ErrorCode::kDeadlineExceeded);
  CHECK(code_of(staged.staging->to_device(staged.device, back.data(), back.size(), Clock::now())) ==
        ErrorCode::kDeadlineExceeded);
  staged.exporter.runtime->run(staged.exporter.stream);
  staged.exporter.fill(staged.device, pattern(3'000));
  REQUIRE(staged.staging->to_host(back.data(), staged.device, back.size(), kNever));
  CHECK(back == pattern(3'000));
}

TEST_CASE(
    "small copies to the device wait for nothing until two buffers are full of them, and read their source at once") {
  Staged staged;
  constexpr std::size_t kBytes = 100;
  constexpr std::size_t kApart = 128;                                          // as they are aligned
  constexpr std::size_t kRoom = 2 * (1 + (Staged::kChunk - kBytes) / kApart);  // in both buffers
  staged.exporter.runtime->hold(staged.exporter.stream);
  const auto send = [&](std::size_t number) {
    std::string sent(kBytes, static_cast<char>('a' + number));
    const Status queued = staged.staging->to_device(staged.device + number * kBytes, sent.data(), kBytes, Clock::now());
    std::fill(sent.begin(), sent.end(), '!');
    return queued;
  };
  for (std::size_t i = 0; i < kRoom; ++i) REQUIRE(send(i));
  CHECK(code_of(send(kRoom)) == ErrorCode::kDeadlineExceeded);
  staged.exporter.runtime->run(staged.exporter.stream);
  REQUIRE(send(kRoom));
  for (std::size_t i = 0; i <= kRoom; ++i) {
    std::string back(kBytes, '?');
    REQUIRE(staged.staging->to_host(back.data(), staged.device + i * kBytes, kBytes, kNever));
    CHECK(back == std::string(kBytes, static_cast<char>('a' + i)));
  }
}

TEST_CASE("a call that fails in a staged copy is typed, and the next copy is right") {
  const auto [call, code, expected] = GENERATE(table<Call, Code, ErrorCode>({
      {Call::kMallocHost, 2, ErrorCode::kOutOfMemory},
      {Call::kEventCreate, 2, ErrorCode::kOutOfMemory},
      {Call::kMemcpyAsync, 1, ErrorCode::kInternal},
      {Call::kEventRecord, 400, ErrorCode::kInternal},
      {Call::kEventQuery, 1, ErrorCode::kInternal},
      {Call::kSetDevice, 0, ErrorCode::kOk},
      {Call::kMemcpyAsync, 719, ErrorCode::kDeviceFailed},
      {Call::kEventQuery, 700, ErrorCode::kDeviceFailed},
  }));
  Staged staged;
  staged.exporter.runtime->write(staged.device, pattern(2'500));
  std::string back(2'500, '?');
  if (code != kSuccess) staged.exporter.runtime->inject(call, code);
  CHECK(code_of(staged.staging->to_host(back.data(), staged.device, back.size(), kNever)) == expected);
  const ErrorCode next = code_of(staged.staging->to_host(back.data(), staged.device, back.size(), kNever));
  if (expected == ErrorCode::kDeviceFailed) {
    CHECK(next == ErrorCode::kDeviceFailed);
  } else {
    CHECK(next == ErrorCode::kOk);
    CHECK(back == pattern(2'500));
  }
}

}  // namespace
}  // namespace callboard::kernels::cuda
