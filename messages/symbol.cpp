#include "messages/symbol.h"

#include <array>
#include <optional>

#include "messages/limits.h"

namespace callboard {
namespace {

enum class Arity { kLeaf, kUnary, kBinary, kUnknown };

Arity arity(ExprOp op) {
  switch (op) {
    case ExprOp::kConst:
    case ExprOp::kSymbol:
    case ExprOp::kValue: return Arity::kLeaf;
    case ExprOp::kNot: return Arity::kUnary;
    case ExprOp::kAdd:
    case ExprOp::kSub:
    case ExprOp::kMul:
    case ExprOp::kFloorDiv:
    case ExprOp::kMod:
    case ExprOp::kMin:
    case ExprOp::kMax:
    case ExprOp::kPow:
    case ExprOp::kEq:
    case ExprOp::kNe:
    case ExprOp::kLt:
    case ExprOp::kLe:
    case ExprOp::kGt:
    case ExprOp::kGe:
    case ExprOp::kAnd:
    case ExprOp::kOr: return Arity::kBinary;
  }
  return Arity::kUnknown;
}

// -- evaluation ----------------------------------------------------------------------------------------------------

enum class Fault { kNone, kOverflow, kDivisionByZero, kNegativePower };

const char* fault_text(Fault fault) {
  switch (fault) {
    case Fault::kOverflow: return "overflows 64 bits";
    case Fault::kDivisionByZero: return "divides by zero";
    case Fault::kNegativePower: return "has a negative exponent";
    case Fault::kNone: break;
  }
  return "";
}

Fault floor_divide(std::int64_t a, std::int64_t b, std::int64_t& result) {
  if (b == 0) return Fault::kDivisionByZero;
  if (a == INT64_MIN && b == -1) return Fault::kOverflow;
  const bool inexact_and_negative = a % b != 0 && (a < 0) != (b < 0);
  result = a / b - (inexact_and_negative ? 1 : 0);
  return Fault::kNone;
}

Fault floor_modulo(std::int64_t a, std::int64_t b, std::int64_t& result) {
  if (b == 0) return Fault::kDivisionByZero;
  result = b == -1 ? 0 : a % b;  // INT64_MIN % -1 traps
  if (result != 0 && (result < 0) != (b < 0)) result += b;
  return Fault::kNone;
}

Fault power(std::int64_t base, std::int64_t exponent, std::int64_t& result) {
  if (exponent < 0) return Fault::kNegativePower;
  result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return Fault::kOverflow;
    exponent >>= 1;
    // The last square is not used; of ±1 and 0 it never overflows.
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return Fault::kOverflow;
  }
  return Fault::kNone;
}

Fault apply(ExprOp op, std::int64_t a, std::int64_t b, std::int64_t& result) {
  const auto overflow = [](bool overflowed) { return overflowed ? Fault::kOverflow : Fault::kNone; };
  switch (op) {
    case ExprOp::kAdd: return overflow(__builtin_add_overflow(a, b, &result));
    case ExprOp::kSub: return overflow(__builtin_sub_overflow(a, b, &result));
    case ExprOp::kMul: return overflow(__builtin_mul_overflow(a, b, &result));
    case ExprOp::kFloorDiv: return floor_divide(a, b, result);
    case ExprOp::kMod: return floor_modulo(a, b, result);
    case ExprOp::kPow: return power(a, b, result);
    case ExprOp::kMin: result = a < b ? a : b; break;
    case ExprOp::kMax: result = a < b ? b : a; break;
    case ExprOp::kEq: result = a == b; break;
    case ExprOp::kNe: result = a != b; break;
    case ExprOp::kLt: result = a < b; break;
    case ExprOp::kLe: result = a <= b; break;
    case ExprOp::kGt: result = a > b; break;
    case ExprOp::kGe: result = a >= b; break;
    case ExprOp::kAnd: result = a != 0 && b != 0; break;
    case ExprOp::kOr: result = a != 0 || b != 0; break;
    default: break;
  }
  return Fault::kNone;
}

std::optional<std::int64_t> leaf(const Expr::Term& term, std::span<const std::int64_t> symbols,
                                 std::span<const std::int64_t> values) {
  if (term.op == ExprOp::kConst) return term.value;
  const std::span<const std::int64_t> from = term.op == ExprOp::kSymbol ? symbols : values;
  if (term.value < 0 || static_cast<std::uint64_t>(term.value) >= from.size()) return std::nullopt;
  return from[static_cast<std::size_t>(term.value)];
}

// -- text ----------------------------------------------------------------------------------------------------------

struct Text {
  std::string text;
  int strength = 0;  ///< of its weakest operator; an operand that is weaker than its place is put in brackets
};

struct Operator {
  const char* text;
  int strength;  ///< Python's order; 0 is a function call
};

constexpr int kLeafStrength = 10;
constexpr int kNotStrength = 3;

Operator operator_of(ExprOp op) {
  switch (op) {
    case ExprOp::kOr: return {" or ", 1};
    case ExprOp::kAnd: return {" and ", 2};
    case ExprOp::kEq: return {" == ", 4};
    case ExprOp::kNe: return {" != ", 4};
    case ExprOp::kLt: return {" < ", 4};
    case ExprOp::kLe: return {" <= ", 4};
    case ExprOp::kGt: return {" > ", 4};
    case ExprOp::kGe: return {" >= ", 4};
    case ExprOp::kAdd: return {" + ", 5};
    case ExprOp::kSub: return {" - ", 5};
    case ExprOp::kMul: return {"*", 6};
    case ExprOp::kFloorDiv: return {"//", 6};
    case ExprOp::kMod: return {" % ", 6};
    case ExprOp::kPow: return {"**", 8};
    case ExprOp::kMin: return {"min", 0};
    default: return {"max", 0};
  }
}

std::string at_least(const Text& operand, int strength) {
  return operand.strength >= strength ? operand.text : "(" + operand.text + ")";
}

Text join(ExprOp op, const Text& left, const Text& right) {
  const Operator sign = operator_of(op);
  if (sign.strength == 0) return {std::string(sign.text) + "(" + left.text + ", " + right.text + ")", kLeafStrength};
  // Python chains comparisons and binds ** to the right: there both sides need more strength.
  const bool both = sign.strength == 4 || op == ExprOp::kPow;
  return {at_least(left, sign.strength + (both ? 1 : 0)) + sign.text + at_least(right, sign.strength + 1),
          sign.strength};
}

Text leaf_text(const Expr::Term& term, std::span<const std::string> names) {
  if (term.op == ExprOp::kConst) return {std::to_string(term.value), term.value < 0 ? 7 : kLeafStrength};
  const auto index = static_cast<std::uint64_t>(term.value);
  if (term.op == ExprOp::kSymbol && index < names.size()) return {names[index], kLeafStrength};
  return {(term.op == ExprOp::kSymbol ? "symbol" : "v") + std::to_string(term.value), kLeafStrength};
}

}  // namespace

