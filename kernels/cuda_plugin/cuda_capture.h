// Work of a stream, captured as a CUDA graph.
#pragma once

#include <functional>
#include <memory>

#include <c10/core/Device.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <cuda_runtime_api.h>

#include "kernels/device_backend.h"

namespace callboard::kernels {

struct CudaShared;

/// One use of a pool of LibTorch's allocators, of device memory and of pinned host memory alike: begin() counts it, the
/// end of this gives it back (beginAllocateToPool and releasePool in c10/cuda/CUDACachingAllocator.cpp,
/// begin_allocate_to_pool and release_pool in ATen/core/CachingHostAllocator.h). A pool must not be used again after
/// its last use was given back: both assert that. One thread.
class GraphPoolUse {
 public:
  GraphPoolUse(c10::DeviceIndex device, c10::MempoolId_t pool) : device_(device), pool_(pool) {}
  ~GraphPoolUse();
  GraphPoolUse(const GraphPoolUse&) = delete;
  GraphPoolUse& operator=(const GraphPoolUse&) = delete;

  /// From here to end() what the streams that `takes` accepts allocate comes from the pool. It is asked under the
  /// allocators' locks. Once; throws c10::Error, after which this can only go.
  void begin(const std::function<bool(cudaStream_t)>& takes);
  void end();

 private:
  const c10::DeviceIndex device_;
  const c10::MempoolId_t pool_;
  bool device_used_ = false;
  bool device_open_ = false;
  bool host_used_ = false;
  bool host_open_ = false;
};

/// Calls `work` once on the calling thread, whose current stream `stream` is; what it queues there is captured and not
/// run. Whatever goes wrong, the capture ends here, and the allocators are as they were. The error of `work`, or
/// kUnsupported with what the device refused; kDeviceFailed.
///
/// Not at::cuda::CUDAGraph: as of LibTorch 2.11 its capture_end() throws at once where cudaStreamEndCapture gives an
/// error (aten/src/ATen/cuda/CUDAGraph.cpp), which is what every operator that cannot be captured comes to. Then the
/// caching allocator goes on to ask the graph's filter after its end, the pool's use is never given back, and the
/// default generator stays in its capturing state, so that every later random operator of the process fails.
Result<std::unique_ptr<CapturedWork>> capture_work(const CudaShared& shared, cudaStream_t stream,
                                                   const std::function<Status()>& work);

}  // namespace callboard::kernels
