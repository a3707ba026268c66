#include "actors/coordinator/placement.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "actors/coordinator/forecast.h"
#include "actors/coordinator/partition.h"
#include "actors/coordinator/text.h"

namespace callboard::actors {
namespace {

std::string node_text(const ProgramGraph& program, std::size_t index) {
  const Node& node = program.nodes[index];
  std::string text = "node " + std::to_string(index);
  if (!node.name.empty()) text += " '" + node.name + "'";
  return text + " (" + node.op + ")";
}

std::vector<std::string> names_of(std::span<const PlannerDevice> devices) {
  std::vector<std::string> names;
  for (const PlannerDevice& device : devices) names.push_back(device.name);
  return names;
}

Error unknown_device(const std::string& name, std::span<const PlannerDevice> devices) {
  return Error(ErrorCode::kBadPlacement, "the placement names device '" + name + "', which this cluster does not have",
               nearest_hint(name, names_of(devices)));
}

std::optional<std::uint32_t> find_device(const std::string& name, std::span<const PlannerDevice> devices) {
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].name == name) return static_cast<std::uint32_t>(i);
  }
  return std::nullopt;
}

bool lies_below(std::string_view path, std::string_view prefix) {
  if (prefix.empty()) return true;
  if (path.substr(0, prefix.size()) != prefix) return false;
  return path.size() == prefix.size() || path[prefix.size()] == '.';
}

/// Every module path that is used and all that contain it.
std::vector<std::string> module_paths(const ProgramGraph& program) {
  std::set<std::string> paths;
  for (const Node& node : program.nodes) {
    for (std::size_t dot = node.module_path.find('.'); dot != std::string::npos;
         dot = node.module_path.find('.', dot + 1)) {
      paths.insert(node.module_path.substr(0, dot));
    }
    if (!node.module_path.empty()) paths.insert(node.module_path);
  }
  return {paths.begin(), paths.end()};
}

/// Nodes that the exporter made of one (a copy, views of it, the operator that writes there) have one name, and must
/// stay together: on another device the write would be to another copy.
bool goes_with_previous(const ProgramGraph& program, std::size_t node) {
  return node > 0 && !program.nodes[node].name.empty() && program.nodes[node].name == program.nodes[node - 1].name;
}

// -- by rules ---------------------------------------------------------------------------------------------------------

/// Ranges beat prefixes, a longer prefix beats a shorter one; what two devices claim with the same right is refused.
class RulePlacer {
 public:
  RulePlacer(const ProgramGraph& program, std::span<const PlannerDevice> devices)
      : program_(program), devices_(devices), claims_(program.nodes.size()) {}

  Result<std::vector<std::uint32_t>> place(const Placement& placement) {
    for (const Placement::Rule& rule : placement.rules) add(rule);
    for (const auto& [pair, node] : conflicts_) {
      findings_.emplace_back(ErrorCode::kBadPlacement,
                             node_text(program_, node) + " of module '" + program_.nodes[node].module_path +
                                 "' is placed on '" + devices_[pair.first].name + "' and on '" +
                                 devices_[pair.second].name + "' by rules of the same length",
                             "remove one of the two rules, or make one prefix longer");
    }
    if (!findings_.empty()) {
      return fail(one_error(std::move(findings_), ErrorCode::kBadPlacement, "the placement has several faults"));
    }
    return followed();
  }

 private:
  static constexpr std::size_t kByRange = std::numeric_limits<std::size_t>::max();
  struct Claim {
    bool made = false;
    std::size_t strength = 0;  // length of the prefix
    std::uint32_t device = 0;
  };

  void add(const Placement::Rule& rule) {
    const auto device = find_device(rule.device, devices_);
    if (!device) {
      findings_.push_back(unknown_device(rule.device, devices_));
      return;
    }
    for (const auto& [first, last] : rule.node_ranges) add_range(*device, first, last);
    for (const std::string& prefix : rule.module_prefixes) add_prefix(*device, prefix);
  }