Status Expr::check(std::size_t symbol_count, std::size_t value_count) const {
  const auto bad = [](std::string why) { return fail(ErrorCode::kBadGraph, "a size expression " + std::move(why)); };
  if (terms.size() > limits::kExprTermsMax) {
    return bad("has " + std::to_string(terms.size()) + " terms, at most " + std::to_string(limits::kExprTermsMax) +
               " are allowed");
  }
  std::size_t depth = 0;
  for (const Term& term : terms) {
    const Arity operands = arity(term.op);
    if (operands == Arity::kUnknown)
      return bad("has the unknown operation " + std::to_string(static_cast<int>(term.op)));
    if (operands != Arity::kLeaf) {
      const std::size_t needed = operands == Arity::kUnary ? 1 : 2;
      if (depth < needed) return bad("has an operation without operands");
      depth -= needed;
    } else if (term.op != ExprOp::kConst) {
      const bool is_symbol_term = term.op == ExprOp::kSymbol;
      const std::size_t count = is_symbol_term ? symbol_count : value_count;
      if (term.value < 0 || static_cast<std::uint64_t>(term.value) >= count) {
        return bad(std::string("names ") + (is_symbol_term ? "symbol " : "value ") + std::to_string(term.value) +
                   ", there are " + std::to_string(count));
      }
    }
    ++depth;
  }
  if (depth != 1) return bad("leaves " + std::to_string(depth) + " results in place of one");
  return {};
}

Result<std::int64_t> Expr::evaluate(std::span<const std::int64_t> symbols, std::span<const std::int64_t> values) const {
  const auto bad = [this](const std::string& why) {
    return fail(ErrorCode::kBadInput, "the size expression " + to_string({}) + " " + why);
  };
  if (is_constant()) return terms[0].value;
  std::array<std::int64_t, limits::kExprTermsMax> stack;
  std::size_t depth = 0;
  for (const Term& term : terms) {
    const Arity operands = arity(term.op);
    const std::size_t needed = operands == Arity::kLeaf ? 0 : operands == Arity::kUnary ? 1 : 2;
    if (operands == Arity::kUnknown || depth < needed || depth - needed >= stack.size()) return bad("is malformed");
    if (operands == Arity::kLeaf) {
      const std::optional<std::int64_t> value = leaf(term, symbols, values);
      if (!value) return bad("needs a number that is not known here");
      stack[depth++] = *value;
    } else if (operands == Arity::kUnary) {
      stack[depth - 1] = stack[depth - 1] == 0;
    } else {
      --depth;
      const Fault fault = apply(term.op, stack[depth - 1], stack[depth], stack[depth - 1]);
      if (fault != Fault::kNone) return bad(fault_text(fault));
    }
  }
  if (depth != 1) return bad("is malformed");
  return stack[0];
}

std::string Expr::to_string(std::span<const std::string> symbol_names) const {
  constexpr const char* kMalformed = "<malformed expression>";
  std::vector<Text> stack;
  for (const Term& term : terms) {
    const Arity operands = arity(term.op);
    const std::size_t needed = operands == Arity::kLeaf ? 0 : operands == Arity::kUnary ? 1 : 2;
    if (operands == Arity::kUnknown || stack.size() < needed) return kMalformed;
    if (operands == Arity::kLeaf) {
      stack.push_back(leaf_text(term, symbol_names));
    } else if (operands == Arity::kUnary) {
      stack.back() = {"not " + at_least(stack.back(), kNotStrength), kNotStrength};
    } else {
      const Text right = std::move(stack.back());
      stack.pop_back();
      stack.back() = join(term.op, stack.back(), right);
    }
  }
  return stack.size() == 1 ? stack[0].text : kMalformed;
}

}  // namespace callboard
