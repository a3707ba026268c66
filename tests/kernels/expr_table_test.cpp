#include "kernels/expr_table.h"

#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::kernels;

namespace {

Expr sum(const Expr& a, const Expr& b) {
  Expr expr = a;
  expr.terms.insert(expr.terms.end(), b.terms.begin(), b.terms.end());
  expr.terms.push_back({ExprOp::kAdd, 0});
  return expr;
}

}  // namespace

TEST_CASE("equal expressions share one entry of the table") {
  ExprTable table;
  const auto first = table.add(Expr::symbol(0));
  CHECK(table.add(Expr::symbol(0)) == first);
  CHECK(table.add(Expr::symbol(1)) != first);
  CHECK(table.add(Expr::constant(0)) != first);
}

TEST_CASE("expressions over symbols are evaluated when a run begins and again for other symbols") {
  ExprTable table;
  const auto index = table.add(sum(Expr::symbol(0), Expr::constant(2)));
  const auto sizes = table.add_sizes({Expr::symbol(0), Expr::constant(5)});
  const std::vector<std::int64_t> three = {3};
  REQUIRE(table.begin(three));
  CHECK(table.is_ready(index));
  CHECK(table.ready_value(index) == 5);
  CHECK(table.expected(sizes)[0] == 3);
  CHECK(table.expected(sizes)[1] == 5);
  const std::vector<std::int64_t> nine = {9};
  REQUIRE(table.begin(nine));
  CHECK(table.ready_value(index) == 11);
  CHECK(table.expected(sizes)[0] == 9);
}

TEST_CASE("an expression over a value is evaluated with the integer that its node made") {
  ExprTable table;
  const auto index = table.add(sum(Expr::value(4), Expr::symbol(0)));
  const auto sizes = table.add_sizes({Expr::value(4)});
  CHECK(table.integers_read() == std::vector<ValueId>{4});
  const std::vector<std::int64_t> symbols = {10};
  REQUIRE(table.begin(symbols));
  CHECK_FALSE(table.is_ready(index));
  CHECK(table.expected(sizes)[0] == ExprTable::kLater);
  table.set_integer(4, 7);
  CHECK(table.evaluate(index).value() == 17);
  CHECK(table.evaluate(table.size_index(sizes)).value() == 7);
}

TEST_CASE("an expression over a value of another fragment is unknown, not wrong") {
  ExprTable table;
  const auto index = table.add(Expr::value(2));
  table.set_unknown(2);
  REQUIRE(table.begin({}));
  CHECK(table.evaluate(index).value() == std::nullopt);
}

TEST_CASE("an expression that cannot be evaluated fails the run, not the process") {
  ExprTable table;
  Expr division = Expr::constant(1);
  division.terms.push_back({ExprOp::kSymbol, 0});
  division.terms.push_back({ExprOp::kFloorDiv, 0});
  table.add(division);
  const std::vector<std::int64_t> zero = {0};
  CHECK(table.begin(zero).error().code == ErrorCode::kBadInput);
  const std::vector<std::int64_t> one = {1};
  CHECK(table.begin(one).has_value());
  CHECK(table.begin(zero).error().code == ErrorCode::kBadInput);
}
