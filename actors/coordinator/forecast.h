// What a program will need at least, from its declared sizes alone. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "messages/graph.h"

namespace callboard::actors {

/// Bytes of one value: at least so many whatever the symbols are; `exact` if it is always just that.
struct ForecastBytes {
  std::uint64_t least = 0;
  bool exact = true;
};
ForecastBytes forecast_bytes(const ValueSpec& spec, std::span<const SymbolSpec> symbols);

/// The highest sum of live tensors that the fragment's nodes make, each kept from its node to its last reader (outputs
/// to the end). What comes from elsewhere is not counted, nor are views, which share the memory of their base.
struct ForecastPeak {
  std::uint64_t least = 0;
  bool exact = true;
  std::size_t node = 0;  ///< index within the fragment of the node where it peaks
};
ForecastPeak forecast_peak(const Fragment& fragment);

/// For each node of the program, the live bytes while it runs if one device ran everything.
std::vector<std::uint64_t> forecast_live(const ProgramGraph& program);

/// Operators known to return a view of their first argument ("aten::view"); others count as making new memory.
bool makes_view(std::string_view op);

/// Calls `use` for every value that the node reads, also those inside size expressions. Repeats are possible.
void for_each_read(const Node& node, const std::function<void(ValueId)>& use);
/// Calls `use` for every value that the node defines.
void for_each_made(const Node& node, const std::function<void(ValueId)>& use);

}  // namespace callboard::actors
