#include "kernels/cuda_plugin/cuda_capture.h"

#include <atomic>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include "kernels/cuda_plugin/cuda_stream.h"

namespace callboard::kernels {

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

/// Which capture is under way; read by the allocators' filters, under their locks.
using CaptureId = std::atomic<unsigned long long>;

/// Is the stream part of that capture? Other streams join it by waiting for its events.
bool is_capturing(cudaStream_t stream, const CaptureId& capture) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  if (cudaStreamGetCaptureInfo(stream, &status, &id) != cudaSuccess) {
    cudaGetLastError();  // else the next call would report it
    return false;
  }
  return status == cudaStreamCaptureStatusActive && id == capture.load();
}

class CudaCapturedWork final : public CapturedWork {
 public:
  CudaCapturedWork(CudaShared shared, cudaStream_t stream, cudaGraphExec_t graph, std::unique_ptr<GraphPoolUse> pool)
      : shared_(std::move(shared)), stream_(stream), graph_(graph), pool_(std::move(pool)) {}
  ~CudaCapturedWork() override { static_cast<void>(note(cudaGraphExecDestroy(graph_), "cudaGraphExecDestroy")); }
  CudaCapturedWork(const CudaCapturedWork&) = delete;
  CudaCapturedWork& operator=(const CudaCapturedWork&) = delete;

  Status replay() override { return note(cudaGraphLaunch(graph_, stream_), "cudaGraphLaunch"); }

 private:
  Status note(cudaError_t code, std::string_view call) const { return shared_.health->note(forgotten(code), call); }

  const CudaShared shared_;
  const cudaStream_t stream_;
  const cudaGraphExec_t graph_;
  const std::unique_ptr<GraphPoolUse> pool_;  // after the graph
};

Status refused(const CudaShared& shared, cudaError_t code, std::string_view call) {
  const Status noted = shared.health->note(forgotten(code), call);
  if (noted || noted.error().code == ErrorCode::kDeviceFailed) return noted;
  return fail(ErrorCode::kUnsupported, "the device refused the capture: " + noted.error().message);
}

/// A capture from its begin to its end, whatever happens in between.
class Capture {
 public:
  explicit Capture(cudaStream_t stream) : stream_(stream) {}
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  ~Capture() {
    if (open_) forgotten(end());
    if (graph_ != nullptr) forgotten(cudaGraphDestroy(graph_));
  }

  cudaError_t begin(CaptureId& id) {
    // Only this thread's calls are watched: the communicate stream's thread may allocate and wait meanwhile.
    const cudaError_t begun = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
    if (begun != cudaSuccess) return begun;
    open_ = true;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long number = 0;
    const cudaError_t known = cudaStreamGetCaptureInfo(stream_, &status, &number);
    id.store(number);
    return known;
  }
  /// Leaves the stream as it was, also where the capture had become invalid.
  cudaError_t end() {
    open_ = false;
    const cudaError_t ended = cudaStreamEndCapture(stream_, &graph_);
    if (ended != cudaSuccess) graph_ = nullptr;
    return ended;
  }
  cudaGraph_t graph() const { return graph_; }

 private:
  const cudaStream_t stream_;
  bool open_ = false;
  cudaGraph_t graph_ = nullptr;
};

Status call(const std::function<Status()>& work) {
  try {
    return work();
  } catch (const std::exception& thrown) {
    return fail(ErrorCode::kUnsupported, thrown.what());
  }
}

}  // namespace

GraphPoolUse::~GraphPoolUse() {
  end();
  // Neither throws where the use was counted.
  if (host_used_) at::getHostAllocator(at::kCUDA)->release_pool(pool_);
  if (device_used_) allocator::releasePool(device_, pool_);
}

void GraphPoolUse::begin(const std::function<bool(cudaStream_t)>& takes) {
  allocator::beginAllocateToPool(device_, pool_, takes);
  device_used_ = device_open_ = true;
  at::getHostAllocator(at::kCUDA)->begin_allocate_to_pool(pool_, [takes](c10::Stream stream) {
    return takes(c10::cuda::CUDAStream(c10::cuda::CUDAStream::UNCHECKED, stream));
  });
  host_used_ = host_open_ = true;
}

void GraphPoolUse::end() {
  if (std::exchange(host_open_, false)) at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(pool_);
  if (std::exchange(device_open_, false)) allocator::endAllocateToPool(device_, pool_);
}

Result<std::unique_ptr<CapturedWork>> capture_work(const CudaShared& shared, cudaStream_t stream,
                                                   const std::function<Status()>& work) {
  const auto id = std::make_shared<CaptureId>(0);
  auto pool = std::make_unique<GraphPoolUse>(shared.device, shared.graph_pool);
  try {
    // Before the capture: what another thread frees in between must not record events into it.
    pool->begin([id](cudaStream_t allocating) { return is_capturing(allocating, *id); });
  } catch (const c10::Error& thrown) {
    return fail(ErrorCode::kUnsupported, std::string("no capture can begin: ") + thrown.what_without_backtrace());
  }
  Capture capture(stream);
  CALLBOARD_TRY(refused(shared, capture.begin(*id), "cudaStreamBeginCapture"));
  const Status done = call(work);
  const cudaError_t ended = capture.end();
  pool->end();
  if (!done) {
    cudaGetLastError();  // of the call that made the capture invalid; else the next one would report it
    return fail(done.error());
  }
  CALLBOARD_TRY(refused(shared, ended, "cudaStreamEndCapture"));
  cudaGraphExec_t graph = nullptr;
  CALLBOARD_TRY(
      refused(shared,
              cudaGraphInstantiate(&graph, capture.graph(),
                                   cudaGraphInstantiateFlagAutoFreeOnLaunch | cudaGraphInstantiateFlagUseNodePriority),
              "cudaGraphInstantiate"));
  return std::make_unique<CudaCapturedWork>(shared, stream, graph, std::move(pool));
}

}  // namespace callboard::kernels
