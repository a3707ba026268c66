#include "messages/graph_check.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "messages/findings.h"
#include "messages/graph_walk.h"
#include "messages/limits.h"
#include "messages/symbol_binding.h"

namespace callboard {
namespace {

std::string number(std::size_t value) { return std::to_string(value); }

bool is_word(std::string_view text, bool digit_first) {
  if (text.empty()) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    const bool digit = c >= '0' && c <= '9';
    if (!letter && !(digit && (i > 0 || digit_first))) return false;
  }
  return true;
}

/// namespace::name or namespace::name.overload
bool is_operator_name(std::string_view op) {
  const std::size_t colons = op.find("::");
  if (colons == std::string_view::npos || !is_word(op.substr(0, colons), false)) return false;
  const std::string_view rest = op.substr(colons + 2);
  const std::size_t dot = rest.find('.');
  if (!is_word(rest.substr(0, dot), false)) return false;
  return dot == std::string_view::npos || is_word(rest.substr(dot + 1), true);
}

/// Operators that reach past tensors into the file system. A program comes from outside: it must not read or write
/// files with the rights of whoever runs the cluster.
bool touches_files(std::string_view op) {
  const std::string_view name = op.substr(0, op.find('.'));
  return name == "aten::from_file" || name == "aten::save" || name == "aten::load" || name == "prim::load";
}

/// The elements of an argument: what kArgumentsMax bounds.
std::size_t argument_weight(const Argument& argument) {
  if (const auto* list = std::get_if<ArgValueList>(&argument)) return 1 + list->values.size();
  if (const auto* holes = std::get_if<ArgOptionalValueList>(&argument)) return 1 + holes->values.size();
  if (const auto* ints = std::get_if<ArgIntList>(&argument)) return 1 + ints->items.size();
  if (const auto* floats = std::get_if<ArgFloatList>(&argument)) return 1 + floats->items.size();
  if (const auto* bools = std::get_if<ArgBoolList>(&argument)) return 1 + bools->items.size();
  if (const auto* strings = std::get_if<ArgStringList>(&argument)) return 1 + strings->items.size();
  return 1;
}

/// What programs and fragments have in common. `Graph` is ProgramGraph or Fragment; Values finds a spec by id.
class GraphChecker {
 public:
  /// Definitions by inputs and constants come before every node.
  static constexpr std::int64_t kBeforeNodes = -1;
  static constexpr std::int64_t kUndefined = -2;

  explicit GraphChecker(std::string what) : what_(std::move(what)) {}
  virtual ~GraphChecker() = default;
  GraphChecker(const GraphChecker&) = delete;
  GraphChecker& operator=(const GraphChecker&) = delete;

 protected:
  virtual const ValueSpec* spec(ValueId id) const = 0;
  /// The name of a node in errors counts within the program.
  virtual std::int64_t node_number(std::size_t index) const = 0;
  /// Ids of values in expressions lie below this.
  virtual std::size_t value_end() const = 0;

  Status finish() { return findings_.status(ErrorCode::kBadGraph, what_ + " is not valid"); }

  void report(ErrorCode code, std::string message, std::string hint = {}) {
    findings_.add(Error(code, std::move(message), std::move(hint)));
  }
  void report_node(ErrorCode code, const std::vector<Node>& nodes, std::size_t index, const std::string& message,
                   std::string hint = {}) {
    if (!findings_.room()) return findings_.add({});
    const Node& node = nodes[index];
    Error error(code,
                "node " + std::to_string(node_number(index)) + (node.name.empty() ? "" : " '" + node.name + "'") +
                    " (" + node.op + "): " + message,
                std::move(hint));
    error.op = node.op;
    error.node = node_number(index);
    if (!node.source.empty()) error.detail = "from " + node.source;
    findings_.add(std::move(error));
  }

  /// False where going on would cost more than the limits allow.
  bool check_limit(const char* things, std::size_t count, std::size_t most) {
    if (count <= most) return true;
    report(ErrorCode::kTooLarge,
           what_ + " has " + number(count) + " " + things + ", at most " + number(most) + " are allowed");
    return false;
  }

  bool check_schema(std::uint32_t version) {
    if (version == kGraphSchemaVersion) return true;
    report(ErrorCode::kVersionMismatch,
           what_ + " has graph schema " + number(version) + ", this program reads " + number(kGraphSchemaVersion));
    return false;
  }

