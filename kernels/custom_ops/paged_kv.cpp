// The paged KV cache's operators on CPU and Meta.
#include "kernels/custom_ops/paged_kv.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

namespace callboard::ops {

namespace {

void check_numbers(const char* op, const char* name, const at::Tensor& numbers, const at::Tensor& cache,
                   std::int64_t dims) {
  TORCH_CHECK(numbers.scalar_type() == at::kInt || numbers.scalar_type() == at::kLong, op, ": ", name, " is ",
              numbers.scalar_type(), "; it must be Int or Long");
  TORCH_CHECK(numbers.dim() == dims, op, ": ", name, " has ", numbers.dim(), " dimensions; it must have ", dims);
  TORCH_CHECK(numbers.device() == cache.device(), op, ": ", name, " is on ", numbers.device(), ", cache on ",
              cache.device(), "; both must be on one device");
}

void check_cache(const char* op, const at::Tensor& cache) {
  TORCH_CHECK(cache.dim() >= 2, op, ": cache has ", cache.dim(), " dimensions; it must be (blocks, block size, …)");
  TORCH_SYM_CHECK(cache.sym_size(1).sym_gt(0), op, ": cache has blocks of ", cache.sym_size(1), " tokens");
}

/// Where tokens lie, on the CPU.
class Pages {
 public:
  Pages(const char* op, const at::Tensor& cache, const at::Tensor& block_table)
      : op_(op),
        table_(block_table.to(at::kLong).contiguous()),
        blocks_(cache.size(0)),
        block_size_(cache.size(1)),
        row_(blocks_ == 0 ? 0 : cache.nbytes() / static_cast<std::size_t>(blocks_ * block_size_)) {}

  /// Checks that the tokens from `first` to before `end` of a sequence lie in blocks that there are.
  void check(std::int64_t sequence, std::int64_t first, std::int64_t end) const {
    if (first == end) return;
    TORCH_CHECK_INDEX(first >= 0 && (end - 1) / block_size_ < table_.size(1), op_, ": tokens ", first, " to ", end - 1,
                      " of sequence ", sequence, " do not fit into ", table_.size(1), " blocks of ", block_size_);
    for (std::int64_t entry = first / block_size_; entry <= (end - 1) / block_size_; ++entry) {
      const std::int64_t block = entries(sequence)[entry];
      TORCH_CHECK_INDEX(block >= 0 && block < blocks_, op_, ": block_table[", sequence, ", ", entry, "] is ", block,
                        "; cache has ", blocks_, " blocks");
    }
  }

  std::size_t row_bytes() const { return row_; }
  std::int64_t block_size() const { return block_size_; }
  /// Of a token that check() has seen.
  std::size_t offset(std::int64_t sequence, std::int64_t position) const {
    const std::int64_t block = entries(sequence)[position / block_size_];
    return static_cast<std::size_t>(block * block_size_ + position % block_size_) * row_;
  }

 private:
  const std::int64_t* entries(std::int64_t sequence) const {
    return table_.const_data_ptr<std::int64_t>() + sequence * table_.size(1);
  }

  const char* const op_;
  const at::Tensor table_;
  const std::int64_t blocks_;
  const std::int64_t block_size_;
  const std::size_t row_;
};

constexpr const char* kAppend = "callboard::paged_append";
constexpr const char* kGather = "callboard::paged_gather";
constexpr std::int64_t kSequencesAtOnce = 1;  // a sequence is work enough for a thread

void paged_append_cpu(const at::Tensor& cache, const at::Tensor& tokens, const at::Tensor& block_table,
                      const at::Tensor& positions) {
  check_paged_append(cache, tokens, block_table, positions);
  const Pages pages(kAppend, cache, block_table);
  // Kept in variables: the pointers below are good as long as these live.
  const at::Tensor from = tokens.contiguous();
  at::assert_no_overlap(cache, from);
  const at::Tensor first = positions.to(at::kLong).contiguous();
  const auto* start = first.const_data_ptr<std::int64_t>();
  const std::int64_t count = tokens.size(1);
  for (std::int64_t sequence = 0; sequence < tokens.size(0); ++sequence) {
    TORCH_CHECK_INDEX(start[sequence] >= 0, kAppend, ": positions[", sequence, "] is ", start[sequence]);
    pages.check(sequence, start[sequence], start[sequence] + count);
  }
  if (tokens.numel() == 0) return;
  auto* const to = static_cast<std::byte*>(cache.mutable_data_ptr());
  const auto* const bytes = static_cast<const std::byte*>(from.const_data_ptr());
  at::parallel_for(0, tokens.size(0), kSequencesAtOnce, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin * count; i < end * count; ++i) {
      std::memcpy(to + pages.offset(i / count, start[i / count] + i % count),
                  bytes + static_cast<std::size_t>(i) * pages.row_bytes(), pages.row_bytes());
    }
  });
}

