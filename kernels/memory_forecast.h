// How much memory a fragment's activations take at once, from the declared sizes. No LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "messages/graph.h"

namespace callboard::kernels {

/// Values that may share memory (views) count once and end with the last of them. What nobody declared counts as
/// nothing, so the forecast is a lower bound there.
class MemoryForecast {
 public:
  struct Peak {
    std::uint64_t bytes = 0;
    std::size_t node = 0;  ///< index in the fragment, where it peaks
  };

  MemoryForecast() = default;
  /// `frees` as compute_frees() gives them; `shared` are pairs of values of which the second may be a view of the
  /// first, in the order in which the second ones are defined.
  MemoryForecast(const Fragment& fragment, const std::vector<std::vector<ValueId>>& frees,
                 std::span<const std::pair<ValueId, ValueId>> shared);

  Peak peak(std::span<const std::int64_t> symbols) const;
  /// With every symbol at its largest; nullopt if one has no bound.
  std::optional<Peak> largest() const;
  Peak smallest() const;

 private:
  struct Block {
    std::size_t element_bytes = 0;
    std::vector<Expr> sizes;
    std::size_t first = 0;  // node that makes it
    std::size_t last = 0;   // node after which it is gone
  };
  std::vector<Block> blocks_;
  std::size_t nodes_ = 0;
  std::vector<std::int64_t> largest_;  // empty if some symbol has no bound
  std::vector<std::int64_t> smallest_;
  bool bounded_ = true;
};

}  // namespace callboard::kernels
