#include "kernels/cuda/device_error.h"

#include <atomic>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>
#include <vector>

#include "tests/kernels/cuda/fake_runtime.h"
#include "tests/support/test.h"

namespace callboard::kernels::cuda {
namespace {

TEST_CASE("every code of the toolkit's header is in the table by its name, and what it calls fatal is") {
#ifndef CALLBOARD_CUDA_INCLUDE
  WARN("SKIPPED: no CUDA toolkit when this was built, so the table of codes is not compared with its header");
#else
  std::ifstream file(std::string(CALLBOARD_CUDA_INCLUDE) + "/driver_types.h");
  REQUIRE(file);
  std::stringstream text;
  text << file.rdbuf();
  // A code's comment is the last one before it.
  std::string comment;
  bool inside = false;
  std::size_t codes = 0;
  std::size_t fatal = 0;
  const std::regex line_of_code(R"(^\s*(cudaSuccess|cudaError[A-Za-z0-9]+)\s*=\s*([0-9]+),?\s*$)");
  for (std::string line; std::getline(text, line);) {
    if (line.find("/**") != std::string::npos) comment.clear(), inside = true;
    if (inside) comment += line;
    if (line.find("*/") != std::string::npos) inside = false;
    std::smatch match;
    if (!std::regex_match(line, match, line_of_code)) continue;
    ++codes;
    INFO(line);
    const CodeInfo info = code_info(std::stoi(match[2]));
    CHECK(info.name == match[1].str());
    if (comment.find("inconsistent") == std::string::npos) continue;
    ++fatal;
    CHECK(info.failure == Failure::kDevice);
  }
  CHECK(codes > 100);
  CHECK(fatal >= 10);
#endif
}

TEST_CASE("a code has one meaning, and one that nobody knows is the device's failure") {
  CHECK(code_info(0).failure == Failure::kNone);
  CHECK(code_info(2).failure == Failure::kOutOfMemory);
  CHECK(code_info(600).failure == Failure::kNotReady);
  CHECK(code_info(1).failure == Failure::kUsage);
  CHECK(code_info(217).failure == Failure::kUnreachable);
  CHECK(code_info(100).failure == Failure::kEnvironment);
  CHECK(code_info(205).failure == Failure::kStaleHandle);
  CHECK(code_info(701).failure == Failure::kRequest);
  for (const Code code : {214, 220, 700, 709, 719, 999}) CHECK(code_info(code).failure == Failure::kDevice);
  for (const Code code : {-1, 5'000, 998, 601}) CHECK(code_info(code).failure == Failure::kDevice);
}

TEST_CASE("each kind of failure travels as an error code of its class") {
  CHECK(error_class(error_code(Failure::kOutOfMemory)) == ErrorClass::kRequest);
  CHECK(error_class(error_code(Failure::kRequest)) == ErrorClass::kRequest);
  CHECK(error_class(error_code(Failure::kDevice)) == ErrorClass::kActor);
  CHECK(error_class(error_code(Failure::kStaleHandle)) == ErrorClass::kActor);
  CHECK(error_class(error_code(Failure::kEnvironment)) == ErrorClass::kEnvironment);
  CHECK(error_class(error_code(Failure::kUsage)) == ErrorClass::kInternal);
  CHECK(error_code(Failure::kUnreachable) == ErrorCode::kUnsupported);
}

TEST_CASE("a failure names the call, the device, what it was for and the code") {
  DeviceHealth health("cuda0#3 (GPU-0)");
  const Status failed = health.note(2, "cudaMalloc", "256 MiB");
  REQUIRE_FALSE(failed);
  CHECK(failed.error().code == ErrorCode::kOutOfMemory);
  for (const char* part : {"cudaMalloc", "cuda0#3 (GPU-0)", "256 MiB", "cudaErrorMemoryAllocation", "(2)"}) {
    CHECK(failed.error().message.find(part) != std::string::npos);
  }
  CHECK_FALSE(failed.error().hint.empty());
  CHECK_FALSE(health.failed());
  CHECK(health.note(0, "cudaMalloc"));
}

TEST_CASE("R85: after the first sticky error every call fails with it, whatever it says itself") {
  std::vector<Error> told;
  DeviceHealth health("cuda0#1", [&](const Error& error) { told.push_back(error); });
  const Status first = health.note(700, "cudaEventSynchronize", "fragment 3");
  REQUIRE_FALSE(first);
  CHECK(first.error().code == ErrorCode::kDeviceFailed);
  CHECK(health.failed());
  for (const Code code : {0, 2, 719, 1, 600}) {
    const Status later = health.note(code, "cudaMalloc");
    REQUIRE_FALSE(later);
    CHECK(later.error() == first.error());
  }
  CHECK(health.status().error() == first.error());
  REQUIRE(told.size() == 1);
  CHECK(told[0] == first.error());
}

TEST_CASE("of many threads that see the device fail one tells") {
  std::atomic<int> told{0};
  DeviceHealth health("cuda0#1", [&](const Error&) { ++told; });
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 200; ++round) {
        const Status noted = health.note(700 + (round + i) % 2 * 19, "cudaEventQuery");
        if (noted || noted.error().code != ErrorCode::kDeviceFailed) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(told == 1);
  CHECK(wrong == 0);
}

TEST_CASE("the current device is put back, and a device that cannot be set is an error") {
  testing::FakeRuntime runtime(testing::FakeMachine::create(2, 1u << 20));
  DeviceHealth health("cuda0#1");
  int now = -1;
  REQUIRE(runtime.set_device(0) == kSuccess);
  {
    const CurrentDeviceGuard guard(runtime, health, 1);
    REQUIRE(guard.status());
    REQUIRE(runtime.get_device(&now) == kSuccess);
    CHECK(now == 1);
  }
  REQUIRE(runtime.get_device(&now) == kSuccess);
  CHECK(now == 0);
  const CurrentDeviceGuard guard(runtime, health, 7);
  REQUIRE_FALSE(guard.status());
  CHECK(guard.status().error().code == ErrorCode::kEnvironment);
  REQUIRE(runtime.get_device(&now) == kSuccess);
  CHECK(now == 0);
}

TEST_CASE("a device that this process has not used is not put back, which would be its first use") {
  testing::FakeRuntime runtime(testing::FakeMachine::create(2, 1u << 20));
  DeviceHealth health("cuda0#1");
  { REQUIRE(CurrentDeviceGuard(runtime, health, 1).status()); }
  bool used = true;
  REQUIRE(runtime.has_context(0, &used) == kSuccess);
  CHECK_FALSE(used);
  REQUIRE(runtime.has_context(1, &used) == kSuccess);
  CHECK(used);
}

TEST_CASE("a uuid is written as nvidia-smi does") {
  DeviceUuid uuid;
  for (std::size_t i = 0; i < uuid.bytes.size(); ++i) uuid.bytes[i] = static_cast<char>(i * 17);
  CHECK(uuid.to_string() == "GPU-00112233-4455-6677-8899-aabbccddeeff");
}

}  // namespace
}  // namespace callboard::kernels::cuda
