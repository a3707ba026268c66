// Where a GPU's results are allocated: slabs of our own, which other processes can map; in a process of a GIL domain,
// those of its device. One for each GPU and process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <ATen/cuda/MemPool.h>
#include <c10/core/Device.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/device_segments.h"

namespace callboard::kernels {

/// A pool of LibTorch's caching allocator over such segments, and which streams allocate from it when. LibTorch treats
/// a pool that is in use like a capture under way: memory that other streams read is not taken back meanwhile, nor is
/// memory given back to the system. So it is in use only while a fragment runs or its results are handed out.
class CudaLending {
 public:
  /// Lives as long as the process, since LibTorch frees storages until its end.
  CudaLending(c10::DeviceIndex device, std::shared_ptr<cuda::DeviceSegments> slabs);
  CudaLending(const CudaLending&) = delete;
  CudaLending& operator=(const CudaLending&) = delete;

  void add_stream(cudaStream_t stream);
  void remove_stream(cudaStream_t stream) noexcept;
  /// Added, and not removed since.
  bool is_alive(cudaStream_t stream) const noexcept;

  /// Between the two, our streams' allocations come from slabs. Counted.
  void begin();
  void end() noexcept;
  /// Gives free memory of all pools back. False, and nothing done, while in use or where there was none.
  bool release_cached();

  /// While it exists, `stream` allocates elsewhere.
  class Pause {
   public:
    Pause(CudaLending& lending, cudaStream_t stream) : lending_(lending) { lending_.paused_.store(stream); }
    ~Pause() { lending_.paused_.store(nullptr); }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    CudaLending& lending_;
  };

 private:
  std::unique_ptr<at::cuda::MemPool> make_pool() const;
  bool is_ours(cudaStream_t stream) const noexcept;

  static constexpr std::size_t kStreamsMax = 16;
  const c10::DeviceIndex device_;
  const std::shared_ptr<cuda::DeviceSegments> slabs_;
  std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> segments_;  // from and to slabs_
  std::mutex mutex_;
  std::unique_ptr<at::cuda::MemPool> pool_;  // guarded by mutex_
  std::size_t users_ = 0;                    // guarded by mutex_
  // Read under the allocator's lock, where no lock of ours may be taken.
  std::atomic<cudaStream_t> streams_[kStreamsMax] = {};
  std::atomic<cudaStream_t> paused_{nullptr};
};

}  // namespace callboard::kernels
