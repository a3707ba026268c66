// The paged KV cache's operators on CUDA: a block of threads copies one token's row at a time.
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/macros/Macros.h>
#include <torch/library.h>

#include <cstdint>
#include <numeric>

#include "kernels/custom_ops/launch_cuda.h"
#include "kernels/custom_ops/paged_kv.h"

namespace callboard::ops {

namespace {

constexpr int kRowThreads = 128;

/// Whom a sequence's tokens belong to. `table` is (sequences, entries).
struct PageTable {
  const std::int64_t* table;
  std::int64_t entries;
  std::int64_t blocks;
  std::int64_t block_size;

  /// The cache's row of a token.
  __device__ std::int64_t row(std::int64_t sequence, std::int64_t position) const {
    CUDA_KERNEL_ASSERT_MSG(position >= 0 && position / block_size < entries,
                           "position is beyond the sequence's block table");
    const std::int64_t block = table[sequence * entries + position / block_size];
    CUDA_KERNEL_ASSERT_MSG(block >= 0 && block < blocks, "block_table names a block that the cache does not have");
    return block * block_size + position % block_size;
  }
};

template <class Unit>
__global__ void paged_append_kernel(Unit* cache, const Unit* tokens, const std::int64_t* positions, PageTable pages,
                                    std::int64_t rows, std::int64_t count, std::int64_t units) {
  for (std::int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
    const std::int64_t sequence = i / count;
    Unit* const to = cache + pages.row(sequence, positions[sequence] + i % count) * units;
    for (std::int64_t k = threadIdx.x; k < units; k += blockDim.x) to[k] = tokens[i * units + k];
  }
}

template <class Unit>
__global__ void paged_gather_kernel(const Unit* cache, Unit* out, const std::int64_t* lengths, PageTable pages,
                                    std::int64_t rows, std::int64_t max_length, std::int64_t units) {
  for (std::int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
    const std::int64_t sequence = i / max_length;
    const std::int64_t position = i % max_length;
    CUDA_KERNEL_ASSERT_MSG(lengths[sequence] >= 0 && lengths[sequence] <= max_length, "lengths are out of range");
    const bool there = position < lengths[sequence];
    const Unit* const from = there ? cache + pages.row(sequence, position) * units : nullptr;
    for (std::int64_t k = threadIdx.x; k < units; k += blockDim.x) out[i * units + k] = there ? from[k] : Unit{};
  }
}

/// Calls `launch` with a value of the widest type that rows and both addresses are whole numbers of.
template <class Launch>
void with_unit(std::int64_t row_bytes, const void* a, const void* b, Launch launch) {
  const auto fits = [&](std::uintptr_t bytes) {
    return (static_cast<std::uintptr_t>(row_bytes) | reinterpret_cast<std::uintptr_t>(a) |
            reinterpret_cast<std::uintptr_t>(b)) %
               bytes ==
           0;
  };
  if (fits(sizeof(int4))) return launch(int4{});
  if (fits(sizeof(std::uint32_t))) return launch(std::uint32_t{});
  if (fits(sizeof(std::uint16_t))) return launch(std::uint16_t{});
  launch(std::uint8_t{});
}

PageTable page_table(const at::Tensor& cache, const at::Tensor& table) {
  return {table.const_data_ptr<std::int64_t>(), table.size(1), cache.size(0), cache.size(1)};
}

void paged_append_cuda(const at::Tensor& cache, const at::Tensor& tokens, const at::Tensor& block_table,
                       const at::Tensor& positions) {
  check_paged_append(cache, tokens, block_table, positions);
  if (tokens.numel() == 0) return;
  const c10::DeviceGuard guard(cache.device());
  // Kept in variables: the pointers below are good as long as these live.
  const at::Tensor from = tokens.contiguous();
  at::assert_no_overlap(cache, from);
  const at::Tensor table = block_table.to(at::kLong).contiguous();
  const at::Tensor first = positions.to(at::kLong).contiguous();
  const std::int64_t rows = tokens.size(0) * tokens.size(1);
  const auto row_bytes = static_cast<std::int64_t>(from.nbytes()) / rows;
  void* const to = cache.mutable_data_ptr();
  with_unit(row_bytes, to, from.const_data_ptr(), [&](auto unit) {
    using Unit = decltype(unit);
    paged_append_kernel<<<grid_of(rows), kRowThreads, 0, current_stream(cache.device())>>>(
        static_cast<Unit*>(to), static_cast<const Unit*>(from.const_data_ptr()), first.const_data_ptr<std::int64_t>(),
        page_table(cache, table), rows, tokens.size(1), row_bytes / static_cast<std::int64_t>(sizeof(Unit)));
  });
  check_launch("callboard::paged_append");
}

at::Tensor paged_gather_cuda(const at::Tensor& cache, const at::Tensor& block_table, const at::Tensor& lengths,
                             std::int64_t max_length) {
  check_paged_gather(cache, block_table, lengths, max_length);
  const c10::DeviceGuard guard(cache.device());
  at::Tensor out = empty_gathered(cache, block_table, max_length);
  if (out.numel() == 0) return out;
  const at::Tensor table = block_table.to(at::kLong).contiguous();
  const at::Tensor counts = lengths.to(at::kLong).contiguous();
  const std::int64_t rows = out.size(0) * max_length;
  const auto row_bytes = static_cast<std::int64_t>(out.nbytes()) / rows;
  void* const to = out.mutable_data_ptr();
  with_unit(row_bytes, to, cache.const_data_ptr(), [&](auto unit) {
    using Unit = decltype(unit);
    paged_gather_kernel<<<grid_of(rows), kRowThreads, 0, current_stream(cache.device())>>>(
        static_cast<const Unit*>(cache.const_data_ptr()), static_cast<Unit*>(to), counts.const_data_ptr<std::int64_t>(),
        page_table(cache, table), rows, max_length, row_bytes / static_cast<std::int64_t>(sizeof(Unit)));
  });
  check_launch("callboard::paged_gather");
  return out;
}

}  // namespace

}  // namespace callboard::ops

TORCH_LIBRARY_IMPL(callboard, CUDA, m) {
  m.impl("paged_append", callboard::ops::paged_append_cuda);
  m.impl("paged_gather", callboard::ops::paged_gather_cuda);
}
