// Sizes that are known at submit: small integer expressions over a program's symbols.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "messages/base/error.h"

namespace callboard {

/// Operation of one term. Comparisons give 0 or 1. Floor division and modulo round towards minus infinity, as Python's.
enum class ExprOp : std::uint8_t {
  kConst = 0,   ///< pushes Term::value
  kSymbol = 1,  ///< pushes the program symbol number Term::value
  kValue = 2,   ///< pushes the integer that the program value number Term::value holds (data dependent sizes)
  kAdd = 10, kSub, kMul, kFloorDiv, kMod, kMin, kMax, kPow,
  kEq = 20, kNe, kLt, kLe, kGt, kGe, kAnd, kOr, kNot,
};

/// A closed expression in postfix order, so that neither decoding nor evaluating recurses. At most kExprTermsMax terms.
struct Expr {
  struct Term {
    ExprOp op = ExprOp::kConst;
    std::int64_t value = 0;
    bool operator==(const Term&) const = default;
  };
  std::vector<Term> terms;

  bool operator==(const Expr&) const = default;
  static Expr constant(std::int64_t value) { return Expr{{{ExprOp::kConst, value}}}; }
  static Expr symbol(std::size_t index) { return Expr{{{ExprOp::kSymbol, static_cast<std::int64_t>(index)}}}; }
  static Expr value(std::size_t value_id) { return Expr{{{ExprOp::kValue, static_cast<std::int64_t>(value_id)}}}; }
  bool is_constant() const { return terms.size() == 1 && terms[0].op == ExprOp::kConst; }
  bool is_symbol() const { return terms.size() == 1 && terms[0].op == ExprOp::kSymbol; }

  /// Well formed (each operation finds its operands, exactly one result), symbols below `symbol_count`, values below
  /// `value_count`. kBadGraph otherwise.
  Status check(std::size_t symbol_count, std::size_t value_count) const;

  /// Evaluates a checked expression. Overflow, division by zero and a missing value give kBadInput.
  /// `values` are indexed by value id and may be empty where the expression has no kValue.
  Result<std::int64_t> evaluate(std::span<const std::int64_t> symbols, std::span<const std::int64_t> values = {}) const;

  /// "2*s0 + 1" with the given symbol names; for error messages.
  std::string to_string(std::span<const std::string> symbol_names) const;
};

/// A symbol of a program; bound at submit from the inputs' sizes. Range inclusive.
struct SymbolSpec {
  std::string name;
  std::int64_t min = 0;
  std::int64_t max = INT64_MAX;
  bool operator==(const SymbolSpec&) const = default;
};

}  // namespace callboard
