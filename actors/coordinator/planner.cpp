#include "actors/coordinator/planner.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "actors/coordinator/forecast.h"
#include "actors/coordinator/placement.h"
#include "actors/coordinator/text.h"
#include "messages/codec.h"
#include "messages/graph_check.h"

namespace callboard::actors {
namespace {

constexpr std::uint32_t kNowhere = std::numeric_limits<std::uint32_t>::max();

/// "encoder.layer" of "encoder.layer.0.attention".
std::string two_levels(const std::string& path) {
  const std::size_t first = path.find('.');
  return first == std::string::npos ? path : path.substr(0, path.find('.', first + 1));
}

/// The same spec for a fragment that does not hold every value of the program: sizes that need a missing value are not
/// declared there (the fragment that made them has checked them).
ValueSpec spec_within(const ValueSpec& spec, const std::set<ValueId>& held) {
  ValueSpec result = spec;
  if (!spec.sizes) return result;
  for (const Expr& size : *spec.sizes) {
    for (const Expr::Term& term : size.terms) {
      if (term.op == ExprOp::kValue && held.count(static_cast<ValueId>(term.value)) == 0) {
        result.sizes.reset();
        return result;
      }
    }
  }
  return result;
}

/// Cuts a placed program into fragments: a run of consecutive nodes on one device each.
class FragmentMaker {
 public:
  FragmentMaker(const ProgramGraph& program, std::span<const PlannerDevice> devices,
                const std::vector<std::uint32_t>& device_of_node)
      : program_(program), devices_(devices), maker_(program.values.size(), kNowhere) {
    cut(device_of_node);
    for (std::uint32_t i = 0; i < program.inputs.size(); ++i) input_of_[program.inputs[i].value] = i;
    for (std::uint32_t i = 0; i < program.constants.size(); ++i) constant_of_[program.constants[i].value] = i;
  }

  Result<Plan> make(ContentHash hash) {
    plan_.program = hash;
    plan_.input_users.resize(program_.inputs.size());
    CALLBOARD_TRY(place_states());
    for (std::uint32_t f = 0; f < parts_.size(); ++f) {
      for (const Node& node : plan_.fragments[f].nodes) {
        for_each_read(node, [&](ValueId value) { need(f, value); });
      }
    }
    for (std::size_t s = 0; s < program_.states.size(); ++s) {
      need(state_home_[s], program_.states[s].before);
      need(state_home_[s], program_.states[s].after);
    }
    deliver_outputs();
    for (std::uint32_t f = 0; f < parts_.size(); ++f) finish(f);
    number_outputs();
    return std::move(plan_);
  }

 private:
  /// What is collected about a fragment beside the Fragment itself.
  struct Part {
    std::set<ValueId> held;                      // inputs, constants and what its nodes make
    std::map<ValueId, std::size_t> output_of;    // value -> its place in outputs
    std::map<std::uint32_t, std::uint32_t> constants;  // of the program -> of the fragment
  };

  void cut(const std::vector<std::uint32_t>& device_of_node) {
    for (std::uint32_t i = 0; i < program_.nodes.size(); ++i) {
      if (i == 0 || device_of_node[i] != device_of_node[i - 1]) add_fragment(device_of_node[i]);
      Fragment& fragment = plan_.fragments.back();
      fragment.node_ids.push_back(i);
      fragment.nodes.push_back(program_.nodes[i]);
      for_each_made(program_.nodes[i], [&](ValueId value) {
        maker_[value] = fragment.index;
        parts_.back().held.insert(value);
      });
    }
    if (plan_.fragments.empty()) add_fragment(0);
  }

  void add_fragment(std::uint32_t device) {
    Fragment fragment;
    fragment.index = static_cast<std::uint32_t>(plan_.fragments.size());
    fragment.device = devices_[device].name;
    fragment.symbols = program_.symbols;
    plan_.fragments.push_back(std::move(fragment));
    parts_.emplace_back();
  }

  std::uint32_t fragment_of_node(std::uint32_t node) const {
    const auto after = std::upper_bound(
        plan_.fragments.begin(), plan_.fragments.end(), node,
        [](std::uint32_t n, const Fragment& fragment) { return n < fragment.node_ids.front(); });
    return static_cast<std::uint32_t>(after - plan_.fragments.begin()) - 1;
  }

  /// Each state lives in the one fragment whose nodes read or change it.
  Status place_states() {
    const auto touching = state_nodes(program_);
    std::vector<Error> findings;
    for (std::size_t s = 0; s < touching.size(); ++s) {
      state_home_.push_back(touching[s].empty() ? 0 : fragment_of_node(touching[s].front()));
      for (std::uint32_t node : touching[s]) {
        const std::uint32_t home = fragment_of_node(node);
        if (home == state_home_[s]) continue;
        findings.push_back(split_state(s, touching[s].front(), node));
        break;
      }
    }
    if (findings.empty()) return {};
    return fail(one_error(std::move(findings), ErrorCode::kBadPlacement, "the placement splits several states"));
  }

