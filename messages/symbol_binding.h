// Internal to messages: which symbols the sizes of the inputs determine.
#pragma once

#include <span>
#include <vector>

#include "messages/graph.h"

namespace callboard {

/// For each symbol whether some input's size gives it: alone (s0), or as the one unknown of a linear size (2*s0 + s1).
/// `inputs` have passed Expr::check.
std::vector<bool> bindable_symbols(std::size_t symbol_count, std::span<const ValueSpec* const> inputs);

}  // namespace callboard
