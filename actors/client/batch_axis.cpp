#include "actors/client/batch_axis.h"

#include <algorithm>
#include <utility>

#include "actors/client/input_pack.h"

namespace callboard::actors {
namespace {

bool mentions(const Expr& expr, std::size_t symbol) {
  return std::any_of(expr.terms.begin(), expr.terms.end(), [&](const Expr::Term& term) {
    return term.op == ExprOp::kSymbol && static_cast<std::size_t>(term.value) == symbol;
  });
}

/// "[batch, 4, 2*length]", for messages.
std::string sizes_text(const ProgramGraph& graph, const std::vector<Expr>& sizes) {
  std::vector<std::string> names;
  for (const auto& symbol : graph.symbols) names.push_back(symbol.name);
  std::string text = "[";
  for (const auto& size : sizes) text += (text.size() > 1 ? ", " : "") + size.to_string(names);
  return text + "]";
}

tl::unexpected<Error> no_axis(std::string message, std::string hint) {
  return fail(ErrorCode::kUnsupported, std::move(message), std::move(hint));
}

class AxisFinder {
 public:
  AxisFinder(const ProgramGraph& graph, const BatchDim& declared) : graph_(graph), declared_(declared) {}

  Result<BatchAxis> find() {
    if (!graph_.states.empty()) {
      return no_axis("program '" + graph_.name + "' keeps state between its requests (buffer '" +
                         graph_.states.front().name + "')",
                     "requests of such a program cannot be joined or divided; call eval() on the module, or make the "
                     "buffer an input");
    }
    axis_.specs = input_specs(graph_);
    CALLBOARD_TRY(find_symbol());
    const SymbolSpec& symbol = graph_.symbols[axis_.symbol];
    axis_.name = symbol.name;
    axis_.min = symbol.min;
    axis_.max = symbol.max;
    for (const auto& spec : axis_.specs) {
      CALLBOARD_ASSIGN(const std::optional<std::size_t> dim, dim_of(spec, "input '" + spec.name + "'"));
      axis_.inputs.push_back(dim);
    }
    for (const auto& output : graph_.outputs) {
      CALLBOARD_ASSIGN(const std::optional<std::size_t> dim, output_dim(output));
      axis_.outputs.push_back(dim);
    }
    return std::move(axis_);
  }

 private:
  Status find_symbol() {
    for (const auto& named : declared_.inputs) {
      const std::string& name = named.first;
      const auto spec =
          std::find_if(axis_.specs.begin(), axis_.specs.end(), [&](const auto& each) { return each.name == name; });
      if (spec == axis_.specs.end()) {
        return no_axis("program '" + graph_.name + "' has no input '" + name + "'", "its inputs are " + input_names());
      }
      CALLBOARD_TRY(use(*spec, named.second, true));
    }
    if (declared_.inputs.empty()) {
      for (const auto& spec : axis_.specs) CALLBOARD_TRY(use(spec, declared_.dim, false));
    }
    if (found_) return {};
    return no_axis("no tensor input of program '" + graph_.name + "' has a free size at dimension " +
                       std::to_string(declared_.dim),
                   "compile it with dynamic_shapes that free the batch dimension, such as {" +
                       std::to_string(declared_.dim) + ": torch.export.Dim(\"batch\", min=1, max=64)}");
  }

