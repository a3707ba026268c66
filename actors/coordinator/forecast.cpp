#include "actors/coordinator/forecast.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

namespace callboard::actors {
namespace {

__extension__ typedef __int128 Wide;  // products of two 64-bit sizes

constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();

/// Inclusive bounds of an integer that is not known yet. kFar and -kFar also mean "beyond".
struct Interval {
  std::int64_t low = 0;
  std::int64_t high = kFar;
};

std::int64_t saturate(Wide value) {
  return static_cast<std::int64_t>(std::clamp<Wide>(value, -kFar, kFar));
}

Wide floor_div(Wide a, Wide b) {
  const Wide quotient = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? quotient - 1 : quotient;
}

Interval multiply(Interval a, Interval b) {
  const std::array<Wide, 4> corners = {static_cast<Wide>(a.low) * b.low, static_cast<Wide>(a.low) * b.high,
                                           static_cast<Wide>(a.high) * b.low, static_cast<Wide>(a.high) * b.high};
  return {saturate(*std::min_element(corners.begin(), corners.end())),
          saturate(*std::max_element(corners.begin(), corners.end()))};
}

Interval divide(Interval a, Interval b) {
  if (b.low <= 0) return {-kFar, kFar};
  return {saturate(std::min(floor_div(a.low, b.low), floor_div(a.low, b.high))),
          saturate(std::max(floor_div(a.high, b.low), floor_div(a.high, b.high)))};
}

Interval combine(ExprOp op, Interval a, Interval b) {
  switch (op) {
    case ExprOp::kAdd:
      return {saturate(static_cast<Wide>(a.low) + b.low), saturate(static_cast<Wide>(a.high) + b.high)};
    case ExprOp::kSub:
      return {saturate(static_cast<Wide>(a.low) - b.high), saturate(static_cast<Wide>(a.high) - b.low)};
    case ExprOp::kMul: return multiply(a, b);
    case ExprOp::kFloorDiv: return divide(a, b);
    case ExprOp::kMin: return {std::min(a.low, b.low), std::min(a.high, b.high)};
    case ExprOp::kMax: return {std::max(a.low, b.low), std::max(a.high, b.high)};
    case ExprOp::kMod: return b.low > 0 ? Interval{0, b.high - 1} : Interval{-kFar, kFar};
    case ExprOp::kEq: case ExprOp::kNe: case ExprOp::kLt: case ExprOp::kLe: case ExprOp::kGt: case ExprOp::kGe:
    case ExprOp::kAnd: case ExprOp::kOr: case ExprOp::kNot:
      return {0, 1};
    default: return {-kFar, kFar};
  }
}

Interval bounds(const Expr& expr, std::span<const SymbolSpec> symbols) {
  std::vector<Interval> stack;
  for (const Expr::Term& term : expr.terms) {
    if (term.op == ExprOp::kConst) {
      stack.push_back({term.value, term.value});
    } else if (term.op == ExprOp::kSymbol) {
      const auto index = static_cast<std::size_t>(term.value);
      stack.push_back(index < symbols.size() ? Interval{symbols[index].min, symbols[index].max} : Interval{});
    } else if (term.op == ExprOp::kValue) {
      stack.push_back({});
    } else {
      const std::size_t operands = term.op == ExprOp::kNot ? 1 : 2;
      if (stack.size() < operands) return {};  // check_program has refused such an expression
      const Interval b = stack.back();
      if (operands == 2) stack.pop_back();
      stack.back() = combine(term.op, stack.back(), b);
    }
  }
  return stack.size() == 1 ? stack.back() : Interval{};
}

constexpr std::array kViews = {
    std::string_view("aten::_reshape_alias"), std::string_view("aten::_unsafe_view"), std::string_view("aten::alias"),
    std::string_view("aten::as_strided"), std::string_view("aten::chunk"), std::string_view("aten::contiguous"),
    std::string_view("aten::detach"), std::string_view("aten::diagonal"), std::string_view("aten::expand"),
    std::string_view("aten::expand_as"), std::string_view("aten::flatten"), std::string_view("aten::imag"),
    std::string_view("aten::lift_fresh"), std::string_view("aten::movedim"), std::string_view("aten::narrow"),
    std::string_view("aten::numpy_T"), std::string_view("aten::permute"), std::string_view("aten::real"),
    std::string_view("aten::reshape"), std::string_view("aten::select"), std::string_view("aten::slice"),
    std::string_view("aten::split"), std::string_view("aten::split_with_sizes"), std::string_view("aten::squeeze"),
    std::string_view("aten::swapaxes"), std::string_view("aten::t"), std::string_view("aten::tensor_split"),
    std::string_view("aten::to"), std::string_view("aten::transpose"), std::string_view("aten::unbind"),
    std::string_view("aten::unflatten"), std::string_view("aten::unfold"), std::string_view("aten::unsqueeze"),
    std::string_view("aten::view"), std::string_view("aten::view_as"), std::string_view("aten::view_as_complex"),
    std::string_view("aten::view_as_real"),
};

/// Liveness over a list of nodes: what each node makes stays until its last reader, views keep their base.
class LiveScan {
 public:
  void make(const Node& node, const std::function<ForecastBytes(ValueId)>& bytes_of) {
    std::optional<ValueId> base;
    if (makes_view(node.op) && !node.args.empty()) {
      if (const auto* first = std::get_if<ArgValue>(&node.args.front())) base = root(first->value);
    }
    for_each_made(node, [&](ValueId value) {
      if (base) {
        base_[value] = *base;
        ++holders_[*base];
        return;
      }
      const ForecastBytes bytes = bytes_of(value);
      exact_ = exact_ && bytes.exact;
      bytes_[value] = bytes.least;
      ++holders_[value];
      live_ += bytes.least;
    });
  }
  void drop(ValueId value) {
    const ValueId owner = root(value);
    const auto found = holders_.find(owner);
    if (found == holders_.end() || --found->second > 0) return;
    holders_.erase(found);
    if (const auto bytes = bytes_.find(owner); bytes != bytes_.end()) live_ -= bytes->second;
  }
  std::uint64_t live() const { return live_; }
  bool exact() const { return exact_; }

