#include "tests/kernels/process_domain/support/process_fixture.h"

#include <chrono>
#include <stdexcept>
#include <thread>

#include <nlohmann/json.hpp>

#include "actors/device/helper_spawner.h"
#include "kernels/process_domain/process_domain.h"
#include "tests/kernels/support/test_device.h"

namespace callboard::testing {

using namespace kernels;

PythonOptions process_options(const std::vector<std::string>& functions) {
  test_memory();
  PythonOptions options;
  options.path = {CALLBOARD_TEST_MODULES};
  for (const std::string& function : functions)
    options.kernels.push_back({"standin_kernels:" + function, "", false, ""});
  DomainProcesses processes;
  // A device spawns on its main thread, where these cases run; the domain's starter asks from a thread of its own. So
  // no child dies with a thread here: it ends with its socket.
  processes.spawn = [](const actors::HelperSpawner::Fds& fds) {
    return actors::HelperSpawner::start(CALLBOARD_DEVICE_PROGRAM, fds, /*die_with_parent=*/false);
  };
  processes.open_segment = [](const ActorId& owner, SegmentId segment) -> Result<OpenedSegment> {
    if (owner != kPeer) return fail(ErrorCode::kTensorLost, "no such owner");
    CALLBOARD_ASSIGN(Arena::Descriptor opened, test_memory().peer->descriptor(segment, false));
    return OpenedSegment{std::move(opened.fd), opened.bytes};
  };
  options.processes = std::move(processes);
  return options;
}

std::unique_ptr<GilDomain> make_process_domain(PythonOptions options) {
  TestMemory& memory = test_memory();
  auto made =
      make_gil_domain(options, c10::Device(c10::DeviceType::CPU), kSelf, 1, memory.arena, memory.segments.get());
  if (!made) throw std::runtime_error(made.error().to_string());
  return std::move(*made);
}

std::vector<std::int64_t> idle_children(const GilDomain& domain) {
  std::vector<std::int64_t> pids;
  const auto text = nlohmann::json::parse(domain.describe());
  for (const auto& child : text.at("children")) {
    if (child.at("state") == "idle") pids.push_back(child.at("pid").get<std::int64_t>());
  }
  return pids;
}

bool await_idle(const GilDomain& domain, std::size_t count) {
  const TimePoint until = Clock::now() + std::chrono::seconds(60);
  while (idle_children(domain).size() < count) {
    if (Clock::now() >= until) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace callboard::testing
