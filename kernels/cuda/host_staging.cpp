#include "kernels/cuda/host_staging.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "kernels/memory/memory_budget.h"

namespace callboard::kernels::cuda {

namespace {

// A chunk of 4 MiB takes some 200 µs: asked in steps of this, so that a device that hangs meets the deadline.
constexpr std::chrono::microseconds kAskAgain{20};
constexpr std::size_t kPinnedAlignment = 64;

class HostStagingImpl final : public HostStaging {
 public:
  HostStagingImpl(RuntimeTable& runtime, std::shared_ptr<DeviceHealth> health, int device, Stream stream,
                  std::size_t chunk_bytes)
      : runtime_(runtime), health_(std::move(health)), device_(device), stream_(stream), chunk_bytes_(chunk_bytes) {}

  ~HostStagingImpl() override {
    const CurrentDeviceGuard current(runtime_, *health_, device_);
    if (!current.status()) return;
    for (Slot& slot : slots_) {
      if (slot.busy && !health_->note(runtime_.event_synchronize(slot.done), "cudaEventSynchronize")) return;
      if (slot.memory != nullptr) (void)health_->note(runtime_.free_host(slot.memory), "cudaFreeHost");
      if (slot.done != nullptr) (void)health_->note(runtime_.event_destroy(slot.done), "cudaEventDestroy");
    }
  }

  Status to_host(void* to, const void* from, std::size_t bytes, TimePoint deadline) override {
    const CurrentDeviceGuard current(runtime_, *health_, device_);
    CALLBOARD_TRY(current.status());
    CALLBOARD_TRY(prepare());
    const std::size_t chunks = (bytes + chunk_bytes_ - 1) / chunk_bytes_;
    const auto start = [&](std::size_t chunk) {
      slots_[chunk % 2].used = chunk_bytes_;  // nothing may be put there before this copy is known to be done
      return copy(slots_[chunk % 2].memory, at(from, chunk), length(chunk, bytes), slots_[chunk % 2]);
    };
    if (chunks > 0) CALLBOARD_TRY(start(0));
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      if (chunk + 1 < chunks) CALLBOARD_TRY(start(chunk + 1));
      CALLBOARD_TRY(settle(slots_[chunk % 2], deadline));
      std::memcpy(static_cast<std::byte*>(to) + chunk * chunk_bytes_, slots_[chunk % 2].memory, length(chunk, bytes));
    }
    return {};
  }

  Status to_device(void* to, const void* from, std::size_t bytes, TimePoint deadline) override {
    const CurrentDeviceGuard current(runtime_, *health_, device_);
    CALLBOARD_TRY(current.status());
    CALLBOARD_TRY(prepare());
    const std::size_t chunks = (bytes + chunk_bytes_ - 1) / chunk_bytes_;
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      const std::size_t size = length(chunk, bytes);
      CALLBOARD_ASSIGN(void* const pinned, take_pinned(size, deadline));
      std::memcpy(pinned, at(from, chunk), size);
      CALLBOARD_TRY(copy(static_cast<std::byte*>(to) + chunk * chunk_bytes_, pinned, size, slots_[filling_]));
    }
    return {};
  }

 private:
  struct Slot {
    void* memory = nullptr;  ///< pinned
    Event done = nullptr;
    bool busy = false;     ///< copies that are not known to be done read or write it; `done` is behind the last one
    std::size_t used = 0;  ///< bytes from its start that such copies read or write
  };

  const void* at(const void* from, std::size_t chunk) const {
    return static_cast<const std::byte*>(from) + chunk * chunk_bytes_;
  }
  std::size_t length(std::size_t chunk, std::size_t bytes) const {
    return std::min(chunk_bytes_, bytes - chunk * chunk_bytes_);
  }

  Status prepare() {
    for (Slot& slot : slots_) {
      if (slot.memory == nullptr) {
        CALLBOARD_TRY(health_->note(runtime_.malloc_host(&slot.memory, chunk_bytes_), "cudaHostAlloc",
                                    format_bytes(chunk_bytes_) + " pinned"));
      }
      if (slot.done == nullptr) {
        CALLBOARD_TRY(health_->note(runtime_.event_create(&slot.done, EventKind::kLocal), "cudaEventCreateWithFlags"));
      }
    }
    return {};
  }

  /// Memory that no copy reads any more: small copies share a buffer, so that they wait for one another only when two
  /// buffers are full of them.
  Result<void*> take_pinned(std::size_t bytes, TimePoint deadline) {
    Slot* slot = &slots_[filling_];
    if (slot->busy && chunk_bytes_ - slot->used < bytes) {
      filling_ = 1 - filling_;
      slot = &slots_[filling_];
      CALLBOARD_TRY(settle(*slot, deadline));
    }
    if (!slot->busy) slot->used = 0;
    void* const taken = static_cast<std::byte*>(slot->memory) + slot->used;
    slot->used =
        std::min(chunk_bytes_, slot->used + (bytes + kPinnedAlignment - 1) / kPinnedAlignment * kPinnedAlignment);
    return taken;
  }

  Status copy(void* to, const void* from, std::size_t bytes, Slot& slot) {
    slot.busy = true;  // whatever the calls say: they may have queued it
    CALLBOARD_TRY(
        health_->note(runtime_.memcpy_async(to, from, bytes, stream_), "cudaMemcpyAsync", format_bytes(bytes)));
    return health_->note(runtime_.event_record(slot.done, stream_), "cudaEventRecord");
  }

  Status settle(Slot& slot, TimePoint deadline) {
    if (!slot.busy) return {};
    for (;;) {
      const Code code = runtime_.event_query(slot.done);
      if (health_->failed() || code_info(code).failure != Failure::kNotReady) {
        CALLBOARD_TRY(health_->note(code, "cudaEventQuery", "a copy between device and host"));
        slot.busy = false;
        return {};
      }
      if (Clock::now() >= deadline) {
        return fail(ErrorCode::kDeadlineExceeded, "a copy between device and host was not done at its deadline");
      }
      std::this_thread::sleep_for(kAskAgain);  // tidy: allow, CUDA has no wait with a deadline
    }
  }

  RuntimeTable& runtime_;
  const std::shared_ptr<DeviceHealth> health_;
  const int device_;
  const Stream stream_;
  const std::size_t chunk_bytes_;
  std::array<Slot, 2> slots_;
  std::size_t filling_ = 0;  // of copies to the device
};

}  // namespace

std::unique_ptr<HostStaging> HostStaging::create(RuntimeTable& runtime, std::shared_ptr<DeviceHealth> health,
                                                 int device, Stream stream, std::size_t chunk_bytes) {
  return std::make_unique<HostStagingImpl>(runtime, std::move(health), device, stream, chunk_bytes);
}

}  // namespace callboard::kernels::cuda