  void check_symbols(const std::vector<SymbolSpec>& symbols) {
    symbol_count_ = symbols.size();
    std::set<std::string_view> names;
    for (std::size_t i = 0; i < symbols.size(); ++i) {
      const SymbolSpec& symbol = symbols[i];
      if (symbol.name.empty() || !names.insert(symbol.name).second) {
        report(ErrorCode::kBadGraph,
               "symbol " + number(i) + " has the name '" + symbol.name + "', names must be there and differ");
      }
      if (symbol.min > symbol.max) {
        report(ErrorCode::kBadGraph, "symbol '" + symbol.name + "' has the empty range " + std::to_string(symbol.min) +
                                         "…" + std::to_string(symbol.max));
      }
    }
  }

  void check_spec(ValueId id, const ValueSpec& value) {
    const std::string who = value_name(id, &value);
    if (value.kind > ValueKind::kNone) report(ErrorCode::kBadGraph, who + " is of an unknown kind");
    if (value.kind != ValueKind::kTensor && value.sizes)
      report(ErrorCode::kBadGraph, who + " is no tensor but has sizes");
    if (!value.sizes) return;
    if (value.sizes->size() > limits::kTensorRankMax) {
      report(ErrorCode::kTooLarge, who + " has " + number(value.sizes->size()) + " dimensions, at most " +
                                       number(limits::kTensorRankMax) + " are allowed");
    }
    for (const Expr& expr : *value.sizes) {
      if (const Status sound = expr.check(symbol_count_, value_end()); !sound) {
        report(sound.error().code, who + ": " + sound.error().message);
      }
    }
  }

  std::string value_name(ValueId id) const { return value_name(id, spec(id)); }
  static std::string value_name(ValueId id, const ValueSpec* value) {
    return "value " + number(id) + (value == nullptr || value->name.empty() ? "" : " '" + value->name + "'");
  }

  /// Records who defines a value; nothing is reported twice.
  void define(ValueId id, std::int64_t definer, const std::string& by) {
    if (spec(id) == nullptr) return report(ErrorCode::kBadGraph, by + " defines the unknown value " + number(id));
    const auto [place, first] = definers_.emplace(id, Definition{definer, by});
    if (first) return;
    report(ErrorCode::kBadGraph, value_name(id) + " is defined twice, by " + place->second.by + " and by " + by);
  }

  std::int64_t definer(ValueId id) const {
    const auto found = definers_.find(id);
    return found == definers_.end() ? kUndefined : found->second.definer;
  }

  void define_nodes(const std::vector<Node>& nodes) {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const std::string by =
          "node " + std::to_string(node_number(i)) + (nodes[i].name.empty() ? "" : " '" + nodes[i].name + "'");
      for_each_written(nodes[i], [&](ValueId id) { define(id, static_cast<std::int64_t>(i), by); });
    }
  }

  void check_constants(const std::vector<Constant>& constants) {
    for (const Constant& constant : constants) {
      const std::string who = "constant '" + constant.name + "'";
      if (constant.name.empty())
        report(ErrorCode::kBadGraph, "the constant of " + value_name(constant.value) + " has no name");
      define(constant.value, kBeforeNodes, who);
      if (constant.storage.empty()) report(ErrorCode::kBadGraph, who + " has no content hash");
      const Result<std::uint64_t> extent = constant.meta.extent_bytes();
      if (!extent) {
        report(ErrorCode::kBadGraph, who + ": " + extent.error().message);
      } else if (*extent > constant.storage_bytes) {
        report(ErrorCode::kBadGraph, who + ": tensor " + constant.meta.to_string() + " touches " +
                                         std::to_string(*extent) + " bytes, but its storage has " +
                                         std::to_string(constant.storage_bytes));
      }
      const ValueSpec* value = spec(constant.value);
      if (value != nullptr && value->kind != ValueKind::kTensor) report(ErrorCode::kBadGraph, who + " is not a tensor");
      if (constant.requires_grad && !dtype_takes_gradients(constant.meta.dtype)) {
        report(ErrorCode::kBadGraph, who + ": " + constant.meta.to_string() + " cannot require gradients");
      }
    }
  }

  void check_states(const std::vector<State>& states, const std::vector<Constant>& constants) {
    std::set<ValueId> before;
    for (const State& state : states) {
      const std::string who = "state '" + state.name + "'";
      if (state.name.empty()) report(ErrorCode::kBadGraph, "the state of " + value_name(state.before) + " has no name");
      if (state.initial >= constants.size() || constants[state.initial].value != state.before) {
        report(ErrorCode::kBadGraph, who + " starts from no constant of its own");
      }
      if (!before.insert(state.before).second) report(ErrorCode::kBadGraph, who + " is a state twice");
      check_defined(state.after, who + " ends as");
    }
  }