 private:
  ValueId root(ValueId value) const {
    const auto found = base_.find(value);
    return found == base_.end() ? value : found->second;
  }

  std::unordered_map<ValueId, ValueId> base_;
  std::unordered_map<ValueId, std::uint32_t> holders_;  // live values that share this value's memory
  std::unordered_map<ValueId, std::uint64_t> bytes_;
  std::uint64_t live_ = 0;
  bool exact_ = true;
};

void use_of_expression(const Expr& expr, const std::function<void(ValueId)>& use) {
  for (const Expr::Term& term : expr.terms) {
    if (term.op == ExprOp::kValue) use(static_cast<ValueId>(term.value));
  }
}

void use_of_argument(const Argument& argument, const std::function<void(ValueId)>& use) {
  if (const auto* one = std::get_if<ArgValue>(&argument)) {
    use(one->value);
  } else if (const auto* list = std::get_if<ArgValueList>(&argument)) {
    for (ValueId value : list->values) use(value);
  } else if (const auto* optional = std::get_if<ArgOptionalValueList>(&argument)) {
    for (ValueId value : optional->values) {
      if (value != kNoValue) use(value);
    }
  } else if (const auto* symbol = std::get_if<ArgSymbol>(&argument)) {
    use_of_expression(symbol->expr, use);
  } else if (const auto* ints = std::get_if<ArgIntList>(&argument)) {
    for (const Expr& item : ints->items) use_of_expression(item, use);
  }
}

}  // namespace

bool makes_view(std::string_view op) {
  const std::string_view name = op.substr(0, op.find('.'));
  return std::binary_search(kViews.begin(), kViews.end(), name);
}

void for_each_read(const Node& node, const std::function<void(ValueId)>& use) {
  for (const Argument& argument : node.args) use_of_argument(argument, use);
  for (const auto& [name, argument] : node.kwargs) use_of_argument(argument, use);
}

void for_each_made(const Node& node, const std::function<void(ValueId)>& use) {
  for (const NodeOutput& output : node.outputs) {
    for (ValueId value : output.values) {
      if (value != kNoValue) use(value);
    }
  }
}

ForecastBytes forecast_bytes(const ValueSpec& spec, std::span<const SymbolSpec> symbols) {
  if (spec.kind != ValueKind::kTensor) return {};
  if (!spec.sizes || spec.dtype == DType::kUndefined) return {0, false};
  Wide least = static_cast<Wide>(dtype_size(spec.dtype));
  bool exact = true;
  for (const Expr& size : *spec.sizes) {
    const Interval interval = bounds(size, symbols);
    exact = exact && interval.low == interval.high;
    least = std::min<Wide>(least * std::max<std::int64_t>(interval.low, 0), kFar);
  }
  return {static_cast<std::uint64_t>(least), exact};
}

ForecastPeak forecast_peak(const Fragment& fragment) {
  ForecastPeak peak;
  LiveScan scan;
  const auto bytes_of = [&](ValueId value) {
    const auto spec = fragment.values.find(value);
    return spec == fragment.values.end() ? ForecastBytes{0, false} : forecast_bytes(spec->second, fragment.symbols);
  };
  for (std::size_t i = 0; i < fragment.nodes.size(); ++i) {
    scan.make(fragment.nodes[i], bytes_of);
    if (scan.live() > peak.least) {
      peak.least = scan.live();
      peak.node = i;
    }
    if (i < fragment.frees.size()) {
      for (ValueId value : fragment.frees[i]) scan.drop(value);
    }
  }
  peak.exact = scan.exact();
  return peak;
}

std::vector<std::uint64_t> forecast_live(const ProgramGraph& program) {
  constexpr std::size_t kToTheEnd = std::numeric_limits<std::size_t>::max();
  std::vector<std::size_t> last(program.values.size(), 0);
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    for_each_made(program.nodes[i], [&](ValueId value) { last[value] = i; });
    for_each_read(program.nodes[i], [&](ValueId value) { last[value] = i; });
  }
  for (const ProgramOutput& output : program.outputs) {
    if (const auto* value = std::get_if<ArgValue>(&output.source)) last[value->value] = kToTheEnd;
  }
  for (const State& state : program.states) last[state.after] = kToTheEnd;
  std::vector<std::vector<ValueId>> frees(program.nodes.size());
  for (ValueId value = 0; value < last.size(); ++value) {
    if (last[value] < frees.size()) frees[last[value]].push_back(value);
  }
  std::vector<std::uint64_t> live(program.nodes.size());
  LiveScan scan;
  const auto bytes_of = [&](ValueId value) { return forecast_bytes(program.values[value], program.symbols); };
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    scan.make(program.nodes[i], bytes_of);
    live[i] = scan.live();
    for (ValueId value : frees[i]) scan.drop(value);
  }
  return live;
}

}  // namespace callboard::actors
