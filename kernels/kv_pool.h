// Numbers of the blocks of a paged KV cache, and what a scheduler asks of token sequences. No LibTorch. Python has all
// of it as callboard.kvpool (python/bindings/kvpool.cpp); the operators that use the blocks are in kernels/custom_ops.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace callboard::kernels {

/// A fixed number of blocks, 0 to size - 1, each free or held by one or more owners. A fresh pool gives them in
/// ascending order; what was released last is given again first, since its memory is the warmest.
///
/// No lock inside: one thread at a time. In Python the GIL is what sees to it. Wrong use throws the standard exceptions
/// that pybind11 turns into Python's, and changes nothing.
class BlockPool {
 public:
  /// std::invalid_argument: below 0 or above what a 32-bit number can name. std::bad_alloc.
  explicit BlockPool(std::int64_t num_blocks);

  /// `n` blocks with one owner each. Nothing if n is negative or more than are free.
  std::optional<std::vector<std::int32_t>> allocate(std::int64_t n);
  /// For each count so many blocks; all or, where their sum is more than are free, nothing. std::invalid_argument for a
  /// negative count.
  std::optional<std::vector<std::vector<std::int32_t>>> allocate_many(std::span<const std::int64_t> counts);

  /// One owner more. std::out_of_range: there is no such block. std::logic_error: it is free, or has 2^32 - 1 owners.
  void retain(std::int64_t block);
  /// One owner less; without any the block is free. std::out_of_range, std::logic_error for a free one.
  void release(std::int64_t block);

  std::int64_t num_free() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t num_blocks() const { return static_cast<std::int64_t>(owners_.size()); }

 private:
  std::size_t checked(std::int64_t block) const;

  std::vector<std::uint32_t> owners_;  // by block; 0: free
  std::vector<std::int32_t> free_;     // taken from the end
};

/// How many tokens two sequences have in common at their start.
std::size_t common_prefix(std::span<const std::int32_t> a, std::span<const std::int32_t> b);

}  // namespace callboard::kernels
