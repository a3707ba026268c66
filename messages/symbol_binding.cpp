#include "messages/symbol_binding.h"

#include <algorithm>
#include <optional>

#include "messages/findings.h"
#include "messages/graph_check.h"

namespace callboard {
namespace {

// -- linear sizes --------------------------------------------------------------------------------------------------

/// factor * (the unknown symbol) + rest.
struct Linear {
  std::int64_t factor = 0;
  std::int64_t rest = 0;
};

std::optional<Linear> combine(ExprOp op, const Linear& a, const Linear& b) {
  Linear sum;
  bool overflow = false;
  if (op == ExprOp::kAdd) {
    overflow =
        __builtin_add_overflow(a.factor, b.factor, &sum.factor) || __builtin_add_overflow(a.rest, b.rest, &sum.rest);
  } else if (op == ExprOp::kSub) {
    overflow =
        __builtin_sub_overflow(a.factor, b.factor, &sum.factor) || __builtin_sub_overflow(a.rest, b.rest, &sum.rest);
  } else if (op == ExprOp::kMul && (a.factor == 0 || b.factor == 0)) {
    const Linear& line = a.factor == 0 ? b : a;
    const std::int64_t by = a.factor == 0 ? a.rest : b.rest;
    overflow = __builtin_mul_overflow(line.factor, by, &sum.factor) || __builtin_mul_overflow(line.rest, by, &sum.rest);
  } else if (a.factor == 0 && b.factor == 0) {
    const Expr both{{{ExprOp::kConst, a.rest}, {ExprOp::kConst, b.rest}, {op, 0}}};
    const Result<std::int64_t> value = both.evaluate({});
    if (!value) return std::nullopt;
    sum.rest = *value;
  } else {
    return std::nullopt;
  }
  if (overflow) return std::nullopt;
  return sum;
}

/// The expression as a line in `unknown`; nothing if it is not one, or needs another number that is not known.
std::optional<Linear> linear_in(const Expr& expr, std::size_t unknown,
                                std::span<const std::optional<std::int64_t>> known) {
  std::vector<Linear> stack;
  for (const Expr::Term& term : expr.terms) {
    if (term.op == ExprOp::kConst) {
      stack.push_back({0, term.value});
    } else if (term.op == ExprOp::kSymbol) {
      const auto index = static_cast<std::size_t>(term.value);
      if (index != unknown && (index >= known.size() || !known[index])) return std::nullopt;
      stack.push_back(index == unknown ? Linear{1, 0} : Linear{0, *known[index]});
    } else if (term.op == ExprOp::kValue || term.op == ExprOp::kNot || stack.size() < 2) {
      return std::nullopt;
    } else {
      const Linear right = stack.back();
      stack.pop_back();
      const std::optional<Linear> both = combine(term.op, stack.back(), right);
      if (!both) return std::nullopt;
      stack.back() = *both;
    }
  }
  if (stack.size() != 1) return std::nullopt;
  return stack[0];
}

/// The symbol that `expr` still needs, if it is a single one.
std::optional<std::size_t> only_unknown(const Expr& expr, std::span<const std::optional<std::int64_t>> known) {
  std::optional<std::size_t> unknown;
  for (const Expr::Term& term : expr.terms) {
    if (term.op != ExprOp::kSymbol) continue;
    const auto index = static_cast<std::size_t>(term.value);
    if (index >= known.size()) return std::nullopt;
    if (known[index]) continue;
    if (unknown && *unknown != index) return std::nullopt;
    unknown = index;
  }
  return unknown;
}

/// The one symbol outside `bindable` in which `expr` is a line, whatever numbers the others have.
std::optional<std::size_t> line_unknown(const Expr& expr, const std::vector<bool>& bindable) {
  std::optional<std::size_t> unknown;
  std::vector<bool> varies;  // a stack: whether the operand depends on the unknown
  for (const Expr::Term& term : expr.terms) {
    if (term.op == ExprOp::kConst || term.op == ExprOp::kValue) {
      varies.push_back(false);
    } else if (term.op == ExprOp::kSymbol) {
      const auto index = static_cast<std::size_t>(term.value);
      if (!bindable[index] && unknown && *unknown != index) return std::nullopt;
      if (!bindable[index]) unknown = index;
      varies.push_back(!bindable[index]);
    } else if (term.op == ExprOp::kNot || varies.size() < 2) {
      return std::nullopt;
    } else {
      const bool right = varies.back();
      varies.pop_back();
      const bool left = varies.back();
      const bool sum = term.op == ExprOp::kAdd || term.op == ExprOp::kSub;
      const bool product = term.op == ExprOp::kMul && !(left && right);
      if ((left || right) && !sum && !product) return std::nullopt;
      varies.back() = left || right;
    }
  }
  return unknown;
}

// -- binding -------------------------------------------------------------------------------------------------------

class Binder {
 public:
  Binder(std::span<const SymbolSpec> symbols, std::span<const ValueSpec> specs,
         std::span<const InputDescription> inputs)
      : symbols_(symbols), specs_(specs), inputs_(inputs), known_(symbols.size()), usable_(specs.size()) {
    for (const SymbolSpec& symbol : symbols) names_.push_back(symbol.name);
  }

