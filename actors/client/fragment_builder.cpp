#include "actors/client/fragment_builder.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "messages/graph_check.h"
#include "messages/limits.h"

namespace callboard::actors {
namespace {

Error too_many(const std::string& what, std::size_t limit) {
  return Error(ErrorCode::kTooLarge, "a program has at most " + std::to_string(limit) + " " + what);
}

Status check_new_name(const std::set<std::string>& names, const std::string& name, const char* what) {
  if (name.empty()) return fail(ErrorCode::kBadGraph, std::string("a program's ") + what + " needs a name");
  if (names.count(name) != 0) {
    return fail(ErrorCode::kBadGraph, std::string("the program already has the ") + what + " '" + name + "'",
                "give each " + std::string(what) + " its own name");
  }
  return {};
}

/// "namespace::name" or "namespace::name.overload".
bool is_operator_name(const std::string& op) {
  const auto colons = op.find("::");
  if (colons == 0 || colons == std::string::npos || colons + 2 == op.size()) return false;
  const auto is_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  if (!std::all_of(op.begin(), op.begin() + static_cast<std::ptrdiff_t>(colons), is_name)) return false;
  const std::string rest = op.substr(colons + 2);
  return rest.front() != '.' && rest.back() != '.' &&
         std::all_of(rest.begin(), rest.end(), [&](char c) { return is_name(c) || c == '.'; });
}

/// "add_7" for "aten::add.Tensor", the eighth node.
std::string default_name(const std::string& op, std::size_t index) {
  const auto start = op.find("::") + 2;
  return op.substr(start, op.find('.', start) - start) + "_" + std::to_string(index);
}

}  // namespace

FragmentBuilder::FragmentBuilder(std::string name) { graph_.name = std::move(name); }

Result<std::size_t> FragmentBuilder::add_symbol(std::string name, std::int64_t min, std::int64_t max) {
  CALLBOARD_TRY(check_new_name(symbol_names_, name, "symbol"));
  if (graph_.symbols.size() >= limits::kSymbolsMax) return fail(too_many("symbols", limits::kSymbolsMax));
  if (min > max) {
    return fail(ErrorCode::kBadGraph,
                "symbol '" + name + "' has the empty range " + std::to_string(min) + "…" + std::to_string(max));
  }
  symbol_names_.insert(name);
  graph_.symbols.push_back({std::move(name), min, max});
  return graph_.symbols.size() - 1;
}

Result<Expr> FragmentBuilder::symbol(std::string name, std::int64_t min, std::int64_t max) {
  CALLBOARD_ASSIGN(const std::size_t index, add_symbol(std::move(name), min, max));
  return Expr::symbol(index);
}

Result<ValueId> FragmentBuilder::add_input(ValueSpec spec) {
  CALLBOARD_TRY(check_new_name(input_names_, spec.name, "input"));
  const std::string name = spec.name;
  CALLBOARD_ASSIGN(const ValueId value, new_value(std::move(spec)));
  input_names_.insert(name);
  graph_.inputs.push_back({name, value});
  return value;
}

Result<ValueId> FragmentBuilder::add_tensor_input(std::string name, DType dtype,
                                                  std::optional<std::vector<Expr>> sizes) {
  return add_input(ValueSpec{std::move(name), ValueKind::kTensor, dtype, std::move(sizes)});
}

Result<ValueId> FragmentBuilder::add_constant(std::string name, ConstantStorage storage, TensorMeta meta,
                                              bool requires_grad) {
  if (name.empty()) return fail(ErrorCode::kBadGraph, "a constant needs a name");
  auto extent = meta.extent_bytes();
  if (!extent) return fail(ErrorCode::kBadGraph, "constant '" + name + "': " + extent.error().message);
  if (*extent > storage.bytes) {
    return fail(ErrorCode::kBadGraph, "constant '" + name + "', " + meta.to_string() + ", needs " +
                                          std::to_string(*extent) + " bytes; its storage has " +
                                          std::to_string(storage.bytes));
  }
  if (storage.data == nullptr && storage.bytes > 0) {
    return fail(ErrorCode::kBadArgument,
                "constant '" + name + "' has no address for its " + std::to_string(storage.bytes) + " bytes");
  }
  if (requires_grad && !dtype_takes_gradients(meta.dtype)) {
    return fail(ErrorCode::kBadGraph, "constant '" + name + "': " + meta.to_string() + " cannot require gradients");
  }
  std::vector<Expr> sizes;
  for (const std::int64_t size : meta.sizes) sizes.push_back(Expr::constant(size));
  CALLBOARD_ASSIGN(const ValueId value, new_value({name, ValueKind::kTensor, meta.dtype, std::move(sizes)}));

  const auto place = std::pair(storage.data, storage.bytes);
  auto known = hashes_.find(place);
  const bool new_place = known == hashes_.end();
  if (new_place) known = hashes_.emplace(place, ContentHash::of(storage.data, storage.bytes)).first;
  const ContentHash hash = known->second;
  const std::uint64_t bytes = storage.bytes;
  // An equal storage at another address is not needed; but its address must stay taken, or hashes_ would be wrong.
  if (!storages_.try_emplace(hash, storage).second && new_place) keeps_.push_back(std::move(storage.keep));
  constant_of_[value] = static_cast<std::uint32_t>(graph_.constants.size());
  graph_.constants.push_back({std::move(name), value, hash, bytes, std::move(meta), requires_grad});
  return value;
}

Status FragmentBuilder::add_state(std::string name, ValueId before, ValueId after) {
  const std::string where = "state '" + name + "'";
  if (name.empty()) return fail(ErrorCode::kBadGraph, "a state needs a name");
  const auto constant = constant_of_.find(before);
  if (constant == constant_of_.end()) {
    return fail(ErrorCode::kBadGraph, where + ": value " + std::to_string(before) + " is not a constant",
                "a state starts from a constant: add that first");
  }
  CALLBOARD_TRY(check_value(after, where));
  for (const auto& state : graph_.states) {
    if (state.name == name || state.before == before) {
      return fail(ErrorCode::kBadGraph, where + ": the state '" + state.name + "' has that name or constant already");
    }
  }
  graph_.states.push_back({std::move(name), before, after, constant->second});
  return {};
}

Result<std::vector<NodeOutput>> FragmentBuilder::add_node(Node node, std::vector<Slot> slots) {
  const std::size_t index = graph_.nodes.size();
  if (index >= limits::kNodesMax) return fail(too_many("nodes", limits::kNodesMax));
  const auto at_node = [&](Error error) {
    error.op = node.op;
    error.node = static_cast<std::int64_t>(index);
    return fail(std::move(error));
  };
  if (!is_operator_name(node.op)) {
    return at_node(Error(ErrorCode::kBadGraph, "'" + node.op + "' is not an operator name",
                         "operators are named namespace::name.overload, such as aten::add.Tensor"));
  }
  if (node.name.empty()) node.name = default_name(node.op, index);
  const std::string where = "node '" + node.name + "'";
  if (node.args.size() + node.kwargs.size() > limits::kArgumentsMax)
    return at_node(too_many("arguments a node", limits::kArgumentsMax));
  for (std::size_t i = 0; i < node.args.size(); ++i) {
    auto status = check_argument(node.args[i], where + ", argument " + std::to_string(i));
    if (!status) return at_node(std::move(status).error());
  }
  for (const auto& [name, argument] : node.kwargs) {
    auto status = check_argument(argument, where + ", argument '" + name + "'");
    if (!status) return at_node(std::move(status).error());
  }
  std::size_t count = 0;
  for (const auto& slot : slots) {
    if (!slot.is_list && slot.values.size() != 1) {
      return at_node(Error(ErrorCode::kBadArgument, where + ": an output that is no list has exactly one value"));
    }
    for (const auto& spec : slot.values) {
      if (!spec) continue;
      ++count;
      auto status = check_spec(*spec);
      if (!status) return at_node(std::move(status).error());
    }
  }
  if (graph_.values.size() + count > limits::kValuesMax) return at_node(too_many("values", limits::kValuesMax));

  node.outputs.clear();
  for (auto& slot : slots) {
    NodeOutput output;
    output.is_list = slot.is_list;
    for (auto& spec : slot.values) {
      output.values.push_back(spec ? static_cast<ValueId>(graph_.values.size()) : kNoValue);
      if (spec) graph_.values.push_back(std::move(*spec));
    }
    node.outputs.push_back(std::move(output));
  }
  graph_.nodes.push_back(std::move(node));
  return graph_.nodes.back().outputs;
}

Result<ValueId> FragmentBuilder::call(std::string op, std::vector<Argument> args, ValueSpec output) {
  Node node;
  node.op = std::move(op);
  node.args = std::move(args);
  CALLBOARD_ASSIGN(const std::vector<NodeOutput> outputs, add_node(std::move(node), {Slot::one(std::move(output))}));
  return outputs.front().values.front();
}

Status FragmentBuilder::add_output(ProgramOutput output) {
  CALLBOARD_TRY(check_new_name(output_names_, output.name, "output"));
  const std::string where = "output '" + output.name + "'";
  if (const auto* value = std::get_if<ArgValue>(&output.source)) CALLBOARD_TRY(check_value(value->value, where));
  if (const auto* expr = std::get_if<ArgSymbol>(&output.source)) {
    CALLBOARD_TRY(check_expr(expr->expr, where));
    for (const auto& term : expr->expr.terms) {
      if (term.op != ExprOp::kValue) continue;
      return fail(ErrorCode::kBadGraph,
                  where + " computes with value " + std::to_string(term.value) + ", which only a device knows",
                  "make it a node's output (callboard_sym::…) and name that");
    }
  }
  output_names_.insert(output.name);
  graph_.outputs.push_back(std::move(output));
  return {};
}

Result<ProgramGraph> FragmentBuilder::finish() const {
  CALLBOARD_TRY(check_program(graph_));
  return graph_;
}

std::vector<ConstantBytes> FragmentBuilder::constants() const {
  std::vector<ConstantBytes> all;
  for (const auto& [hash, storage] : storages_) all.push_back({hash, storage.data, storage.bytes});
  return all;
}

std::uint64_t FragmentBuilder::constant_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [hash, storage] : storages_) bytes += storage.bytes;
  return bytes;
}