  Error split_state(std::size_t state, std::uint32_t a, std::uint32_t b) const {
    const Fragment& first = plan_.fragments[fragment_of_node(a)];
    const Fragment& second = plan_.fragments[fragment_of_node(b)];
    std::string message = "state '" + program_.states[state].name + "' is used by node " + std::to_string(a) + " on '" +
                          first.device + "' and by node " + std::to_string(b) + " on '" + second.device + "'";
    if (first.device == second.device) {
      message += ", with nodes of '" + plan_.fragments[first.index + 1].device + "' between them";
    }
    Error error(ErrorCode::kBadPlacement, std::move(message),
                "place all nodes that use a state, and those between them, on one device");
    error.node = b;
    error.op = program_.nodes[b].op;
    return error;
  }

  void need(std::uint32_t f, ValueId value) {
    Part& part = parts_[f];
    if (!part.held.insert(value).second) return;
    Fragment& fragment = plan_.fragments[f];
    if (const auto constant = constant_of_.find(value); constant != constant_of_.end()) {
      part.constants[constant->second] = static_cast<std::uint32_t>(fragment.constants.size());
      fragment.constants.push_back(program_.constants[constant->second]);
    } else if (const auto input = input_of_.find(value); input != input_of_.end()) {
      fragment.inputs.push_back({value, FragmentInput::Source::kProgramInput, input->second});
      plan_.input_users[input->second].push_back(f);
    } else {
      const std::uint32_t producer = maker_[value];
      fragment.inputs.push_back({value, FragmentInput::Source::kEdge, producer});
      output(producer, value).edges.push_back({f, fragment.device});
    }
  }

  FragmentOutput& output(std::uint32_t f, ValueId value) {
    std::vector<FragmentOutput>& outputs = plan_.fragments[f].outputs;
    const auto [at, added] = parts_[f].output_of.try_emplace(value, outputs.size());
    if (added) outputs.push_back({value, false, {}});
    return outputs[at->second];
  }

  /// The fragment that hands a value to the client: its maker; for a constant or an input one that has it already.
  std::uint32_t deliverer(ValueId value) const {
    if (maker_[value] != kNowhere) return maker_[value];
    for (std::uint32_t f = 0; f < parts_.size(); ++f) {
      if (parts_[f].held.count(value) != 0) return f;
    }
    return 0;
  }

  void deliver_outputs() {
    for (const ProgramOutput& out : program_.outputs) {
      const auto* source = std::get_if<ArgValue>(&out.source);
      if (source == nullptr) continue;
      const std::uint32_t f = deliverer(source->value);
      need(f, source->value);
      output(f, source->value).to_client = true;
      plan_.client_outputs.emplace_back(f, static_cast<std::uint32_t>(parts_[f].output_of[source->value]));
    }
  }

  /// client_outputs hold places in `outputs` until all outputs are known; then numbers among those to the client.
  void number_outputs() {
    std::vector<std::vector<std::uint32_t>> numbers;
    for (const Fragment& fragment : plan_.fragments) {
      std::uint32_t next = 0;
      numbers.emplace_back();
      for (const FragmentOutput& out : fragment.outputs) numbers.back().push_back(out.to_client ? next++ : kNowhere);
    }
    for (auto& [fragment, place] : plan_.client_outputs) place = numbers[fragment][place];
  }

  void finish(std::uint32_t f) {
    Fragment& fragment = plan_.fragments[f];
    fragment.program = plan_.program;
    for (std::size_t s = 0; s < program_.states.size(); ++s) {
      if (state_home_[s] != f) continue;
      State state = program_.states[s];
      state.initial = parts_[f].constants.at(state.initial);
      fragment.states.push_back(std::move(state));
    }
    for (ValueId value : parts_[f].held) {
      fragment.values.emplace(value, spec_within(program_.values[value], parts_[f].held));
    }
    fragment.frees = compute_frees(fragment);
    plan_.summary.push_back(summary(fragment));
    plan_.edges.push_back(edges(fragment));
  }

  static std::vector<PlannedEdge> edges(const Fragment& fragment) {
    std::map<std::uint32_t, PlannedEdge> by_consumer;
    for (const FragmentOutput& out : fragment.outputs) {
      if (out.edges.empty()) continue;
      const ForecastBytes bytes = forecast_bytes(fragment.values.at(out.value), fragment.symbols);
      for (const auto& edge : out.edges) {
        PlannedEdge& sum = by_consumer.try_emplace(edge.fragment, PlannedEdge{edge.fragment}).first->second;
        sum.bytes += bytes.least;
        sum.exact = sum.exact && bytes.exact;
      }
    }
    std::vector<PlannedEdge> result;
    for (const auto& [to, edge] : by_consumer) result.push_back(edge);
    return result;
  }

