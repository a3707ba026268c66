// Costs of a program's nodes from a profile run: what the planner balances devices by, in place of estimates.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/client/client.h"

namespace callboard::actors {

struct ProfileOptions {
  int runs = 5;                            ///< that are timed, 1 to 32; one more goes before them, to warm up
  std::optional<Duration> deadline = {};   ///< for all of it; by default limits::kRequestDeadline
  std::function<bool()> interrupted = {};  ///< as Client::Options has it, for the waits for the runs
};

struct NodeCosts {
  std::vector<double> ns;  ///< by node, the median of the runs, at least 1; empty where it could not be measured
  std::string note;        ///< for kCostsAnnotation: "measured on cpu0, median of 5 runs", or why it is not
};

/// Loads the whole program on one device (the first that it fits of those that `placement` may use), runs it with these
/// inputs and times each node there. Where it fits no device whole, or the runs find no memory, `ns` is empty and the
/// note says so: estimates stay. Every other failure is an error; one of a run is the program's own.
///
/// The profiled program is one of its own, whatever else is loaded: buffers that it changes are its alone and go with
/// it, so that the program starts with its initial state. What else runs on the device is in the times. kOverloaded
/// while another client profiles there. Any thread.
Result<NodeCosts> profile_nodes(Client& client, const ProgramGraph& graph, std::span<const ConstantBytes> constants,
                                const Placement& placement, std::span<const ClientValue> inputs,
                                const ProfileOptions& options = {});

/// The graph with these costs and their note; with its own costs where there are none.
void set_costs(ProgramGraph& graph, const NodeCosts& costs);

}  // namespace callboard::actors
