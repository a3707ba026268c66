// A device stream of a GPU, its events and its captured work.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/device_error.h"
#include "kernels/cuda/host_staging.h"
#include "kernels/cuda/runtime_table.h"
#include "kernels/cuda_plugin/cuda_lending.h"
#include "kernels/device_backend.h"
#include "kernels/host_event.h"

namespace callboard::kernels {

/// What all streams of one GPU share.
struct CudaShared {
  c10::DeviceIndex device = 0;
  cuda::RuntimeTable& runtime;
  std::shared_ptr<cuda::DeviceHealth> health;
  CudaLending& lending;
  /// Of all captured work: replays follow each other on one stream. In use as long as the backend lives.
  c10::MempoolId_t graph_pool;
};

/// A code of a call that went around the table, which forgets such codes itself: what failed stays as the thread's last
/// error, where LibTorch would take it for its own after the next kernel or allocation. Not ready counts as well.
inline cuda::Code forgotten(cudaError_t code) {
  if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
  return static_cast<cuda::Code>(code);
}

/// Events without timing, made once and used again. Any thread.
class CudaEventPool {
 public:
  explicit CudaEventPool(CudaShared shared) : shared_(std::move(shared)) {}
  ~CudaEventPool();
  CudaEventPool(const CudaEventPool&) = delete;
  CudaEventPool& operator=(const CudaEventPool&) = delete;

  /// The device is the calling thread's current one.
  Result<cuda::Event> take();
  void give_back(cuda::Event event) noexcept;
  const CudaShared& shared() const { return shared_; }

 private:
  static constexpr std::size_t kKeptMax = 256;
  const CudaShared shared_;
  std::mutex mutex_;
  std::vector<cuda::Event> free_;  // guarded by mutex_
};

class CudaEvent final : public DeviceEvent {
 public:
  CudaEvent(std::shared_ptr<CudaEventPool> pool, cuda::Event event) : pool_(std::move(pool)), event_(event) {}
  ~CudaEvent() override { pool_->give_back(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  /// True also where the device has failed: what waits for it must go on to find that.
  bool ready() const override;
  cuda::Event raw() const { return event_; }

 private:
  const std::shared_ptr<CudaEventPool> pool_;
  const cuda::Event event_;
};

/// A stream of its own, which no library shares: c10's pool hands the same 32 streams to whoever asks.
class CudaStream final : public StreamContext {
 public:
  /// What `events` shares outlives it. Its allocations can be lent.
  static Result<std::unique_ptr<CudaStream>> create(StreamKind kind, std::shared_ptr<CudaEventPool> events);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void enter() override;
  void leave() override;
  bool is_current() const override;
  std::shared_ptr<DeviceEvent> record() override;
  Status wait(const DeviceEvent& event, TimePoint deadline) override;
  Status copy(void* to, const void* from, std::size_t bytes) override;
  Status read_back(void* to, const void* from, std::size_t bytes, TimePoint deadline) override;
  Status synchronize(TimePoint deadline) override;
  bool can_capture() const override { return true; }
  Result<std::unique_ptr<CapturedWork>> capture(const std::function<Status()>& work) override;

  cuda::Stream raw() const { return reinterpret_cast<cuda::Stream>(raw_); }

 private:
  CudaStream(cudaStream_t raw, std::shared_ptr<CudaEventPool> events);
  Status note(cudaError_t code, std::string_view call, std::string_view about = {}) const {
    return shared_.health->note(forgotten(code), call, about);
  }

  const std::shared_ptr<CudaEventPool> events_;
  const CudaShared& shared_;
  const cudaStream_t raw_;
  const c10::cuda::CUDAStream stream_;
  const std::unique_ptr<cuda::HostStaging> staging_;
  c10::cuda::CUDAStream previous_;
  c10::DeviceIndex previous_device_ = 0;
};

}  // namespace callboard::kernels
