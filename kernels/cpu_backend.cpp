#include "kernels/cpu_backend.h"

#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "kernels/host_event.h"
#include "messages/base/check.h"

namespace callboard::kernels {

namespace {

class CpuStream;
thread_local const CpuStream* current_stream = nullptr;

class CpuEvent final : public DeviceEvent {
 public:
  bool ready() const override { return event.ready(); }
  HostEvent event;
};

class CpuStream final : public StreamContext {
 public:
  void enter() override { previous_ = std::exchange(current_stream, this); }
  void leave() override { current_stream = std::exchange(previous_, nullptr); }
  bool is_current() const override { return current_stream == this; }

  std::shared_ptr<DeviceEvent> record() override {
    auto event = std::make_shared<CpuEvent>();
    event->event.record();
    return event;
  }

  Status wait(const DeviceEvent& event, TimePoint deadline) override {
    const auto* host = dynamic_cast<const CpuEvent*>(&event);
    CALLBOARD_CHECK(host != nullptr, "an event is waited for on a stream of its own backend");
    if (!host->event.wait_until(deadline)) {
      return fail(ErrorCode::kDeadlineExceeded, "the deadline passed while a stream waited for another one");
    }
    return {};
  }

  Status copy(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
    return {};
  }
  Status read_back(void* to, const void* from, std::size_t bytes, TimePoint /*deadline*/) override {
    std::memcpy(to, from, bytes);
    return {};
  }
  Status synchronize(TimePoint /*deadline*/) override { return {}; }

 private:
  const CpuStream* previous_ = nullptr;
};

class CpuBackend final : public DeviceBackend {
 public:
  std::string_view kind() const override { return "cpu"; }
  c10::Device device() const override { return c10::Device(c10::DeviceType::CPU); }
  Result<std::unique_ptr<StreamContext>> make_stream(StreamKind) override { return std::make_unique<CpuStream>(); }

  Result<DeviceMemory> memory() const override {
    std::ifstream file("/proc/meminfo");
    DeviceMemory found;
    std::string key;
    std::string unit;
    std::uint64_t kib = 0;
    while (file >> key >> kib && std::getline(file, unit)) {
      if (key == "MemTotal:") found.total_bytes = kib << 10;
      if (key == "MemAvailable:") found.available_bytes = kib << 10;
    }
    if (found.total_bytes == 0) {
      return fail(ErrorCode::kEnvironment, "/proc/meminfo does not say how much memory this machine has");
    }
    return found;
  }

  void set_intra_op_threads(int threads) override { at::set_num_threads(threads); }

  bool can_run(const std::string& name, const std::string& overload) const override {
    using c10::DispatchKey;
    static constexpr std::array kKeys = {DispatchKey::CPU,          DispatchKey::SparseCPU,
                                         DispatchKey::SparseCsrCPU, DispatchKey::MkldnnCPU,
                                         DispatchKey::QuantizedCPU, DispatchKey::NestedTensorCPU};
    const auto handle = c10::Dispatcher::singleton().findSchema({name, overload});
    if (!handle) return false;
    for (const DispatchKey key : kKeys) {
      if (handle->hasComputedKernelForDispatchKey(key)) return true;
    }
    // Chooses the real kernel by itself. Asked for directly: every operator has the fallback of this key.
    return handle->hasKernelForDispatchKey(DispatchKey::BackendSelect);
  }
};

}  // namespace

Result<std::unique_ptr<DeviceBackend>> make_cpu_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace callboard::kernels