const ConstantStorage* FragmentBuilder::find_storage(const ContentHash& hash) const {
  const auto found = storages_.find(hash);
  return found == storages_.end() ? nullptr : &found->second;
}

Result<ValueId> FragmentBuilder::new_value(ValueSpec spec) {
  if (graph_.values.size() >= limits::kValuesMax) return fail(too_many("values", limits::kValuesMax));
  CALLBOARD_TRY(check_spec(spec));
  graph_.values.push_back(std::move(spec));
  return static_cast<ValueId>(graph_.values.size() - 1);
}

Status FragmentBuilder::check_spec(const ValueSpec& spec) const {
  const std::string where = "value '" + spec.name + "'";
  if (spec.kind != ValueKind::kTensor && (spec.dtype != DType::kUndefined || spec.sizes)) {
    return fail(ErrorCode::kBadGraph, where + " is not a tensor and has no dtype and no sizes");
  }
  if (!spec.sizes) return {};
  if (spec.sizes->size() > limits::kTensorRankMax) {
    return fail(ErrorCode::kBadGraph, where + " has " + std::to_string(spec.sizes->size()) + " dimensions; at most " +
                                          std::to_string(limits::kTensorRankMax) + " are possible");
  }
  for (const auto& size : *spec.sizes) CALLBOARD_TRY(check_expr(size, where));
  return {};
}

