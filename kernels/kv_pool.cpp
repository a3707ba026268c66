#include "kernels/kv_pool.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace callboard::kernels {

namespace {

std::size_t checked_size(std::int64_t num_blocks) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (num_blocks < 0 || num_blocks > kMost) {
    throw std::invalid_argument("num_blocks is " + std::to_string(num_blocks) + "; allowed: 0 to " +
                                std::to_string(kMost));
  }
  return static_cast<std::size_t>(num_blocks);
}

}  // namespace

BlockPool::BlockPool(std::int64_t num_blocks) : owners_(checked_size(num_blocks)), free_(owners_.size()) {
  std::generate(free_.rbegin(), free_.rend(), [next = std::int32_t{0}]() mutable { return next++; });
}

std::optional<std::vector<std::int32_t>> BlockPool::allocate(std::int64_t n) {
  if (n < 0 || n > num_free()) return std::nullopt;
  // Made whole before anything changes: it may throw.
  std::vector<std::int32_t> taken(free_.rbegin(), free_.rbegin() + n);
  for (const std::int32_t block : taken) owners_[static_cast<std::size_t>(block)] = 1;
  free_.resize(free_.size() - static_cast<std::size_t>(n));
  return taken;
}

std::optional<std::vector<std::vector<std::int32_t>>> BlockPool::allocate_many(std::span<const std::int64_t> counts) {
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] < 0) {
      throw std::invalid_argument("counts[" + std::to_string(i) + "] is " + std::to_string(counts[i]) +
                                  "; allowed: numbers from 0 on");
    }
  }
  // Against what is left, so that no sum can overflow.
  std::int64_t left = num_free();
  for (const std::int64_t count : counts) {
    if (count > left) return std::nullopt;
    left -= count;
  }
  std::vector<std::vector<std::int32_t>> taken;
  taken.reserve(counts.size());
  auto next = free_.rbegin();
  for (const std::int64_t count : counts) {
    taken.emplace_back(next, next + count);
    next += count;
  }
  for (const auto& blocks : taken) {
    for (const std::int32_t block : blocks) owners_[static_cast<std::size_t>(block)] = 1;
  }
  free_.resize(static_cast<std::size_t>(left));
  return taken;
}

void BlockPool::retain(std::int64_t block) {
  std::uint32_t& owners = owners_[checked(block)];
  if (owners == 0) throw std::logic_error("block " + std::to_string(block) + " is free: allocate it");
  if (owners == std::numeric_limits<std::uint32_t>::max()) {
    throw std::logic_error("block " + std::to_string(block) + " has as many owners as can be counted");
  }
  ++owners;
}

void BlockPool::release(std::int64_t block) {
  std::uint32_t& owners = owners_[checked(block)];
  if (owners == 0) throw std::logic_error("block " + std::to_string(block) + " is free: it was released before");
  // Has room for every block since the start, so it cannot throw.
  if (owners == 1) free_.push_back(static_cast<std::int32_t>(block));
  --owners;
}

std::size_t BlockPool::checked(std::int64_t block) const {
  if (block < 0 || block >= num_blocks()) {
    throw std::out_of_range("there is no block " + std::to_string(block) + "; the pool has " +
                            std::to_string(num_blocks()));
  }
  return static_cast<std::size_t>(block);
}

std::size_t common_prefix(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  const std::size_t shorter = std::min(a.size(), b.size());
  return static_cast<std::size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(shorter), b.begin()).first - a.begin());
}

}  // namespace callboard::kernels