at::Tensor paged_gather_cpu(const at::Tensor& cache, const at::Tensor& block_table, const at::Tensor& lengths,
                            std::int64_t max_length) {
  check_paged_gather(cache, block_table, lengths, max_length);
  const Pages pages(kGather, cache, block_table);
  const at::Tensor counts = lengths.to(at::kLong).contiguous();
  const auto* count = counts.const_data_ptr<std::int64_t>();
  for (std::int64_t sequence = 0; sequence < counts.numel(); ++sequence) {
    TORCH_CHECK_INDEX(count[sequence] >= 0 && count[sequence] <= max_length, kGather, ": lengths[", sequence, "] is ",
                      count[sequence], "; allowed: 0 to max_length, ", max_length);
    pages.check(sequence, 0, count[sequence]);
  }
  at::Tensor out = empty_gathered(cache, block_table, max_length);
  if (out.numel() == 0) return out;
  auto* const to = static_cast<std::byte*>(out.mutable_data_ptr());
  const auto* const from = static_cast<const std::byte*>(cache.const_data_ptr());
  const std::size_t row = out.nbytes() / static_cast<std::size_t>(out.size(0) * max_length);
  at::parallel_for(0, out.size(0), kSequencesAtOnce, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t sequence = begin; sequence < end; ++sequence) {
      std::byte* line = to + static_cast<std::size_t>(sequence * max_length) * row;
      for (std::int64_t position = 0; position < count[sequence]; position += pages.block_size()) {
        const std::int64_t together = std::min(pages.block_size(), count[sequence] - position);
        std::memcpy(line, from + pages.offset(sequence, position), static_cast<std::size_t>(together) * row);
        line += static_cast<std::size_t>(together) * row;
      }
      std::memset(line, 0, static_cast<std::size_t>(max_length - count[sequence]) * row);
    }
  });
  return out;
}

void paged_append_meta(const at::Tensor& cache, const at::Tensor& tokens, const at::Tensor& block_table,
                       const at::Tensor& positions) {
  check_paged_append(cache, tokens, block_table, positions);
}

at::Tensor paged_gather_meta(const at::Tensor& cache, const at::Tensor& block_table, const at::Tensor& lengths,
                             c10::SymInt max_length) {
  check_paged_gather(cache, block_table, lengths, max_length);
  return empty_gathered(cache, block_table, max_length);
}

/// Counts the cache's version up, so that whoever saved it for a derivative is told. PyTorch's own fallbacks do so only
/// for written tensors that an operator returns.
void paged_append_autograd(const at::Tensor& cache, const at::Tensor& tokens, const at::Tensor& block_table,
                           const at::Tensor& positions) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow(kAppend, "")
                             .typed<void(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&)>();
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    op.call(cache, tokens, block_table, positions);
  }
  torch::autograd::impl::bump_version(cache);
}

}  // namespace

void check_paged_append(const at::Tensor& cache, const at::Tensor& tokens, const at::Tensor& block_table,
                        const at::Tensor& positions) {
  check_cache(kAppend, cache);
  TORCH_CHECK(cache.is_contiguous(), kAppend, ": cache is not contiguous, and it is written to where it lies");
  TORCH_CHECK(tokens.scalar_type() == cache.scalar_type(), kAppend, ": tokens are ", tokens.scalar_type(),
              ", cache is ", cache.scalar_type(), "; both must be of one dtype");
  TORCH_CHECK(tokens.device() == cache.device(), kAppend, ": tokens are on ", tokens.device(), ", cache on ",
              cache.device(), "; both must be on one device");
  TORCH_CHECK(tokens.dim() == cache.dim(), kAppend, ": tokens have ", tokens.dim(), " dimensions, cache has ",
              cache.dim(), "; they differ in the first two sizes only");
  for (std::int64_t dim = 2; dim < cache.dim(); ++dim) {
    TORCH_SYM_CHECK(tokens.sym_size(dim).sym_eq(cache.sym_size(dim)), kAppend, ": size ", dim, " of tokens is ",
                    tokens.sym_size(dim), ", of cache ", cache.sym_size(dim));
  }
  check_numbers(kAppend, "block_table", block_table, cache, 2);
  check_numbers(kAppend, "positions", positions, cache, 1);
  TORCH_SYM_CHECK(block_table.sym_size(0).sym_eq(tokens.sym_size(0)), kAppend, ": block_table is of ",
                  block_table.sym_size(0), " sequences, tokens of ", tokens.sym_size(0));
  TORCH_SYM_CHECK(positions.sym_size(0).sym_eq(tokens.sym_size(0)), kAppend, ": positions are of ",
                  positions.sym_size(0), " sequences, tokens of ", tokens.sym_size(0));
}

void check_paged_gather(const at::Tensor& cache, const at::Tensor& block_table, const at::Tensor& lengths,
                        const c10::SymInt& max_length) {
  check_cache(kGather, cache);
  TORCH_CHECK(cache.is_contiguous(), kGather, ": cache is not contiguous");
  check_numbers(kGather, "block_table", block_table, cache, 2);
  check_numbers(kGather, "lengths", lengths, cache, 1);
  TORCH_SYM_CHECK(block_table.sym_size(0).sym_eq(lengths.sym_size(0)), kGather, ": block_table is of ",
                  block_table.sym_size(0), " sequences, lengths of ", lengths.sym_size(0));
  TORCH_SYM_CHECK(max_length.sym_ge(0), kGather, ": max_length is ", max_length);
}

at::Tensor empty_gathered(const at::Tensor& cache, const at::Tensor& block_table, const c10::SymInt& max_length) {
  std::vector<c10::SymInt> sizes(cache.sym_sizes().begin(), cache.sym_sizes().end());
  sizes[0] = block_table.sym_size(0);
  sizes[1] = max_length;
  return at::empty_symint(sizes, cache.options());
}

}  // namespace callboard::ops

TORCH_LIBRARY_IMPL(callboard, CPU, m) {
  m.impl("paged_append", callboard::ops::paged_append_cpu);
  m.impl("paged_gather", callboard::ops::paged_gather_cpu);
}
TORCH_LIBRARY_IMPL(callboard, Meta, m) {
  m.impl("paged_append", callboard::ops::paged_append_meta);
  m.impl("paged_gather", callboard::ops::paged_gather_meta);
}
TORCH_LIBRARY_IMPL(callboard, Autograd, m) {
  m.impl("paged_append", callboard::ops::paged_append_autograd);
  m.impl("paged_gather", torch::autograd::autogradNotImplementedFallback());
}