  Result<std::vector<std::int64_t>> bind() {
    for (std::size_t i = 0; i < specs_.size(); ++i) usable_[i] = check_form(i);
    for_each_size([this](std::size_t input, std::size_t dim, const Expr& expr) { bind_alone(input, dim, expr); });
    bind_lines();
    check_bound_and_ranges();
    for_each_size([this](std::size_t input, std::size_t dim, const Expr& expr) { check_size(input, dim, expr); });
    CALLBOARD_TRY(findings_.status(ErrorCode::kBadInput, "the inputs do not fit the program"));
    std::vector<std::int64_t> bound;
    for (const auto& value : known_) bound.push_back(value.value_or(0));
    return bound;
  }

 private:
  std::string input_name(std::size_t input) const { return "input '" + specs_[input].name + "'"; }
  void report(std::string message, std::string hint = {}) {
    findings_.add(Error(ErrorCode::kBadInput, std::move(message), std::move(hint)));
  }

  template <class Visit>
  void for_each_size(Visit visit) {
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      if (!usable_[i] || !specs_[i].sizes) continue;
      for (std::size_t dim = 0; dim < specs_[i].sizes->size(); ++dim) visit(i, dim, (*specs_[i].sizes)[dim]);
    }
  }
  std::int64_t size_of(std::size_t input, std::size_t dim) const { return inputs_[input].meta.sizes[dim]; }

  // Whether the sizes of this input may be looked at.
  bool check_form(std::size_t i) {
    const ValueSpec& spec = specs_[i];
    const InputDescription& input = inputs_[i];
    if (input.kind != spec.kind) {
      report(input_name(i) + " must be " + std::string(value_kind_phrase(spec.kind)) + ", it is " +
             std::string(value_kind_phrase(input.kind)));
      return false;
    }
    if (spec.kind != ValueKind::kTensor) return false;
    if (spec.dtype != DType::kUndefined && input.meta.dtype != spec.dtype) {
      report(input_name(i) + " must be " + std::string(dtype_name(spec.dtype)) + ", it is " +
             std::string(dtype_name(input.meta.dtype)));
    }
    if (!spec.sizes) return false;
    if (input.meta.sizes.size() == spec.sizes->size()) return true;
    report(input_name(i) + " must have " + std::to_string(spec.sizes->size()) + " dimensions, it has " +
           std::to_string(input.meta.sizes.size()));
    return false;
  }

  void bind_alone(std::size_t input, std::size_t dim, const Expr& expr) {
    if (!expr.is_symbol()) return;
    const auto index = static_cast<std::size_t>(expr.terms[0].value);
    if (index < known_.size() && !known_[index]) set(index, input, dim, size_of(input, dim));
  }

  void set(std::size_t symbol, std::size_t input, std::size_t dim, std::int64_t value) {
    known_[symbol] = value;
    origins_.resize(symbols_.size());
    origins_[symbol] = {input, dim};
  }

  // Each round binds a symbol at least, so there are at most as many rounds as symbols.
  void bind_lines() {
    for (bool progress = true; progress;) {
      progress = false;
      for_each_size([&](std::size_t input, std::size_t dim, const Expr& expr) {
        const std::optional<std::size_t> unknown = only_unknown(expr, known_);
        if (!unknown) return;
        const std::optional<Linear> line = linear_in(expr, *unknown, known_);
        std::int64_t difference = 0;
        if (!line || line->factor == 0 || __builtin_sub_overflow(size_of(input, dim), line->rest, &difference)) return;
        if (line->factor == -1 && difference == INT64_MIN) return;
        // Where it does not divide, the floor is bound all the same, and check_size() reports this size.
        set(*unknown, input, dim, difference / line->factor);
        progress = true;
      });
    }
  }