Status FragmentBuilder::check_expr(const Expr& expr, const std::string& where) const {
  auto status = expr.check(graph_.symbols.size(), graph_.values.size());
  if (!status) {
    Error error = std::move(status).error();
    error.message = where + ": " + error.message;
    return fail(std::move(error));
  }
  return {};
}

Status FragmentBuilder::check_value(ValueId value, const std::string& where) const {
  if (value < graph_.values.size()) return {};
  return fail(ErrorCode::kUseBeforeDefinition,
              where + " uses value " + std::to_string(value) + ", but only " + std::to_string(graph_.values.size()) +
                  " are defined so far",
              "add the input, constant or node that makes it first");
}

Status FragmentBuilder::check_argument(const Argument& argument, const std::string& where) const {
  if (const auto* value = std::get_if<ArgValue>(&argument)) return check_value(value->value, where);
  if (const auto* list = std::get_if<ArgValueList>(&argument)) {
    if (list->values.size() > limits::kArgumentsMax) return fail(too_many("values in a list", limits::kArgumentsMax));
    for (const ValueId value : list->values) CALLBOARD_TRY(check_value(value, where));
  } else if (const auto* holes = std::get_if<ArgOptionalValueList>(&argument)) {
    if (holes->values.size() > limits::kArgumentsMax) return fail(too_many("values in a list", limits::kArgumentsMax));
    for (const ValueId value : holes->values) {
      if (value != kNoValue) CALLBOARD_TRY(check_value(value, where));
    }
  } else if (const auto* symbol = std::get_if<ArgSymbol>(&argument)) {
    return check_expr(symbol->expr, where);
  } else if (const auto* ints = std::get_if<ArgIntList>(&argument)) {
    for (const auto& item : ints->items) CALLBOARD_TRY(check_expr(item, where));
  }
  return {};
}

}  // namespace callboard::actors
