#include "kernels/cuda_plugin/cuda_stream.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>

#include "kernels/cuda_plugin/cuda_capture.h"
#include "messages/base/check.h"

namespace callboard::kernels {

namespace {

/// How often a parked thread looks whether the device is still there: of one that failed nobody wakes it.
constexpr Duration kLook = std::chrono::milliseconds(50);
/// For a copy from host memory to begin: as long as a request may take by default.
constexpr Duration kCopyPatience = std::chrono::seconds(120);

}  // namespace

CudaEventPool::~CudaEventPool() {
  for (const cuda::Event event : free_) shared_.runtime.event_destroy(event);
}

Result<cuda::Event> CudaEventPool::take() {
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      const cuda::Event event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  cuda::Event event = nullptr;
  CALLBOARD_TRY(shared_.health->note(shared_.runtime.event_create(&event, cuda::EventKind::kLocal), "cudaEventCreate"));
  return event;
}

void CudaEventPool::give_back(cuda::Event event) noexcept {
  {
    std::lock_guard lock(mutex_);
    if (free_.size() < kKeptMax) {
      free_.push_back(event);
      return;
    }
  }
  shared_.runtime.event_destroy(event);
}

bool CudaEvent::ready() const {
  const cuda::Code state = pool_->shared().runtime.event_query(event_);
  return cuda::code_info(state).failure != cuda::Failure::kNotReady;
}

Result<std::unique_ptr<CudaStream>> CudaStream::create(StreamKind kind, std::shared_ptr<CudaEventPool> events) {
  const CudaShared& shared = events->shared();
  const cuda::CurrentDeviceGuard guard(shared.runtime, *shared.health, shared.device);
  CALLBOARD_TRY(guard.status());
  int lowest = 0;
  int highest = 0;
  CALLBOARD_TRY(shared.health->note(forgotten(cudaDeviceGetStreamPriorityRange(&lowest, &highest)),
                                    "cudaDeviceGetStreamPriorityRange"));
  cudaStream_t raw = nullptr;
  // Copies are short and somebody waits for each: they go before kernels where both are ready.
  const int priority = kind == StreamKind::kCommunicate ? highest : lowest;
  CALLBOARD_TRY(shared.health->note(forgotten(cudaStreamCreateWithPriority(&raw, cudaStreamNonBlocking, priority)),
                                    "cudaStreamCreateWithPriority"));
  return std::unique_ptr<CudaStream>(new CudaStream(raw, std::move(events)));
}

CudaStream::CudaStream(cudaStream_t raw, std::shared_ptr<CudaEventPool> events)
    : events_(std::move(events)),
      shared_(events_->shared()),
      raw_(raw),
      stream_(c10::cuda::getStreamFromExternal(raw, shared_.device)),
      staging_(cuda::HostStaging::create(shared_.runtime, shared_.health, shared_.device,
                                         reinterpret_cast<cuda::Stream>(raw))),
      previous_(c10::cuda::getDefaultCUDAStream(shared_.device)) {
  shared_.lending.add_stream(raw_);
}

CudaStream::~CudaStream() {
  shared_.lending.remove_stream(raw_);
  // What it was given may still write to memory that goes next. On a device that failed neither says anything of use.
  shared_.runtime.stream_synchronize(raw());
  shared_.runtime.stream_destroy(raw());
}

void CudaStream::enter() {
  previous_device_ = c10::cuda::current_device();
  previous_ = c10::cuda::getCurrentCUDAStream(shared_.device);
  c10::cuda::set_device(shared_.device);
  c10::cuda::setCurrentCUDAStream(stream_);
}

void CudaStream::leave() {
  c10::cuda::setCurrentCUDAStream(previous_);
  // Neither throws, nor makes a context on a GPU that is another's: a thread's first device is 0, whoever owns that.
  static_cast<void>(c10::cuda::MaybeSetDevice(previous_device_));
}

bool CudaStream::is_current() const {
  return c10::cuda::getCurrentCUDAStream(shared_.device) == stream_ && c10::cuda::current_device() == shared_.device;
}

std::shared_ptr<DeviceEvent> CudaStream::record() {
  auto event = events_->take();
  TORCH_CHECK(event.has_value(), event ? std::string() : event.error().message);
  auto recorded = std::make_shared<CudaEvent>(events_, *event);
  const Status done = shared_.health->note(shared_.runtime.event_record(*event, raw()), "cudaEventRecord");
  TORCH_CHECK(done.has_value(), done ? std::string() : done.error().message);
  return recorded;
}

Status CudaStream::wait(const DeviceEvent& event, TimePoint /*deadline*/) {
  const auto* ours = dynamic_cast<const CudaEvent*>(&event);
  CALLBOARD_CHECK(ours != nullptr, "an event is waited for on a stream of its own backend");
  return shared_.health->note(shared_.runtime.stream_wait_event(raw(), ours->raw()), "cudaStreamWaitEvent");
}

Status CudaStream::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return {};
  cudaPointerAttributes source;
  CALLBOARD_TRY(note(cudaPointerGetAttributes(&source, from), "cudaPointerGetAttributes"));
  if (source.type == cudaMemoryTypeUnregistered) {
    // Not left to cudaMemcpyAsync: it may read pageable memory later, by a thread of the driver's (documented until
    // CUDA 11) or directly where the device can reach it; of what it has read when it returns nothing is promised ("API
    // synchronization behavior" in the runtime's reference). The caller gives the memory away at once.
    return staging_->to_device(to, from, bytes, after(Clock::now(), kCopyPatience));
  }
  const cuda::Code queued = shared_.runtime.memcpy_async(to, from, bytes, raw());
  if (queued == cuda::kSuccess) return {};
  return shared_.health->note(queued, "cudaMemcpyAsync", std::to_string(bytes) + " bytes");
}

