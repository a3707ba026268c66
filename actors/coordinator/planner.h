// Splits a program into fragments for devices. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "messages/graph.h"
#include "messages/protocol.h"

namespace callboard::actors {

struct PlannerDevice {
  std::string name;
  std::uint64_t memory_limit = 0;  ///< bytes; 0: unknown, not checked
};

/// What a fragment sends to another one in each run.
struct PlannedEdge {
  std::uint32_t to = 0;     ///< the fragment
  std::uint64_t bytes = 0;  ///< at least so many, whatever the symbols are
  bool exact = true;        ///< always just so many
};

struct Plan {
  ContentHash program;
  std::vector<Fragment> fragments;          ///< in topological order; edges go upwards only
  std::vector<PlannedFragment> summary;     ///< one per fragment
  std::vector<std::vector<PlannedEdge>> edges;  ///< one list per fragment, by where they lead
  std::vector<std::vector<std::uint32_t>> input_users;  ///< per program input: fragments that read it
  /// Where each ArgValue output of the program comes from: (fragment, number among that fragment's to_client outputs).
  /// Two outputs that are the same value have the same entry.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> client_outputs;
};

/// Refuses (all findings at once): what check_program refuses; kBadPlacement for unknown devices (nearest name),
/// prefixes that match nothing (nearest module path), ranges outside the program, a node matched by rules of two
/// devices at the same prefix length; states whose nodes are not all in one fragment; kDoesNotFit where constants and
/// forecast of a device exceed its limit even at the smallest sizes that the program allows, naming the node where it
/// peaks. Ranges beat prefixes, a longer prefix beats a shorter one, whatever their order. Without rules (or with
/// `automatic` and none) the cost is balanced over the devices by contiguous ranges; programs with state keep each
/// state's nodes together on one device. A fragment is a run of consecutive nodes on one device; a program without
/// nodes has one empty fragment, which hands through the inputs and constants that are outputs.
Result<Plan> plan_program(const ProgramGraph& program, const Placement& placement,
                          std::span<const PlannerDevice> devices);

}  // namespace callboard::actors
