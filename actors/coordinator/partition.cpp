#include "actors/coordinator/partition.h"

#include <algorithm>

namespace callboard::actors {
namespace {

/// Gives each device as many blocks as it can take below `bound`. That is optimal: cost and memory of a part only grow
/// with it, so what an earlier device takes never makes it harder for a later one.
class Filler {
 public:
  explicit Filler(const PartitionProblem& problem)
      : problem_(problem), seen_(problem.storage_bytes.size(), 0) {}

  /// `spread`: leave one block for each device that comes after.
  std::optional<std::vector<std::size_t>> fill(double bound, bool spread) {
    const std::size_t count = problem_.blocks.size();
    const std::size_t devices = problem_.limits.size();
    std::vector<std::size_t> ends;
    std::size_t next = 0;
    for (std::size_t device = 0; device < devices; ++device) {
      start_part();
      const std::size_t first = next;
      const std::size_t later = devices - 1 - device;
      while (next < count && !(spread && next > first && count - next <= later) && take(next, device, bound)) ++next;
      ends.push_back(next);
    }
    if (next < count) return std::nullopt;
    return ends;
  }

 private:
  void start_part() {
    ++stamp_;
    cost_ = 0;
    constants_ = 0;
    live_ = 0;
  }

  bool take(std::size_t index, std::size_t device, double bound) {
    const PartitionBlock& block = problem_.blocks[index];
    if (cost_ + block.cost > bound) return false;
    std::uint64_t constants = constants_;
    for (std::uint32_t storage : block.storages) {
      if (seen_[storage] != stamp_) constants += problem_.storage_bytes[storage];
      seen_[storage] = stamp_;  // harmless if the block is refused: the part ends with it
    }
    const std::uint64_t live = std::max(live_, block.live_bytes);
    const std::uint64_t limit = problem_.limits[device];
    if (limit != 0 && constants + live > limit) return false;
    cost_ += block.cost;
    constants_ = constants;
    live_ = live;
    return true;
  }

  const PartitionProblem& problem_;
  std::vector<std::uint64_t> seen_;  // storage -> number of the part that counted it last
  std::uint64_t stamp_ = 0;
  double cost_ = 0;
  std::uint64_t constants_ = 0;
  std::uint64_t live_ = 0;
};

}  // namespace

std::optional<std::vector<std::size_t>> partition_contiguous(const PartitionProblem& problem) {
  constexpr int kRoundsMax = 64;
  constexpr double kCloseEnough = 1e-6;
  double dearest = 0;
  double total = 0;
  for (const PartitionBlock& block : problem.blocks) {
    dearest = std::max(dearest, block.cost);
    total += block.cost;
  }
  total *= 1 + kCloseEnough;  // sums in another order must not exceed it by rounding
  Filler filler(problem);
  bool spread = true;
  auto best = filler.fill(total, spread);
  if (!best) {
    spread = false;
    best = filler.fill(total, spread);
  }
  if (!best) return std::nullopt;
  double low = std::max(dearest, total / static_cast<double>(problem.limits.size()) * (1 - 2 * kCloseEnough));
  double high = total;
  if (auto ends = filler.fill(low, spread)) return ends;
  for (int round = 0; round < kRoundsMax && high - low > kCloseEnough * high; ++round) {
    const double middle = (low + high) / 2;
    if (auto ends = filler.fill(middle, spread)) {
      best = std::move(ends);
      high = middle;
    } else {
      low = middle;
    }
  }
  return best;
}

}  // namespace callboard::actors