  /// Takes the symbol at `dim` of this input. Sizes that are none are refused only where the input was named.
  Status use(const ValueSpec& spec, std::size_t dim, bool named) {
    const bool there = spec.kind == ValueKind::kTensor && spec.sizes && dim < spec.sizes->size();
    if (!there || !(*spec.sizes)[dim].is_symbol()) {
      if (!named) return {};
      return no_axis("input '" + spec.name + "' has no free size at dimension " + std::to_string(dim) +
                         (spec.sizes ? ", its sizes are " + sizes_text(graph_, *spec.sizes) : ""),
                     "free it with dynamic_shapes when the program is compiled");
    }
    const auto symbol = static_cast<std::size_t>((*spec.sizes)[dim].terms[0].value);
    if (found_ && symbol != axis_.symbol) {
      return no_axis("dimension " + std::to_string(dim) + " of input '" + spec.name + "' is the symbol " +
                         graph_.symbols[symbol].name + ", that of input '" + first_ + "' is " +
                         graph_.symbols[axis_.symbol].name + ": which of them is the batch?",
                     "name the inputs that carry the batch with their dimension, such as {\"" + first_ +
                         "\": " + std::to_string(dim) + "}, or give these dimensions one Dim in dynamic_shapes");
    }
    if (!found_) first_ = spec.name;
    found_ = true;
    axis_.symbol = symbol;
    return {};
  }

  /// Where the symbol is, if it is there: alone, and once.
  Result<std::optional<std::size_t>> dim_of(const ValueSpec& spec, const std::string& what) const {
    std::optional<std::size_t> dim;
    if (spec.kind != ValueKind::kTensor || !spec.sizes) return dim;
    for (std::size_t i = 0; i < spec.sizes->size(); ++i) {
      const Expr& size = (*spec.sizes)[i];
      if (!mentions(size, axis_.symbol)) continue;
      if (dim || !size.is_symbol()) {
        return no_axis(what + " has sizes " + sizes_text(graph_, *spec.sizes) + ": the batch " + axis_.name +
                           " must be one of them alone, and no other may depend on it",
                       "its rows cannot be told apart; reshape it so that the batch is one dimension");
      }
      dim = i;
    }
    return dim;
  }

  Result<std::optional<std::size_t>> output_dim(const ProgramOutput& output) const {
    const auto* value = std::get_if<ArgValue>(&output.source);
    if (value == nullptr) return std::optional<std::size_t>();
    const ValueSpec& spec = graph_.values[value->value];
    const std::string what = "output '" + output.name + "'";
    if (spec.kind != ValueKind::kTensor) {
      return no_axis(what + " is " + std::string(value_kind_phrase(spec.kind)) + " that the program computes",
                     "it belongs to the whole batch; return a tensor with one row for each row of the inputs");
    }
    if (!spec.sizes) {
      return no_axis("the program does not say the sizes of " + what, "so its rows cannot be told apart");
    }
    CALLBOARD_ASSIGN(const std::optional<std::size_t> dim, dim_of(spec, what));
    if (!dim) {
      return no_axis(
          what + " has sizes " + sizes_text(graph_, *spec.sizes) + ", the batch " + axis_.name + " is none of them",
          "it belongs to the whole batch (a mean, say) or to no row; return one row for each row of the "
          "inputs, or leave it out");
    }
    return dim;
  }

  std::string input_names() const {
    std::string text;
    for (const auto& spec : axis_.specs) text += (text.empty() ? "'" : ", '") + spec.name + "'";
    return text.empty() ? "none" : text;
  }

  const ProgramGraph& graph_;
  const BatchDim& declared_;
  BatchAxis axis_;
  bool found_ = false;
  std::string first_;  // input that gave the symbol
};

}  // namespace

Result<BatchAxis> find_batch_axis(const ProgramGraph& graph, const BatchDim& declared) {
  return AxisFinder(graph, declared).find();
}

Result<BoundRequest> bind_request(const ProgramGraph& graph, const BatchAxis& axis,
                                  std::span<const ClientValue> inputs) {
  BoundRequest bound;
  CALLBOARD_ASSIGN(bound.symbols, bind_symbols(graph.symbols, axis.specs, describe_inputs(inputs)));
  bound.rows = bound.symbols[axis.symbol];
  for (const auto& output : graph.outputs) {
    std::optional<std::int64_t> known;
    if (const auto* symbol = std::get_if<ArgSymbol>(&output.source)) {
      CALLBOARD_ASSIGN(known, symbol->expr.evaluate(bound.symbols));
    }
    bound.known.push_back(known);
  }
  return bound;
}

}  // namespace callboard::actors
