// What the CUDA kernels of this library share. Generic c10 in place of c10/cuda: the library must load where only
// libtorch_cpu is, which brings the CUDA runtime but not libc10_cuda.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

namespace callboard::ops {

/// The stream that at::cuda::getCurrentCUDAStream() gives, from the same place.
inline cudaStream_t current_stream(c10::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  return static_cast<cudaStream_t>(guard.getStream(device).native_handle());
}

/// After a launch; the work itself is not waited for.
inline void check_launch(const char* op) {
  const cudaError_t error = cudaGetLastError();
  TORCH_CHECK(error == cudaSuccess, op, ": the kernel could not be started: ", cudaGetErrorString(error));
}

/// As many blocks as there is work for, within what a grid can have; kernels stride over the rest.
inline unsigned int grid_of(std::int64_t work) {
  return static_cast<unsigned int>(std::clamp<std::int64_t>(work, 1, 0x7fffffff));
}

}  // namespace callboard::ops
