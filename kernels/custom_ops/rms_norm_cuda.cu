// callboard::rms_norm on CUDA: one kernel, one block a row. The row is read from memory once and kept in the block's
// shared memory; a row that is too long for that is read a second time, then as a rule from the L2 cache.
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/custom_ops/launch_cuda.h"
#include "kernels/custom_ops/rms_norm.h"

namespace callboard::ops {

namespace {

constexpr int kWarp = 32;
constexpr int kThreadsMax = 512;
constexpr std::int64_t kVectorBytes = 16;               // the widest load that there is
constexpr std::int64_t kSharedRowBytesMax = 46 * 1024;  // of the 48 KiB that every device grants without asking

template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T values[kCount];
};

/// The sum over the block, for every thread of it.
template <class Sum>
__device__ Sum block_sum(Sum value) {
  __shared__ Sum of_warps[kThreadsMax / kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  Sum total = 0;
  for (unsigned int warp = 0; warp < blockDim.x / kWarp; ++warp) total += of_warps[warp];
  __syncthreads();  // of_warps is written again for the next row
  return total;
}

/// blockDim.x is a multiple of kWarp. `packs` are a row's, kCount elements each. Each thread reads back from `kept`
/// only what it wrote itself.
template <class T, class Sum, int kCount, bool kKeep>
__global__ void rms_norm_kernel(const T* x, const T* weight, T* y, std::int64_t rows, std::int64_t packs, double eps) {
  using Packed = Pack<T, kCount>;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* const kept = reinterpret_cast<Packed*>(shared);
  const auto* const factors = reinterpret_cast<const Packed*>(weight);
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const auto* const from = reinterpret_cast<const Packed*>(x) + row * packs;
    auto* const to = reinterpret_cast<Packed*>(y) + row * packs;
    Sum sum = 0;
    for (std::int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
      const Packed pack = from[i];
      if constexpr (kKeep) kept[i] = pack;
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const Sum value = static_cast<Sum>(pack.values[k]);
        sum += value * value;
      }
    }
    const double mean = static_cast<double>(block_sum(sum)) / (static_cast<double>(packs) * kCount);
    const Sum factor = static_cast<Sum>(rsqrt(mean + eps));
    for (std::int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
      Packed pack = kKeep ? kept[i] : from[i];
      const Packed by = factors[i];
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        pack.values[k] = static_cast<T>(static_cast<Sum>(pack.values[k]) * factor * static_cast<Sum>(by.values[k]));
      }
      to[i] = pack;
    }
  }
}

template <class T, class Sum, int kCount>
void launch(const T* x, const T* weight, T* y, std::int64_t rows, std::int64_t width, double eps, cudaStream_t stream) {
  const std::int64_t packs = width / kCount;
  const std::int64_t threads = std::clamp<std::int64_t>((packs + kWarp - 1) / kWarp * kWarp, kWarp, kThreadsMax);
  const std::int64_t bytes = width * static_cast<std::int64_t>(sizeof(T));
  const dim3 grid(grid_of(rows));
  const dim3 block(static_cast<unsigned int>(threads));
  if (bytes <= kSharedRowBytesMax) {
    rms_norm_kernel<T, Sum, kCount, true>
        <<<grid, block, static_cast<std::size_t>(bytes), stream>>>(x, weight, y, rows, packs, eps);
  } else {
    rms_norm_kernel<T, Sum, kCount, false><<<grid, block, 0, stream>>>(x, weight, y, rows, packs, eps);
  }
}

bool on_vector(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % kVectorBytes == 0; }

at::Tensor rms_norm_cuda(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_rms_norm(x, weight, eps);
  const c10::DeviceGuard guard(x.device());
  at::Tensor y = at::empty(x.sizes(), x.options());
  if (x.numel() == 0) return y;
  // Kept in variables: the pointers below are good as long as these live. Memory that dies here is not used again
  // before the stream is done with it, which the caching allocator sees to.
  const at::Tensor contiguous = x.contiguous();
  const at::Tensor factors = weight.contiguous();
  const std::int64_t width = x.size(-1);
  const std::int64_t rows = x.numel() / width;
  const cudaStream_t stream = current_stream(x.device());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "callboard::rms_norm", [&] {
    using Sum = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
    constexpr int kCount = kVectorBytes / sizeof(scalar_t);
    const auto* from = contiguous.const_data_ptr<scalar_t>();
    const auto* by = factors.const_data_ptr<scalar_t>();
    auto* to = y.mutable_data_ptr<scalar_t>();
    if (width % kCount == 0 && on_vector(from) && on_vector(by) && on_vector(to)) {
      launch<scalar_t, Sum, kCount>(from, by, to, rows, width, eps, stream);
    } else {
      launch<scalar_t, Sum, 1>(from, by, to, rows, width, eps, stream);
    }
  });
  check_launch("callboard::rms_norm");
  return y;
}

}  // namespace

}  // namespace callboard::ops

TORCH_LIBRARY_IMPL(callboard, CUDA, m) { m.impl("rms_norm", callboard::ops::rms_norm_cuda); }