  void check_bound_and_ranges() {
    origins_.resize(symbols_.size());
    // A symbol stays open if the input that gives it has been reported above; one report is enough.
    const bool complain = findings_.empty();
    for (std::size_t s = 0; s < symbols_.size(); ++s) {
      const SymbolSpec& symbol = symbols_[s];
      if (!known_[s]) {
        if (complain) {
          report("no input's size gives symbol " + symbol.name, "export the program again with an input of that size");
        }
        continue;
      }
      if (*known_[s] >= symbol.min && *known_[s] <= symbol.max) continue;
      const auto [input, dim] = origins_[s];
      const bool alone = (*specs_[input].sizes)[dim].is_symbol();
      const std::string range = symbol.max == INT64_MAX ? "at least " + std::to_string(symbol.min)
                                                        : std::to_string(symbol.min) + "…" + std::to_string(symbol.max);
      report(input_name(input) + ": size " + std::to_string(dim) + " is " + std::to_string(size_of(input, dim)) +
             (alone ? ", the program allows " + range + " (symbol " + symbol.name + ")"
                    : ", that makes symbol " + symbol.name + " " + std::to_string(*known_[s]) +
                          ", the program allows " + range));
    }
  }

  void check_size(std::size_t input, std::size_t dim, const Expr& expr) {
    std::vector<std::int64_t> numbers;
    for (const Expr::Term& term : expr.terms) {
      const auto index = static_cast<std::size_t>(term.value);
      if (term.op == ExprOp::kSymbol && (index >= known_.size() || !known_[index])) return;
    }
    for (const auto& value : known_) numbers.push_back(value.value_or(0));
    const std::string where = input_name(input) + ": size " + std::to_string(dim);
    const Result<std::int64_t> wanted = expr.evaluate(numbers);
    if (!wanted) {
      report(where + ": " + wanted.error().message);
    } else if (*wanted != size_of(input, dim)) {
      report(where + " is " + std::to_string(size_of(input, dim)) + ", it must be " + std::to_string(*wanted) +
             reason(expr));
    }
  }

  // " (2*s0, where s0 is 3 from input 'ids' size 1)"; empty for a fixed size.
  std::string reason(const Expr& expr) const {
    if (expr.is_constant()) return "";
    std::string text = " (" + expr.to_string(names_);
    std::vector<std::size_t> told;
    for (const Expr::Term& term : expr.terms) {
      const auto index = static_cast<std::size_t>(term.value);
      if (term.op != ExprOp::kSymbol || std::find(told.begin(), told.end(), index) != told.end()) continue;
      text += told.empty() ? ", where " : " and ";
      text += names_[index] + " is " + std::to_string(*known_[index]) + " from " + input_name(origins_[index].first) +
              " size " + std::to_string(origins_[index].second);
      told.push_back(index);
    }
    return text + ")";
  }

  const std::span<const SymbolSpec> symbols_;
  const std::span<const ValueSpec> specs_;
  const std::span<const InputDescription> inputs_;
  std::vector<std::optional<std::int64_t>> known_;
  std::vector<std::pair<std::size_t, std::size_t>> origins_;  ///< of a known symbol: input and dimension
  std::vector<bool> usable_;
  std::vector<std::string> names_;
  Findings findings_;
};

}  // namespace

std::vector<bool> bindable_symbols(std::size_t symbol_count, std::span<const ValueSpec* const> inputs) {
  std::vector<const Expr*> open;
  std::vector<bool> bindable(symbol_count);
  for (const ValueSpec* input : inputs) {
    if (!input->sizes) continue;
    for (const Expr& expr : *input->sizes) {
      if (expr.is_symbol()) {
        bindable[static_cast<std::size_t>(expr.terms[0].value)] = true;
      } else {
        open.push_back(&expr);
      }
    }
  }
  for (bool progress = true; progress;) {
    progress = false;
    for (const Expr* expr : open) {
      const std::optional<std::size_t> unknown = line_unknown(*expr, bindable);
      if (!unknown) continue;
      bindable[*unknown] = true;
      progress = true;
    }
  }
  return bindable;
}

Result<std::vector<std::int64_t>> bind_symbols(std::span<const SymbolSpec> symbols, std::span<const ValueSpec> specs,
                                               std::span<const InputDescription> inputs) {
  if (specs.size() != inputs.size()) {
    return fail(ErrorCode::kBadInput, "the program takes " + std::to_string(specs.size()) + " inputs, " +
                                          std::to_string(inputs.size()) + " were given");
  }
  return Binder(symbols, specs, inputs).bind();
}

}  // namespace callboard
