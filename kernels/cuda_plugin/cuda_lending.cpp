#include "kernels/cuda_plugin/cuda_lending.h"

#include <utility>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include "messages/base/check.h"

namespace callboard::kernels {

namespace {
namespace allocator = c10::cuda::CUDACachingAllocator;
}  // namespace

CudaLending::CudaLending(c10::DeviceIndex device, std::shared_ptr<cuda::DeviceSegments> slabs)
    : device_(device), slabs_(std::move(slabs)) {
  // Called under the allocator's lock, by which nothing may be thrown: no memory is said by nullptr. The allocator
  // takes that as cudaErrorMemoryAllocation (allocPrimitive in c10/cuda/CUDACachingAllocator.cpp), frees what it has
  // cached, asks once more and then throws by itself.
  segments_ = torch::cuda::CUDAPluggableAllocator::createCustomAllocator(
      [pool = slabs_](std::size_t bytes, int, cudaStream_t stream) -> void* {
        return pool->allocate(bytes, reinterpret_cast<cuda::Stream>(stream)).value_or(nullptr);
      },
      [this, pool = slabs_](void* segment, std::size_t, int, cudaStream_t stream) {
        // A segment may be cached for longer than its stream lives. Streams are waited for before they end.
        pool->deallocate(segment, reinterpret_cast<cuda::Stream>(is_alive(stream) ? stream : nullptr));
      });
  pool_ = make_pool();
}

std::unique_ptr<at::cuda::MemPool> CudaLending::make_pool() const {
  const c10::cuda::CUDAGuard guard(device_);  // a pool is of the device that is current
  return std::make_unique<at::cuda::MemPool>(segments_, /*is_user_created=*/true, /*use_on_oom=*/false,
                                             /*no_split=*/false);
}

void CudaLending::add_stream(cudaStream_t stream) {
  for (auto& place : streams_) {
    cudaStream_t empty = nullptr;
    if (place.compare_exchange_strong(empty, stream)) return;
  }
  CALLBOARD_CHECK(false, "a device has a handful of streams");
}

void CudaLending::remove_stream(cudaStream_t stream) noexcept {
  for (auto& place : streams_) {
    cudaStream_t ours = stream;
    if (place.compare_exchange_strong(ours, nullptr)) return;
  }
}

bool CudaLending::is_ours(cudaStream_t stream) const noexcept { return paused_.load() != stream && is_alive(stream); }

bool CudaLending::is_alive(cudaStream_t stream) const noexcept {
  if (stream == nullptr) return false;
  for (const auto& place : streams_) {
    if (place.load() == stream) return true;
  }
  return false;
}

void CudaLending::begin() {
  std::lock_guard lock(mutex_);
  if (users_ == 0) {
    allocator::beginAllocateToPool(device_, pool_->id(), [this](cudaStream_t stream) { return is_ours(stream); });
  }
  ++users_;
}

void CudaLending::end() noexcept {
  std::lock_guard lock(mutex_);
  if (--users_ > 0) return;
  allocator::endAllocateToPool(device_, pool_->id());
  // beginAllocateToPool counts a use of the pool and endAllocateToPool does not give it back; releasePool does
  // (c10/cuda/CUDACachingAllocator.cpp). The use that the MemPool itself counted remains.
  allocator::releasePool(device_, pool_->id());
}

bool CudaLending::release_cached() {
  std::lock_guard lock(mutex_);
  if (users_ > 0) return false;
  const auto reserved = [this] {
    const auto stats = allocator::getDeviceStats(device_);
    return stats.reserved_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current;
  };
  const auto before = reserved();
  try {
    // The allocator frees what a pool has cached only when nobody uses the pool any more (free_blocks of
    // graph_pools_freeable in c10/cuda/CUDACachingAllocator.cpp), and a MemPool is a use for as long as it lives. So
    // another one takes its place. What is alive of the old one stays valid and goes with a later emptyCache(). Not by
    // the move assignment that MemPool has by default: it would leave two with one number.
    auto fresh = make_pool();
    const c10::cuda::CUDAGuard guard(device_);
    pool_.swap(fresh);
    fresh.reset();
    allocator::emptyCache();
  } catch (const c10::Error&) {
    // As below: a device that failed.
  }
  // A device that failed is found by whoever asks for its health next.
  static_cast<void>(slabs_->release_cached());
  return reserved() < before;
}

}  // namespace callboard::kernels
