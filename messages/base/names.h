// Names that somebody may have meant.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace callboard {

/// Letters to add, remove, replace or swap with their neighbour on the way from `a` to `b` (optimal string alignment).
/// Costs the product of the lengths: bound them.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// At most `count` of `names`, nearest first by edit distance; those that differ in more than half of their letters are
/// left out.
std::vector<std::string> nearest_names(std::string_view wanted, std::span<const std::string> names, std::size_t count);

}  // namespace callboard