  void check_defined(ValueId id, const std::string& by) {
    if (definer(id) == kUndefined) report(ErrorCode::kBadGraph, by + " " + value_name(id) + ", which nothing defines");
  }

  void check_nodes(const std::vector<Node>& nodes) {
    nodes_ = &nodes;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const Node& node = nodes[i];
      const auto bad = [&](ErrorCode code, const std::string& message) { report_node(code, nodes, i, message); };
      if (!is_operator_name(node.op))
        bad(ErrorCode::kBadGraph, "the operator's name is not namespace::name[.overload]");
      if (touches_files(node.op)) bad(ErrorCode::kUnsupported, "it reads or writes files, which no program may");
      if (!std::isfinite(node.cost) || node.cost < 0) bad(ErrorCode::kBadGraph, "its cost is no estimate");
      for (const NodeOutput& output : node.outputs) {
        if (!output.is_list && output.values.size() != 1) {
          bad(ErrorCode::kBadGraph, "an output that is no list has " + number(output.values.size()) + " values");
        }
      }
      check_arguments(i);
      for_each_read(node, [&](ValueId id) { check_read(i, id); });
    }
  }

 private:
  struct Definition {
    std::int64_t definer;
    std::string by;
  };

  void check_arguments(std::size_t index) {
    const Node& node = (*nodes_)[index];
    std::size_t weight = 0;
    std::set<std::string_view> names;
    for (const Argument& argument : node.args) weight += argument_weight(argument);
    for (const auto& [name, argument] : node.kwargs) {
      weight += argument_weight(argument);
      if (name.empty() || !names.insert(name).second) {
        report_node(ErrorCode::kBadGraph, *nodes_, index, "the argument name '" + name + "' is empty or there twice");
      }
    }
    if (weight > limits::kArgumentsMax) {
      report_node(ErrorCode::kTooLarge, *nodes_, index,
                  "it has " + number(weight) + " arguments and list items, at most " + number(limits::kArgumentsMax) +
                      " are allowed");
    }
    for (const Argument& argument : node.args) check_argument(index, argument);
    for (const auto& [name, argument] : node.kwargs) check_argument(index, argument);
  }

  void check_argument(std::size_t index, const Argument& argument) {
    if (const auto* device = std::get_if<ArgLiteralDevice>(&argument)) {
      report_node(
          ErrorCode::kLiteralDevice, *nodes_, index, "it names the device '" + device->name + "'",
          "a fragment runs where it is placed: export with a device slot, or create the tensor like another one");
    } else if (const auto* slot = std::get_if<ArgDeviceSlot>(&argument)) {
      if (slot->slot != 0) {
        report_node(ErrorCode::kBadGraph, *nodes_, index,
                    "it names device slot " + number(slot->slot) + ", there is only 0");
      }
    } else if (const auto* symbol = std::get_if<ArgSymbol>(&argument)) {
      check_expr(index, symbol->expr);
    } else if (const auto* ints = std::get_if<ArgIntList>(&argument)) {
      for (const Expr& expr : ints->items) check_expr(index, expr);
    }
  }

  void check_expr(std::size_t index, const Expr& expr) {
    if (const Status sound = expr.check(symbol_count_, value_end()); !sound) {
      report_node(sound.error().code, *nodes_, index, sound.error().message);
      return;
    }
    for (const Expr::Term& term : expr.terms) {
      if (term.op != ExprOp::kValue) continue;
      const ValueSpec* value = spec(static_cast<ValueId>(term.value));
      if (value != nullptr && value->kind != ValueKind::kInt && value->kind != ValueKind::kBool) {
        report_node(
            ErrorCode::kBadGraph, *nodes_, index,
            "a size is computed from " + value_name(static_cast<ValueId>(term.value)) + ", which is no integer");
      }
    }
  }

  void check_read(std::size_t index, ValueId id) {
    if (spec(id) == nullptr) {
      return report_node(ErrorCode::kBadGraph, *nodes_, index, "it reads the unknown value " + number(id));
    }
    const std::int64_t defined_by = definer(id);
    if (defined_by == kUndefined) {
      return report_node(ErrorCode::kBadGraph, *nodes_, index,
                         "it reads " + value_name(id) + ", which nothing defines");
    }
    if (defined_by < static_cast<std::int64_t>(index)) return;
    if (!findings_.room()) return findings_.add({});  // the search below walks the graph
    const auto later = static_cast<std::size_t>(defined_by);
    const std::string read =
        "it reads " + value_name(id) + ", which node " + std::to_string(node_number(later)) + " defines";
    if (depends_on(later, index)) {
      report_node(ErrorCode::kCycle, *nodes_, index, read + " and which depends on it");
    } else {
      report_node(ErrorCode::kUseBeforeDefinition, *nodes_, index, read + " later", "sort the nodes topologically");
    }
  }

  /// Whether `node` is, or reads directly or through others, what `target` writes.
  bool depends_on(std::size_t node, std::size_t target) const {
    std::vector<std::size_t> open{node};
    std::unordered_set<std::size_t> seen{node};
    while (!open.empty()) {
      const std::size_t at = open.back();
      open.pop_back();
      if (at == target) return true;
      for_each_read((*nodes_)[at], [&](ValueId id) {
        const std::int64_t from = definer(id);
        if (from >= 0 && seen.insert(static_cast<std::size_t>(from)).second)
          open.push_back(static_cast<std::size_t>(from));
      });
    }
    return false;
  }

  Findings findings_;
  const std::string what_;
  std::size_t symbol_count_ = 0;
  std::unordered_map<ValueId, Definition> definers_;
  const std::vector<Node>* nodes_ = nullptr;
};

