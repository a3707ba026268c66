// Decides for each node of a program which device runs it. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "actors/coordinator/planner.h"

namespace callboard::actors {

/// For each node the index of its device in `devices`. `program` has passed check_program. See plan_program for what is
/// refused.
Result<std::vector<std::uint32_t>> place_nodes(const ProgramGraph& program, const Placement& placement,
                                               std::span<const PlannerDevice> devices);

/// For each state the nodes that read what it was before or make what it is after, ascending.
std::vector<std::vector<std::uint32_t>> state_nodes(const ProgramGraph& program);

}  // namespace callboard::actors
