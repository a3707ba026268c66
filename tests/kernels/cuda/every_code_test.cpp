// Every call of both sides made to fail with every code there is, at its first, second and third time: what comes of it
// is a typed error or the right bytes, never other bytes, and the device is given up exactly for the codes that say so.
#include <set>

#include "tests/kernels/cuda/pair.h"

namespace callboard::kernels::cuda {
namespace {

using namespace testing;

const std::string kStale(64, 's');
const std::string kWritten(64, 'w');

struct Outcome {
  std::vector<Error> errors;
  bool read = false;  ///< the reader says that what it has is the tensor
  std::string seen;
};

/// One result from an exporter to a reader, as actors do it.
Outcome hand_over(Exporter& exporter, Reader& reader) {
  Outcome outcome;
  const auto good = [&](const auto& result) {
    if (!result) outcome.errors.push_back(result.error());
    return result.has_value();
  };
  FakeRuntime& from = *exporter.runtime;
  const auto memory = exporter.pool->allocate(2 * kMiB, exporter.stream);
  if (!good(memory)) return outcome;
  from.write(*memory, kStale);
  from.hold(exporter.stream);
  const std::string source = kWritten;
  const bool filled = good(exporter.health->note(
      from.memcpy_async(*memory, source.data(), source.size(), exporter.stream), "cudaMemcpyAsync"));
  auto handle = exporter.pool->lease(*memory, source.size(), kReader, exporter.stream, {});
  if (filled && good(handle)) {
    auto block = reader.reader->open(*handle, reader.stream);
    if (good(block)) {
      std::string seen(64, '?');
      const bool copied = good(reader.health->note(
          reader.runtime->memcpy_async(seen.data(), (*block)->data(), seen.size(), reader.stream), "cudaMemcpyAsync"));
      from.run(exporter.stream);
      const bool done =
          good(reader.health->note(reader.runtime->stream_synchronize(reader.stream), "cudaStreamSynchronize"));
      if (!done) reader.runtime->run(reader.stream);
      outcome.read = copied && done && good((*block)->check()) && good(exporter.health->status());
      outcome.seen = seen;
    }
  }
  from.run(exporter.stream);
  exporter.pool->deallocate(*memory, exporter.stream);
  good(reader.reader->poll(Clock::now()));
  good(reader.reader->poll(Clock::now() + std::chrono::seconds(60)));
  good(exporter.pool->trim());
  return outcome;
}

/// What an error may be called after `call` gave `code`.
std::set<ErrorCode> expected(Call call, Code code) {
  const Failure failure = code_info(code).failure;
  std::set<ErrorCode> allowed{error_code(failure)};
  if (failure == Failure::kDevice) return allowed;
  if (failure == Failure::kNotReady) allowed = {ErrorCode::kInternal};
  if (call == Call::kIpcGetMemory) allowed = {ErrorCode::kUnsupported};
  if ((call == Call::kIpcOpenMemory || call == Call::kIpcOpenEvent) && failure == Failure::kUsage) {
    allowed = {ErrorCode::kTensorLost};
  }
  return allowed;
}

TEST_CASE("every call that gives any code ends in a typed error or in the right bytes") {
  std::vector<Code> codes;
  for (Code code = 1; code < 1'000; ++code) {
    if (code_info(code).name != "unknown CUDA error") codes.push_back(code);
  }
  codes.push_back(998);  // unknown
  REQUIRE(codes.size() > 100);
#ifdef CALLBOARD_SANITIZED
  constexpr std::size_t kStep = 7;
#else
  constexpr std::size_t kStep = 1;
#endif
  std::size_t failed_devices = 0;
  std::size_t errors = 0;
  for (int number = 0; number < kCallCount; ++number) {
    const Call call = static_cast<Call>(number);
    for (std::size_t i = static_cast<std::size_t>(number) % kStep; i < codes.size(); i += kStep) {
      const Code code = codes[i];
      const bool sticky = code_info(code).failure == Failure::kDevice;
      for (const bool at_reader : {false, true}) {
        const int skip = static_cast<int>((i + static_cast<std::size_t>(number)) % 3);
        // Room for what stays taken where nobody can tell whether its reads are done.
        const auto machine = FakeMachine::create(1, 12 * kMiB);
        SlabPoolOptions options = small_slabs();
        options.slab_bytes = 2 * kMiB;
        options.device_reserve = 1;  // so that memory is asked for
        Exporter exporter(machine, options);
        Reader reader(machine, exporter);
        Side& struck = at_reader ? static_cast<Side&>(reader) : exporter;
        struck.runtime->inject(call, code, skip);
        const std::size_t before = struck.runtime->calls(call);
        const Outcome first = hand_over(exporter, reader);
        const bool happened = struck.runtime->calls(call) - before > static_cast<std::size_t>(skip);

        std::string what = call_name(call) + " gave " + std::to_string(code) + (at_reader ? " to the reader" : "");
        for (const Error& error : first.errors) what += "\n  " + error.to_string();
        INFO(what);
        if (first.read) REQUIRE(first.seen == kWritten);
        if (!first.read) REQUIRE_FALSE(first.errors.empty());
        for (const Error& error : first.errors) REQUIRE(expected(call, code).contains(error.code));
        errors += first.errors.size();
        REQUIRE(struck.health->failed() == (happened && sticky));
        if (happened && sticky) ++failed_devices;

        const Outcome second = hand_over(exporter, reader);
        if (second.read) REQUIRE(second.seen == kWritten);
        if (happened && sticky) {
          REQUIRE_FALSE(second.read);
          for (const Error& error : second.errors) REQUIRE(error.code == ErrorCode::kDeviceFailed);
        } else if (happened) {
          // The slab of which no handle could be had stays one; all else is as if nothing had been.
          REQUIRE((second.read || call == Call::kIpcGetMemory));
        }
        REQUIRE(machine->violations() == 0);
      }
    }
  }
  CHECK(failed_devices > 0);
  CHECK(errors > 100);
}

}  // namespace
}  // namespace callboard::kernels::cuda