  void add_range(std::uint32_t device, std::uint32_t first, std::uint32_t last) {
    if (first > last || last >= program_.nodes.size()) {
      findings_.emplace_back(ErrorCode::kBadPlacement,
                             "the placement on '" + devices_[device].name + "' names nodes " + std::to_string(first) +
                                 "…" + std::to_string(last) + ", the program has " +
                                 std::to_string(program_.nodes.size()) +
                                 (program_.nodes.size() == 1 ? " node" : " nodes"),
                             "ranges are inclusive and count from 0");
      return;
    }
    for (std::uint32_t node = first; node <= last; ++node) claim(node, kByRange, device);
  }

  void add_prefix(std::uint32_t device, const std::string& prefix) {
    bool matched = false;
    for (std::size_t node = 0; node < program_.nodes.size(); ++node) {
      if (!lies_below(program_.nodes[node].module_path, prefix)) continue;
      matched = true;
      claim(node, prefix.size(), device);
    }
    if (matched) return;
    findings_.emplace_back(ErrorCode::kBadPlacement,
                           "the placement on '" + devices_[device].name + "' names module '" + prefix +
                               "', under which the program has no node",
                           nearest_hint(prefix, module_paths(program_)));
  }

  void claim(std::size_t node, std::size_t strength, std::uint32_t device) {
    Claim& claim = claims_[node];
    if (claim.made && claim.strength == strength && claim.device != device) {
      conflicts_.try_emplace(std::minmax(claim.device, device), node);
      return;
    }
    if (!claim.made || strength > claim.strength) claim = Claim{true, strength, device};
  }

  std::vector<std::uint32_t> followed() const {
    const auto first = std::find_if(claims_.begin(), claims_.end(), [](const Claim& claim) { return claim.made; });
    std::uint32_t device = first == claims_.end() ? 0 : first->device;
    std::vector<std::uint32_t> result;
    result.reserve(claims_.size());
    for (std::size_t node = 0; node < claims_.size(); ++node) {
      if (claims_[node].made && !goes_with_previous(program_, node)) device = claims_[node].device;
      result.push_back(device);
    }
    return result;
  }

  const ProgramGraph& program_;
  std::span<const PlannerDevice> devices_;
  std::vector<Claim> claims_;  // by node
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t>
      conflicts_;  // two devices -> first node they both claim
  std::vector<Error> findings_;
};

// -- automatic --------------------------------------------------------------------------------------------------------

Result<std::vector<std::uint32_t>> chosen_devices(const Placement& placement, std::span<const PlannerDevice> devices) {
  std::vector<std::uint32_t> chosen;
  std::vector<Error> findings;
  for (const std::string& name : placement.devices) {
    const auto device = find_device(name, devices);
    if (!device) {
      findings.push_back(unknown_device(name, devices));
    } else if (std::find(chosen.begin(), chosen.end(), *device) != chosen.end()) {
      findings.emplace_back(ErrorCode::kBadPlacement, "the placement names device '" + name + "' twice");
    } else {
      chosen.push_back(*device);
    }
  }
  if (!findings.empty()) {
    return fail(one_error(std::move(findings), ErrorCode::kBadPlacement, "the placement has several faults"));
  }
  if (placement.devices.empty()) {
    for (std::uint32_t i = 0; i < devices.size(); ++i) chosen.push_back(i);
  }
  return chosen;
}

/// first_of[i]: may a part begin at node i? Not between two nodes that touch one state, or that belong together.
std::vector<bool> cuts(const ProgramGraph& program) {
  std::vector<int> open(program.nodes.size() + 1, 0);
  for (const auto& nodes : state_nodes(program)) {
    if (nodes.empty()) continue;
    ++open[nodes.front()];
    --open[nodes.back()];
  }
  std::vector<bool> result(program.nodes.size(), true);
  int depth = 0;
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    result[i] = depth == 0 && !goes_with_previous(program, i);  // intervals that are open before node i would be cut
    depth += open[i];
  }
  return result;
}

struct Blocks {
  PartitionProblem problem;
  std::vector<std::size_t> first_node;  // of each block, and the number of nodes at the end
};

