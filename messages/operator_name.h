// Whose operators those of a namespace are.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace callboard {

/// Of PyTorch and of the program format: nobody else brings operators there. Sorted as they are shown.
constexpr std::array<std::string_view, 4> kReservedNamespaces{"aten", "prim", "prims", "callboard_sym"};

constexpr bool is_reserved_namespace(std::string_view name) {
  return std::ranges::find(kReservedNamespaces, name) != kReservedNamespaces.end();
}

}  // namespace callboard