// -- programs ------------------------------------------------------------------------------------------------------

class ProgramChecker : GraphChecker {
 public:
  explicit ProgramChecker(const ProgramGraph& program)
      : GraphChecker("program '" + program.name + "'"), program_(program) {}

  Status check() {
    if (!check_schema(program_.schema_version) || !check_limits()) return finish();
    check_symbols(program_.symbols);
    for (std::size_t id = 0; id < program_.values.size(); ++id)
      check_spec(static_cast<ValueId>(id), program_.values[id]);
    check_inputs();
    check_constants(program_.constants);
    define_nodes(program_.nodes);
    check_nodes(program_.nodes);
    check_states(program_.states, program_.constants);
    check_outputs();
    check_bound();
    return finish();
  }

 private:
  const ValueSpec* spec(ValueId id) const override {
    return id < program_.values.size() ? &program_.values[id] : nullptr;
  }
  std::int64_t node_number(std::size_t index) const override { return static_cast<std::int64_t>(index); }
  std::size_t value_end() const override { return program_.values.size(); }

  bool check_limits() {
    const bool sizes[] = {check_limit("symbols", program_.symbols.size(), limits::kSymbolsMax),
                          check_limit("values", program_.values.size(), limits::kValuesMax),
                          check_limit("nodes", program_.nodes.size(), limits::kNodesMax),
                          check_limit("inputs", program_.inputs.size(), limits::kValuesMax),
                          check_limit("constants", program_.constants.size(), limits::kValuesMax),
                          check_limit("outputs", program_.outputs.size(), limits::kValuesMax)};
    return std::all_of(std::begin(sizes), std::end(sizes), [](bool within) { return within; });
  }

  void check_inputs() {
    std::set<std::string_view> names;
    for (std::size_t i = 0; i < program_.inputs.size(); ++i) {
      const ProgramInput& input = program_.inputs[i];
      if (input.name.empty()) report(ErrorCode::kBadGraph, "input " + number(i) + " has no name");
      if (!input.name.empty() && !names.insert(input.name).second) {
        report(ErrorCode::kBadGraph, "two inputs have the name '" + input.name + "'");
      }
      define(input.value, kBeforeNodes, "input '" + input.name + "'");
      const ValueSpec* value = spec(input.value);
      if (value == nullptr || !value->sizes) continue;
      for (const Expr& expr : *value->sizes) {
        const auto is_value = [](const Expr::Term& term) { return term.op == ExprOp::kValue; };
        if (std::any_of(expr.terms.begin(), expr.terms.end(), is_value)) {
          report(ErrorCode::kBadGraph, "a size of input '" + input.name + "' depends on a value of the run");
        }
      }
    }
  }

