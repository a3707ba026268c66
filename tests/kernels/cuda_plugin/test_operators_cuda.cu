// Operators for tests on a GPU: one that takes as long as it is told, one that breaks the context.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>

namespace {

/// Waits by the device's own clock, then copies: whoever does not wait for it reads something else.
__global__ void spin_then_add(const float* from, float* to, std::int64_t count, std::int64_t nanoseconds, float add) {
  std::uint64_t begin = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  std::uint64_t now = begin;
  while (now - begin < static_cast<std::uint64_t>(nanoseconds)) {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  }
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    to[i] = from[i] + add;
  }
}

__global__ void trap_kernel() { asm volatile("trap;"); }

at::Tensor spin_add(const at::Tensor& x, double milliseconds, double add) {
  TORCH_CHECK(x.scalar_type() == at::kFloat && x.is_contiguous(), "spin_add takes contiguous float32");
  at::Tensor out = at::empty_like(x);
  constexpr unsigned int kThreads = 256;
  const auto blocks = static_cast<unsigned int>(std::clamp<std::int64_t>(x.numel() / kThreads, 1, 64));
  spin_then_add<<<blocks, kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
      x.const_data_ptr<float>(), out.mutable_data_ptr<float>(), x.numel(),
      static_cast<std::int64_t>(milliseconds * 1e6), static_cast<float>(add));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

at::Tensor trap(const at::Tensor& x) {
  trap_kernel<<<1, 1, 0, c10::cuda::getCurrentCUDAStream()>>>();
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return x.clone();
}

/// Leaves another stream current than it was called on.
at::Tensor leave_stream(const at::Tensor& x) {
  c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromPool());
  return x.clone();
}

}  // namespace

TORCH_LIBRARY(cbgpu, m) {
  m.def("spin_add(Tensor x, float milliseconds, float add) -> Tensor");
  m.def("trap(Tensor x) -> Tensor");
  m.def("leave_stream(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(cbgpu, CUDA, m) {
  m.impl("spin_add", spin_add);
  m.impl("trap", trap);
  m.impl("leave_stream", leave_stream);
}
