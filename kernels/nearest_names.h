// Names that somebody may have meant. No LibTorch.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace callboard::kernels {

/// At most `count` of `names`, nearest first by edit distance; those that differ in more than half of their letters are
/// left out.
std::vector<std::string> nearest_names(std::string_view wanted, std::span<const std::string> names, std::size_t count);

}  // namespace callboard::kernels
