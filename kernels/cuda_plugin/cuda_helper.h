// A GPU's memory between a device and a process of its GIL domain: both ends.
#pragma once

#include <memory>

#include "kernels/cuda/device_error.h"
#include "kernels/cuda/slab_pool.h"
#include "kernels/cuda_plugin/cuda_lending.h"
#include "kernels/helper_memory.h"

namespace callboard::kernels {

/// The device's end. All but the room outlive it; `stream` is the one that computes. kUnsupported, kDeviceFailed.
Result<std::unique_ptr<DeviceRoom>> make_cuda_room(const std::shared_ptr<cuda::DeviceHealth>& health,
                                                   const std::shared_ptr<cuda::SlabPool>& pool, CudaLending& lending,
                                                   cuda::Stream stream);

/// The child's end, on the GPU with that UUID. kEnvironment as make_cuda_backend().
Result<std::unique_ptr<DeviceGuest>> make_cuda_guest(const GuestOptions& options);

}  // namespace callboard::kernels
