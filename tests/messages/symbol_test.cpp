#include "messages/symbol.h"

#include "messages/limits.h"
#include "tests/support/test.h"

namespace callboard {
namespace {

using Op = ExprOp;

Expr binary(Op op, std::int64_t a, std::int64_t b) { return Expr{{{Op::kConst, a}, {Op::kConst, b}, {op, 0}}}; }

std::int64_t value_of(Op op, std::int64_t a, std::int64_t b) {
  INFO(a << " op " << static_cast<int>(op) << " " << b);
  const auto value = binary(op, a, b).evaluate({});
  REQUIRE(value);
  return *value;
}

void check_refused(Op op, std::int64_t a, std::int64_t b, const char* why) {
  const auto value = binary(op, a, b).evaluate({});
  INFO(a << " op " << static_cast<int>(op) << " " << b);
  REQUIRE_FALSE(value);
  CHECK(value.error().code == ErrorCode::kBadInput);
  CHECK(value.error().message.find(why) != std::string::npos);
}

TEST_CASE("floor division and modulo round towards minus infinity, as Python's") {
  CHECK(value_of(Op::kFloorDiv, 7, 2) == 3);
  CHECK(value_of(Op::kFloorDiv, -7, 2) == -4);
  CHECK(value_of(Op::kFloorDiv, 7, -2) == -4);
  CHECK(value_of(Op::kFloorDiv, -7, -2) == 3);
  CHECK(value_of(Op::kFloorDiv, -8, 2) == -4);
  CHECK(value_of(Op::kMod, 7, 3) == 1);
  CHECK(value_of(Op::kMod, -7, 3) == 2);
  CHECK(value_of(Op::kMod, 7, -3) == -2);
  CHECK(value_of(Op::kMod, -7, -3) == -1);
  CHECK(value_of(Op::kMod, INT64_MIN, -1) == 0);
  for (std::int64_t a = -9; a <= 9; ++a) {
    for (std::int64_t b = -4; b <= 4; ++b) {
      if (b != 0) CHECK(value_of(Op::kFloorDiv, a, b) * b + value_of(Op::kMod, a, b) == a);
    }
  }
}

TEST_CASE("arithmetic, comparisons and logic give what Python gives") {
  CHECK(value_of(Op::kAdd, 2, 3) == 5);
  CHECK(value_of(Op::kSub, 2, 3) == -1);
  CHECK(value_of(Op::kMul, -2, 3) == -6);
  CHECK(value_of(Op::kMin, -2, 3) == -2);
  CHECK(value_of(Op::kMax, -2, 3) == 3);
  CHECK(value_of(Op::kPow, 2, 10) == 1024);
  CHECK(value_of(Op::kPow, -2, 63) == INT64_MIN);
  CHECK(value_of(Op::kPow, 0, 0) == 1);
  CHECK(value_of(Op::kPow, -1, INT64_MAX) == -1);
  CHECK(value_of(Op::kPow, INT64_MAX, 1) == INT64_MAX);
  CHECK(value_of(Op::kEq, 2, 2) == 1);
  CHECK(value_of(Op::kNe, 2, 2) == 0);
  CHECK(value_of(Op::kLt, 1, 2) == 1);
  CHECK(value_of(Op::kLe, 2, 2) == 1);
  CHECK(value_of(Op::kGt, 1, 2) == 0);
  CHECK(value_of(Op::kGe, 1, 2) == 0);
  CHECK(value_of(Op::kAnd, 3, 0) == 0);
  CHECK(value_of(Op::kOr, 3, 0) == 1);
  CHECK(Expr{{{Op::kConst, 5}, {Op::kNot, 0}}}.evaluate({}).value() == 0);
}

TEST_CASE("what overflows or divides by zero is bad input, never undefined") {
  check_refused(Op::kAdd, INT64_MAX, 1, "overflows");
  check_refused(Op::kSub, INT64_MIN, 1, "overflows");
  check_refused(Op::kMul, INT64_MAX, 2, "overflows");
  check_refused(Op::kMul, INT64_MIN, -1, "overflows");
  check_refused(Op::kFloorDiv, INT64_MIN, -1, "overflows");
  check_refused(Op::kPow, 2, 63, "overflows");
  check_refused(Op::kPow, 10, INT64_MAX, "overflows");
  check_refused(Op::kFloorDiv, 1, 0, "divides by zero");
  check_refused(Op::kMod, 1, 0, "divides by zero");
  check_refused(Op::kPow, 2, -1, "negative exponent");
}

TEST_CASE("symbols and values are looked up, a missing one is bad input") {
  const Expr expr{{{Op::kSymbol, 1}, {Op::kValue, 2}, {Op::kMul, 0}}};
  const std::vector<std::int64_t> symbols{5, 7};
  const std::vector<std::int64_t> values{0, 0, 3};
  CHECK(expr.evaluate(symbols, values).value() == 21);
  CHECK(expr.evaluate(symbols).error().code == ErrorCode::kBadInput);
  CHECK(expr.evaluate({}, values).error().code == ErrorCode::kBadInput);
  CHECK(Expr{{{Op::kSymbol, -1}}}.evaluate(symbols).error().code == ErrorCode::kBadInput);
}

TEST_CASE("check accepts closed expressions only") {
  CHECK(Expr::constant(4).check(0, 0));
  CHECK(Expr::symbol(1).check(2, 0));
  CHECK(Expr::value(1).check(0, 2));
  const Expr bad[] = {{},
                      Expr::symbol(2),
                      Expr::value(0),
                      Expr{{{Op::kSymbol, -1}}},
                      Expr{{{Op::kAdd, 0}}},
                      Expr{{{Op::kConst, 1}, {Op::kAdd, 0}}},
                      Expr{{{Op::kConst, 1}, {Op::kConst, 1}}},
                      Expr{{{Op::kNot, 0}}},
                      Expr{{{static_cast<Op>(99), 0}}}};
  for (const Expr& expr : bad) {
    const Status checked = expr.check(2, 0);
    INFO(expr.to_string({}));
    REQUIRE_FALSE(checked);
    CHECK(checked.error().code == ErrorCode::kBadGraph);
    CHECK_FALSE(expr.evaluate({}));
  }
}

TEST_CASE("an expression may have 256 terms, not 257, and evaluating a longer one is safe") {
  Expr deep;
  for (int i = 0; i < 128; ++i) deep.terms.push_back({Op::kConst, 1});
  for (int i = 0; i < 127; ++i) deep.terms.push_back({Op::kAdd, 0});
  deep.terms.push_back({Op::kNot, 0});
  REQUIRE(deep.terms.size() == limits::kExprTermsMax);
  CHECK(deep.check(0, 0));
  CHECK(deep.evaluate({}).value() == 0);
  deep.terms.push_back({Op::kNot, 0});
  CHECK_FALSE(deep.check(0, 0));
  const Expr much{std::vector<Expr::Term>(10'000, {Op::kConst, 1})};
  CHECK_FALSE(much.evaluate({}));
}

TEST_CASE("an expression's text is Python, with brackets only where they are needed") {
  const std::vector<std::string> names{"s0", "s1"};
  const auto text = [&](std::vector<Expr::Term> terms) { return Expr{std::move(terms)}.to_string(names); };
  CHECK(text({{Op::kConst, 2}, {Op::kSymbol, 0}, {Op::kMul, 0}, {Op::kConst, 1}, {Op::kAdd, 0}}) == "2*s0 + 1");
  CHECK(text({{Op::kSymbol, 0}, {Op::kConst, 1}, {Op::kAdd, 0}, {Op::kConst, 2}, {Op::kFloorDiv, 0}}) == "(s0 + 1)//2");
  CHECK(text({{Op::kSymbol, 0}, {Op::kSymbol, 1}, {Op::kConst, 1}, {Op::kSub, 0}, {Op::kSub, 0}}) == "s0 - (s1 - 1)");
  CHECK(text({{Op::kSymbol, 0}, {Op::kConst, 3}, {Op::kMax, 0}}) == "max(s0, 3)");
  CHECK(text({{Op::kConst, -2}, {Op::kConst, 2}, {Op::kPow, 0}}) == "(-2)**2");
  CHECK(text({{Op::kSymbol, 0}, {Op::kConst, 3}, {Op::kLt, 0}, {Op::kNot, 0}}) == "not s0 < 3");
  CHECK(text({{Op::kValue, 12}, {Op::kSymbol, 9}, {Op::kMod, 0}}) == "v12 % symbol9");
  CHECK(text({{Op::kAdd, 0}}) == "<malformed expression>");
}

}  // namespace
}  // namespace callboard