  void check_outputs() {
    for (std::size_t i = 0; i < program_.outputs.size(); ++i) {
      const std::string who = "output " + number(i) + " '" + program_.outputs[i].name + "'";
      if (const auto* value = std::get_if<ArgValue>(&program_.outputs[i].source)) {
        check_defined(value->value, who + " is");
      } else if (const auto* symbol = std::get_if<ArgSymbol>(&program_.outputs[i].source)) {
        if (const Status sound = symbol->expr.check(program_.symbols.size(), program_.values.size()); !sound) {
          report(sound.error().code, who + ": " + sound.error().message);
        }
        const auto check = [&](ValueId id) { check_defined(id, who + " is computed from"); };
        for_each_read(symbol->expr, check);
      }
    }
  }

  void check_bound() {
    std::vector<const ValueSpec*> inputs;
    for (const ProgramInput& input : program_.inputs) {
      const ValueSpec* value = spec(input.value);
      if (value == nullptr || !value->sizes) continue;
      const auto sound = [&](const Expr& expr) { return expr.check(program_.symbols.size(), 0).has_value(); };
      if (!std::all_of(value->sizes->begin(), value->sizes->end(), sound)) return;  // reported above
      inputs.push_back(value);
    }
    const std::vector<bool> bindable = bindable_symbols(program_.symbols.size(), inputs);
    for (std::size_t s = 0; s < bindable.size(); ++s) {
      if (!bindable[s]) {
        report(ErrorCode::kBadGraph, "symbol '" + program_.symbols[s].name + "' is bound by no input's size",
               "some input must have a size of this symbol alone, or linear in it");
      }
    }
  }

  const ProgramGraph& program_;
};

// -- fragments -----------------------------------------------------------------------------------------------------

class FragmentChecker : GraphChecker {
 public:
  explicit FragmentChecker(const Fragment& fragment)
      : GraphChecker("fragment " + number(fragment.index) + " on '" + fragment.device + "'"), fragment_(fragment) {}

  Status check() {
    if (!check_schema(fragment_.schema_version) || !check_limits()) return finish();
    if (fragment_.device.empty()) report(ErrorCode::kBadGraph, "the fragment names no device");
    if (fragment_.program.empty()) report(ErrorCode::kBadGraph, "the fragment names no program");
    check_symbols(fragment_.symbols);
    for (const auto& [id, value] : fragment_.values) {
      if (id >= limits::kValuesMax) report(ErrorCode::kTooLarge, "value " + number(id) + " is above the limit");
      check_spec(id, value);
    }
    check_inputs();
    check_constants(fragment_.constants);
    check_node_ids();
    define_nodes(fragment_.nodes);
    check_nodes(fragment_.nodes);
    check_states(fragment_.states, fragment_.constants);
    check_outputs();
    check_frees();
    return finish();
  }

 private:
  const ValueSpec* spec(ValueId id) const override {
    const auto found = fragment_.values.find(id);
    return found == fragment_.values.end() ? nullptr : &found->second;
  }
  std::int64_t node_number(std::size_t index) const override {
    return index < fragment_.node_ids.size() ? fragment_.node_ids[index] : static_cast<std::int64_t>(index);
  }
  // A size may depend on a value that another fragment computes; it is then not checked here.
  std::size_t value_end() const override { return limits::kValuesMax; }

  bool check_limits() {
    const bool sizes[] = {check_limit("symbols", fragment_.symbols.size(), limits::kSymbolsMax),
                          check_limit("values", fragment_.values.size(), limits::kValuesMax),
                          check_limit("nodes", fragment_.nodes.size(), limits::kNodesMax),
                          check_limit("inputs", fragment_.inputs.size(), limits::kValuesMax),
                          check_limit("constants", fragment_.constants.size(), limits::kValuesMax),
                          check_limit("outputs", fragment_.outputs.size(), limits::kValuesMax)};
    return std::all_of(std::begin(sizes), std::end(sizes), [](bool within) { return within; });
  }

  void check_inputs() {
    for (std::size_t i = 0; i < fragment_.inputs.size(); ++i) {
      const FragmentInput& input = fragment_.inputs[i];
      define(input.value, kBeforeNodes, "fragment input " + number(i));
      if (input.source > FragmentInput::Source::kEdge) {
        report(ErrorCode::kBadGraph, "fragment input " + number(i) + " comes from nowhere");
      } else if (input.source == FragmentInput::Source::kEdge && input.index >= fragment_.index) {
        report(ErrorCode::kBadGraph, "fragment input " + number(i) + " comes from fragment " + number(input.index) +
                                         ", edges only go to higher numbers");
      }
    }
  }

