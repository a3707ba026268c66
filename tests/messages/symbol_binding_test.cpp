#include "messages/graph_check.h"

#include "tests/support/test.h"

namespace callboard {
namespace {

using Op = ExprOp;

ValueSpec declared(std::string name, std::vector<Expr> sizes, DType dtype = DType::kFloat32) {
  return {std::move(name), ValueKind::kTensor, dtype, std::move(sizes)};
}
InputDescription given(std::vector<std::int64_t> sizes, DType dtype = DType::kFloat32) {
  InputDescription input;
  input.meta = TensorMeta::contiguous(dtype, std::move(sizes));
  return input;
}
/// factor * symbol + rest
Expr line(std::int64_t factor, std::int64_t symbol, std::int64_t rest) {
  return Expr{{{Op::kConst, factor}, {Op::kSymbol, symbol}, {Op::kMul, 0}, {Op::kConst, rest}, {Op::kAdd, 0}}};
}

const std::vector<SymbolSpec> kSymbols{{"s0", 1, 64}, {"s1", 2, 512}};

std::vector<std::int64_t> bound(std::vector<ValueSpec> specs, std::vector<InputDescription> inputs,
                                std::vector<SymbolSpec> symbols = kSymbols) {
  const auto result = bind_symbols(symbols, specs, inputs);
  if (!result) FAIL(result.error().to_string());
  return *result;
}
std::string refusal(std::vector<ValueSpec> specs, std::vector<InputDescription> inputs,
                    std::vector<SymbolSpec> symbols = kSymbols) {
  const auto result = bind_symbols(symbols, specs, inputs);
  REQUIRE_FALSE(result);
  CHECK(result.error().code == ErrorCode::kBadInput);
  return result.error().causes.empty() ? result.error().message : result.error().to_string();
}

TEST_CASE("symbols take the sizes of the inputs") {
  CHECK(bound({declared("ids", {Expr::symbol(0), Expr::symbol(1)})}, {given({8, 128})}) ==
        std::vector<std::int64_t>{8, 128});
  CHECK(bound({}, {}, {}).empty());
  CHECK(bound({declared("x", {})}, {given({})}, {}).empty());
}

TEST_CASE("a size outside a symbol's range names input, dimension and range") {
  const std::vector<ValueSpec> specs{declared("ids", {Expr::symbol(0), Expr::symbol(1)})};
  CHECK(refusal(specs, {given({8, 600})}) == "input 'ids': size 1 is 600, the program allows 2…512 (symbol s1)");
  CHECK(refusal(specs, {given({8, 1})}) == "input 'ids': size 1 is 1, the program allows 2…512 (symbol s1)");
  CHECK(bound(specs, {given({64, 512})}) == std::vector<std::int64_t>{64, 512});
  CHECK(bound(specs, {given({1, 2})}) == std::vector<std::int64_t>{1, 2});
  CHECK(refusal({declared("ids", {Expr::symbol(0)})}, {given({2})}, {{"n", 3, INT64_MAX}}) ==
        "input 'ids': size 0 is 2, the program allows at least 3 (symbol n)");
}

TEST_CASE("sizes that contradict each other name both inputs") {
  CHECK(refusal({declared("ids", {Expr::symbol(0)}), declared("mask", {Expr::symbol(0)})}, {given({8}), given({9})},
                {kSymbols[0]}) ==
        "input 'mask': size 0 is 9, it must be 8 (s0, where s0 is 8 from input 'ids' size 0)");
}

TEST_CASE("fixed sizes, ranks, dtypes, kinds and the number of inputs are checked") {
  CHECK(refusal({declared("x", {Expr::constant(4)})}, {given({5})}, {}) == "input 'x': size 0 is 5, it must be 4");
  CHECK(refusal({declared("x", {Expr::constant(4)})}, {given({4, 1})}, {}) ==
        "input 'x' must have 1 dimensions, it has 2");
  CHECK(refusal({declared("x", {})}, {given({}, DType::kInt64)}, {}) == "input 'x' must be float32, it is int64");
  InputDescription number;
  number.kind = ValueKind::kInt;
  CHECK(refusal({declared("x", {})}, {number}, {}) == "input 'x' must be a tensor, it is an int");
  CHECK(refusal({{"n", ValueKind::kInt, DType::kUndefined, {}}}, {given({})}, {}) ==
        "input 'n' must be an int, it is a tensor");
  CHECK(refusal({declared("x", {})}, {}, {}) == "the program takes 1 inputs, 0 were given");
  CHECK(bound({{"n", ValueKind::kInt, DType::kUndefined, {}}}, {number}, {}).empty());
}

TEST_CASE("no dtype and no sizes mean anything") {
  CHECK(bound({{"x", ValueKind::kTensor, DType::kUndefined, std::nullopt}}, {given({7, 7}, DType::kBool)}, {}).empty());
  CHECK(bound({{"x", ValueKind::kTensor, DType::kUndefined, std::vector<Expr>{Expr::symbol(0)}}},
              {given({7}, DType::kBool)}, {kSymbols[0]}) == std::vector<std::int64_t>{7});
}

TEST_CASE("derived sizes are computed from symbols that other sizes bind, wherever these stand") {
  const std::vector<ValueSpec> specs{declared("wide", {line(2, 0, 1)}), declared("x", {Expr::symbol(0)})};
  CHECK(bound(specs, {given({17}), given({8})}, {kSymbols[0]}) == std::vector<std::int64_t>{8});
  CHECK(refusal(specs, {given({18}), given({8})}, {kSymbols[0]}) ==
        "input 'wide': size 0 is 18, it must be 17 (2*s0 + 1, where s0 is 8 from input 'x' size 0)");
}

TEST_CASE("a symbol that no size gives alone is solved for from a line") {
  CHECK(bound({declared("x", {line(2, 0, 1)})}, {given({17})}, {kSymbols[0]}) == std::vector<std::int64_t>{8});
  CHECK(bound({declared("x", {line(-1, 0, 10)})}, {given({3})}, {kSymbols[0]}) == std::vector<std::int64_t>{7});
  const Expr sum{{{Op::kSymbol, 0}, {Op::kSymbol, 1}, {Op::kMul, 0}}};
  CHECK(bound({declared("x", {sum}), declared("y", {line(1, 1, 0)})}, {given({24}), given({6})}) ==
        std::vector<std::int64_t>{4, 6});
  CHECK(refusal({declared("x", {line(2, 0, 1)})}, {given({18})}, {kSymbols[0]}) ==
        "input 'x': size 0 is 18, it must be 17 (2*s0 + 1, where s0 is 8 from input 'x' size 0)");
  CHECK(refusal({declared("x", {line(2, 0, 0)})}, {given({200})}, {kSymbols[0]}) ==
        "input 'x': size 0 is 200, that makes symbol s0 100, the program allows 1…64");
}

TEST_CASE("a symbol that cannot be solved for is named") {
  const Expr square{{{Op::kSymbol, 0}, {Op::kSymbol, 0}, {Op::kMul, 0}}};
  CHECK(refusal({declared("x", {square})}, {given({16})}, {kSymbols[0]}).find("symbol s0") != std::string::npos);
  CHECK(refusal({declared("x", {line(0, 0, 4)})}, {given({4})}, {kSymbols[0]}).find("symbol s0") != std::string::npos);
}

TEST_CASE("numbers at the ends of the range do not overflow") {
  refusal({declared("x", {line(INT64_MAX, 0, INT64_MIN)})}, {given({4})}, {kSymbols[0]});
  refusal({declared("x", {line(-1, 0, INT64_MIN)})}, {given({0})}, {{"s", INT64_MIN, INT64_MAX}});
  refusal({declared("x", {Expr::symbol(0)}), declared("y", {line(INT64_MAX, 0, 0)})}, {given({3}), given({3})},
          {kSymbols[0]});
}

TEST_CASE("all that does not fit is said at once") {
  const auto result = bind_symbols(
      kSymbols, std::vector<ValueSpec>{declared("ids", {Expr::symbol(0), Expr::symbol(1)}), declared("y", {})},
      std::vector<InputDescription>{given({100, 600}), given({}, DType::kInt8)});
  REQUIRE_FALSE(result);
  CHECK(result.error().causes.size() == 3);
}

TEST_CASE("one wrong input is reported once, not again for each symbol it would give") {
  CHECK(refusal({declared("ids", {Expr::symbol(0), Expr::symbol(1)})}, {given({4})}) ==
        "input 'ids' must have 2 dimensions, it has 1");
}

}  // namespace
}  // namespace callboard
