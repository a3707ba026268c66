// Cuts a sequence into contiguous parts, one per device, so that the dearest part is as cheap as possible. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace callboard::actors {

/// What must not be cut: one node, or all nodes between the first and the last that touch a state.
struct PartitionBlock {
  double cost = 1;
  std::uint64_t live_bytes = 0;             ///< highest among its nodes
  std::vector<std::uint32_t> storages;      ///< numbers of the constants' storages it reads
};

struct PartitionProblem {
  std::vector<PartitionBlock> blocks;
  std::vector<std::uint64_t> storage_bytes;  ///< by storage number
  std::vector<std::uint64_t> limits;  ///< bytes of each device, 0 for "no limit"; their count is that of the parts
};

/// For each device the number of the first block that is no longer on it. Every device gets a block where there are
/// enough of them and memory allows. nullopt if the limits cannot be kept with parts in this order. The dearest part is
/// within 1e-6 of the optimum. O(blocks) for each of at most 64 rounds.
std::optional<std::vector<std::size_t>> partition_contiguous(const PartitionProblem& problem);

}  // namespace callboard::actors