  void check_node_ids() {
    const std::vector<std::uint32_t>& ids = fragment_.node_ids;
    if (ids.size() != fragment_.nodes.size()) {
      report(ErrorCode::kBadGraph, "the fragment has " + number(fragment_.nodes.size()) + " nodes and " +
                                       number(ids.size()) + " node numbers");
    }
    const auto not_rising = [](std::uint32_t a, std::uint32_t b) { return a >= b; };
    if (std::adjacent_find(ids.begin(), ids.end(), not_rising) != ids.end()) {
      report(ErrorCode::kBadGraph, "the node numbers of the fragment do not rise");
    }
  }

  void check_outputs() {
    std::set<ValueId> seen;
    for (std::size_t i = 0; i < fragment_.outputs.size(); ++i) {
      const FragmentOutput& output = fragment_.outputs[i];
      const std::string who = "fragment output " + number(i);
      check_defined(output.value, who + " is");
      if (!seen.insert(output.value).second) report(ErrorCode::kBadGraph, who + " is there twice");
      if (!output.to_client && output.edges.empty()) report(ErrorCode::kBadGraph, who + " goes nowhere");
      std::set<std::uint32_t> consumers;
      for (const FragmentOutput::Edge& edge : output.edges) {
        if (edge.fragment <= fragment_.index) {
          report(ErrorCode::kBadGraph,
                 who + " goes to fragment " + number(edge.fragment) + ", edges only go to higher numbers");
        }
        if (edge.device.empty()) report(ErrorCode::kBadGraph, who + " goes to a fragment without a device");
        if (!consumers.insert(edge.fragment).second) {
          report(ErrorCode::kBadGraph, who + " goes to fragment " + number(edge.fragment) + " twice");
        }
      }
    }
  }

  // A value that is freed late costs memory, one that is freed early is a fault: only that is looked for.
  void check_frees() {
    if (fragment_.frees.size() != fragment_.nodes.size()) {
      return report(ErrorCode::kBadGraph, "the fragment has " + number(fragment_.nodes.size()) + " nodes and " +
                                              number(fragment_.frees.size()) + " lists of what to free");
    }
    std::unordered_map<ValueId, std::int64_t> last_use;
    for (std::size_t i = 0; i < fragment_.nodes.size(); ++i) {
      for_each_read(fragment_.nodes[i], [&](ValueId id) { last_use[id] = static_cast<std::int64_t>(i); });
    }
    std::unordered_set<ValueId> kept;
    for (const FragmentOutput& output : fragment_.outputs) kept.insert(output.value);
    for (const State& state : fragment_.states) kept.insert(state.after);
    std::unordered_set<ValueId> freed;
    for (std::size_t i = 0; i < fragment_.frees.size(); ++i) {
      const auto index = static_cast<std::int64_t>(i);
      for (const ValueId id : fragment_.frees[i]) {
        const auto bad = [&](const char* why) {
          report_node(ErrorCode::kBadGraph, fragment_.nodes, i, "it frees " + value_name(id) + ", " + why);
        };
        const std::int64_t defined_by = definer(id);
        const auto use = last_use.find(id);
        if (defined_by == kUndefined)
          bad("which nothing defines");
        else if (defined_by > index)
          bad("which a later node defines");
        else if (use != last_use.end() && use->second > index)
          bad("which a later node reads");
        else if (kept.count(id) != 0)
          bad("which leaves the fragment");
        else if (!freed.insert(id).second)
          bad("which is freed already");
      }
    }
  }

  const Fragment& fragment_;
};

}  // namespace

Status check_program(const ProgramGraph& program) { return ProgramChecker(program).check(); }

Status check_fragment(const Fragment& fragment) { return FragmentChecker(fragment).check(); }

std::vector<std::vector<ValueId>> compute_frees(const Fragment& fragment) {
  std::map<ValueId, std::size_t> last;  // ordered: the same fragment gives the same lists
  for (std::size_t i = 0; i < fragment.nodes.size(); ++i) {
    for_each_written(fragment.nodes[i], [&](ValueId id) { last.emplace(id, i); });
    for_each_read(fragment.nodes[i], [&](ValueId id) { last[id] = i; });
  }
  for (const FragmentOutput& output : fragment.outputs) last.erase(output.value);
  for (const State& state : fragment.states) last.erase(state.after);
  std::vector<std::vector<ValueId>> frees(fragment.nodes.size());
  for (const auto& [id, index] : last) frees[index].push_back(id);
  return frees;
}

}  // namespace callboard