  static PlannedFragment summary(const Fragment& fragment) {
    PlannedFragment result;
    result.index = fragment.index;
    result.device = fragment.device;
    if (!fragment.node_ids.empty()) {
      result.node_ranges.emplace_back(fragment.node_ids.front(), fragment.node_ids.back());
    }
    std::set<std::string> modules;
    for (const Node& node : fragment.nodes) {
      result.cost += node.cost;
      if (!node.module_path.empty()) modules.insert(two_levels(node.module_path));
    }
    result.modules.assign(modules.begin(), modules.end());
    std::set<ContentHash> storages;
    for (const Constant& constant : fragment.constants) {
      if (storages.insert(constant.storage).second) result.constant_bytes += constant.storage_bytes;
    }
    bool edges_exact = true;
    for (const FragmentOutput& out : fragment.outputs) {
      if (out.edges.empty()) continue;
      const ForecastBytes bytes = forecast_bytes(fragment.values.at(out.value), fragment.symbols);
      edges_exact = edges_exact && bytes.exact;
      result.edge_bytes += bytes.least * out.edges.size();
    }
    if (!edges_exact) result.edge_bytes = 0;
    const ForecastPeak peak = forecast_peak(fragment);
    result.peak_bytes = peak.exact ? peak.least : 0;
    return result;
  }

  const ProgramGraph& program_;
  std::span<const PlannerDevice> devices_;
  std::vector<std::uint32_t> maker_;  // by value: the fragment whose node makes it
  std::unordered_map<ValueId, std::uint32_t> input_of_;
  std::unordered_map<ValueId, std::uint32_t> constant_of_;
  std::vector<std::uint32_t> state_home_;  // by state
  std::vector<Part> parts_;                // by fragment
  Plan plan_;
};

Error does_not_fit(const PlannerDevice& device, const Fragment* fragment, const ForecastPeak& peak,
                   std::uint64_t constants) {
  Error error(ErrorCode::kDoesNotFit, "device '" + device.name + "' needs at least " +
                                          bytes_text(constants + peak.least) + " (" + bytes_text(constants) +
                                          " of constants and " + bytes_text(peak.least) + " of tensors");
  if (fragment != nullptr && peak.node < fragment->nodes.size()) {
    const Node& node = fragment->nodes[peak.node];
    error.node = fragment->node_ids[peak.node];
    error.op = node.op;
    error.message += ", most at node " + std::to_string(error.node) +
                     (node.name.empty() ? "" : " '" + node.name + "'") + ", " + node.op;
  }
  error.message += "), its memory_limit is " + bytes_text(device.memory_limit);
  error.hint = "place less on it, or raise its memory_limit in the cluster file";
  return error;
}

Status check_memory(const Plan& plan, std::span<const PlannerDevice> devices) {
  std::vector<Error> findings;
  for (const PlannerDevice& device : devices) {
    if (device.memory_limit == 0) continue;
    std::set<ContentHash> storages;
    std::uint64_t constants = 0;
    ForecastPeak highest;
    const Fragment* where = nullptr;
    for (const Fragment& fragment : plan.fragments) {
      if (fragment.device != device.name) continue;
      for (const Constant& constant : fragment.constants) {
        if (storages.insert(constant.storage).second) constants += constant.storage_bytes;
      }
      const ForecastPeak peak = forecast_peak(fragment);
      if (where != nullptr && peak.least <= highest.least) continue;
      highest = peak;
      where = &fragment;
    }
    if (constants + highest.least > device.memory_limit) {
      findings.push_back(does_not_fit(device, where, highest, constants));
    }
  }
  if (findings.empty()) return {};
  return fail(one_error(std::move(findings), ErrorCode::kDoesNotFit, "the program does not fit several devices"));
}

}  // namespace

Result<Plan> plan_program(const ProgramGraph& program, const Placement& placement,
                          std::span<const PlannerDevice> devices) {
  CALLBOARD_TRY(check_program(program));
  CALLBOARD_ASSIGN(const std::vector<std::uint32_t> device_of_node, place_nodes(program, placement, devices));
  FragmentMaker maker(program, devices, device_of_node);
  CALLBOARD_ASSIGN(Plan plan, maker.make(program_hash(program, placement)));
  CALLBOARD_TRY(check_memory(plan, devices));
  return plan;
}

}  // namespace callboard::actors