Blocks make_blocks(const ProgramGraph& program) {
  std::map<ContentHash, std::uint32_t> storage_numbers;
  std::map<ValueId, std::uint32_t> storage_of;
  Blocks blocks;
  for (const Constant& constant : program.constants) {
    const auto [at, added] =
        storage_numbers.try_emplace(constant.storage, static_cast<std::uint32_t>(storage_numbers.size()));
    if (added) blocks.problem.storage_bytes.push_back(constant.storage_bytes);
    storage_of[constant.value] = at->second;
  }
  const std::vector<std::uint64_t> live = forecast_live(program);
  const std::vector<bool> may_begin = cuts(program);
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    const Node& node = program.nodes[i];
    if (may_begin[i]) {
      blocks.problem.blocks.push_back(PartitionBlock{0, 0, {}});
      blocks.first_node.push_back(i);
    }
    PartitionBlock& block = blocks.problem.blocks.back();
    block.cost += node.cost > 0 ? node.cost : 1;
    block.live_bytes = std::max(block.live_bytes, live[i]);
    for_each_read(node, [&](ValueId value) {
      if (const auto storage = storage_of.find(value); storage != storage_of.end()) {
        block.storages.push_back(storage->second);
      }
    });
  }
  blocks.first_node.push_back(program.nodes.size());
  return blocks;
}

std::vector<std::uint32_t> balance(const ProgramGraph& program, const std::vector<std::uint32_t>& chosen,
                                   std::span<const PlannerDevice> devices) {
  if (chosen.size() == 1) return std::vector<std::uint32_t>(program.nodes.size(), chosen.front());
  Blocks blocks = make_blocks(program);
  for (std::uint32_t device : chosen) blocks.problem.limits.push_back(devices[device].memory_limit);
  auto ends = partition_contiguous(blocks.problem);
  if (!ends) {
    // live_bytes counts what other devices would hold; without it the limits may do. The final check names what does
    // not fit.
    for (PartitionBlock& block : blocks.problem.blocks) block.live_bytes = 0;
    ends = partition_contiguous(blocks.problem);
  }
  if (!ends) {
    for (std::uint64_t& limit : blocks.problem.limits) limit = 0;
    ends = partition_contiguous(blocks.problem);
  }
  std::vector<std::uint32_t> result(program.nodes.size());
  std::size_t begin = 0;
  for (std::size_t part = 0; part < chosen.size(); ++part) {
    const std::size_t end = blocks.first_node[(*ends)[part]];
    std::fill(result.begin() + static_cast<std::ptrdiff_t>(begin), result.begin() + static_cast<std::ptrdiff_t>(end),
              chosen[part]);
    begin = end;
  }
  return result;
}

}  // namespace

std::vector<std::vector<std::uint32_t>> state_nodes(const ProgramGraph& program) {
  std::vector<std::vector<std::uint32_t>> result(program.states.size());
  if (program.states.empty()) return result;
  std::map<ValueId, std::size_t> before;
  std::map<ValueId, std::size_t> after;
  for (std::size_t i = 0; i < program.states.size(); ++i) {
    before[program.states[i].before] = i;
    after[program.states[i].after] = i;
  }
  const auto note = [&](const std::map<ValueId, std::size_t>& of, ValueId value, std::uint32_t node) {
    const auto state = of.find(value);
    if (state == of.end()) return;
    std::vector<std::uint32_t>& nodes = result[state->second];
    if (nodes.empty() || nodes.back() != node) nodes.push_back(node);
  };
  for (std::uint32_t i = 0; i < program.nodes.size(); ++i) {
    for_each_read(program.nodes[i], [&](ValueId value) { note(before, value, i); });
    for_each_made(program.nodes[i], [&](ValueId value) { note(after, value, i); });
  }
  return result;
}

Result<std::vector<std::uint32_t>> place_nodes(const ProgramGraph& program, const Placement& placement,
                                               std::span<const PlannerDevice> devices) {
  if (devices.empty()) return fail(ErrorCode::kBadPlacement, "the cluster has no devices to place the program on");
  if (!placement.rules.empty()) return RulePlacer(program, devices).place(placement);
  CALLBOARD_ASSIGN(const std::vector<std::uint32_t> chosen, chosen_devices(placement, devices));
  return balance(program, chosen, devices);
}

}  // namespace callboard::actors