/// The wait for the kernels before it has a deadline and parks; the copy itself takes no longer than its bytes do.
Status CudaStream::read_back(void* to, const void* from, std::size_t bytes, TimePoint deadline) {
  if (bytes == 0) return {};
  CALLBOARD_TRY(synchronize(deadline));
  return staging_->to_host(to, from, bytes, deadline);
}

/// Parked on an event of the host that the driver's own thread records: a wait inside the driver has no deadline.
Status CudaStream::synchronize(TimePoint deadline) {
  const auto state = [this] {
    const cudaError_t found = cudaStreamQuery(raw_);
    forgotten(found);
    return found;
  };
  const cudaError_t now = state();
  if (now != cudaErrorNotReady) return note(now, "cudaStreamQuery");
  using Shared = std::shared_ptr<HostEvent>;
  const auto done = std::make_shared<HostEvent>();
  auto held = std::make_unique<Shared>(done);
  const auto record = [](void* data) {
    const std::unique_ptr<Shared> owned(static_cast<Shared*>(data));
    (*owned)->record();
  };
  CALLBOARD_TRY(note(cudaLaunchHostFunc(raw_, record, held.get()), "cudaLaunchHostFunc"));
  // The call owns it now. On a device that fails it is never made, and the process ends.
  static_cast<void>(held.release());
  while (!done->wait_until(std::min(deadline, after(Clock::now(), kLook)))) {
    const cudaError_t found = state();
    if (found != cudaErrorNotReady && found != cudaSuccess) return note(found, "cudaStreamQuery");
    if (Clock::now() >= deadline && !done->ready()) {
      return fail(ErrorCode::kDeadlineExceeded, "the deadline passed while the device was at work");
    }
  }
  return shared_.health->status();
}

Result<std::unique_ptr<CapturedWork>> CudaStream::capture(const std::function<Status()>& work) {
  CALLBOARD_CHECK(is_current(), "work is captured on the thread's current stream");
  // What it allocates is the graph's: were it lent or used by others, a replay would write to their memory.
  const CudaLending::Pause pause(shared_.lending, raw_);
  return capture_work(shared_, raw_, work);
}

}  // namespace callboard::kernels
