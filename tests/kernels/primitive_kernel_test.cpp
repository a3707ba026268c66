// Operators of our own, with Python's arithmetic as oracle.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>

#include "tests/kernels/support/test_device.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::kernels;
using namespace callboard::testing;

namespace {

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

RunResult evaluate(const std::string& op, std::vector<Argument> args, ValueKind kind) {
  static TestDevice device;
  static int number = 0;
  FragmentMaker maker("primitive " + std::to_string(number++));
  maker.output(maker.node(op, std::move(args), {}, number_spec(kind)));
  return device.run(maker.build(), {});
}

std::int64_t integer(const std::string& op, std::vector<Argument> args) {
  const RunResult result = evaluate(op, std::move(args), ValueKind::kInt);
  REQUIRE_FALSE(result.error);
  return std::get<std::int64_t>(result.to_client.at(0));
}
double real(const std::string& op, std::vector<Argument> args) {
  const RunResult result = evaluate(op, std::move(args), ValueKind::kFloat);
  REQUIRE_FALSE(result.error);
  return std::get<double>(result.to_client.at(0));
}
bool truth(const std::string& op, std::vector<Argument> args) {
  const RunResult result = evaluate(op, std::move(args), ValueKind::kBool);
  REQUIRE_FALSE(result.error);
  return std::get<bool>(result.to_client.at(0));
}
ErrorCode refusal(const std::string& op, std::vector<Argument> args) {
  const RunResult result = evaluate(op, std::move(args), ValueKind::kInt);
  return result.error ? result.error->code : ErrorCode::kOk;
}
Argument i(std::int64_t number) { return number; }

}  // namespace

TEST_CASE("integer arithmetic rounds as Python's does") {
  CHECK(integer("callboard_sym::add", {i(2), i(-5)}) == -3);
  CHECK(integer("callboard_sym::sub", {i(2), i(-5)}) == 7);
  CHECK(integer("callboard_sym::mul", {i(-4), i(3)}) == -12);
  CHECK(integer("callboard_sym::floordiv", {i(-7), i(2)}) == -4);
  CHECK(integer("callboard_sym::floordiv", {i(7), i(-2)}) == -4);
  CHECK(integer("callboard_sym::floordiv", {i(-8), i(2)}) == -4);
  CHECK(integer("callboard_sym::mod", {i(-7), i(2)}) == 1);
  CHECK(integer("callboard_sym::mod", {i(7), i(-2)}) == -1);
  CHECK(integer("callboard_sym::mod", {i(kMin), i(-1)}) == 0);
  CHECK(integer("callboard_sym::min", {i(3), i(2)}) == 2);
  CHECK(integer("callboard_sym::max", {i(3), i(2)}) == 3);
  CHECK(integer("callboard_sym::neg", {i(3)}) == -3);
  CHECK(integer("callboard_sym::pow", {i(-2), i(3)}) == -8);
  CHECK(integer("callboard_sym::abs", {i(-3)}) == 3);
  CHECK(integer("callboard_sym::ite", {true, i(1), i(2)}) == 1);
  CHECK(integer("callboard_sym::add", {true, i(2)}) == 3);
}

TEST_CASE("mixed and float arithmetic gives floats as Python's does") {
  CHECK(real("callboard_sym::add", {i(1), 0.5}) == 1.5);
  CHECK(real("callboard_sym::truediv", {i(7), i(2)}) == 3.5);
  CHECK(real("callboard_sym::floordiv", {-7.5, i(2)}) == -4.0);
  CHECK(real("callboard_sym::mod", {-7.5, i(2)}) == 0.5);
  CHECK(real("callboard_sym::pow", {i(2), i(-1)}) == 0.5);
  CHECK(real("callboard_sym::sqrt", {i(9)}) == 3.0);
  CHECK(real("callboard_sym::float", {i(9)}) == 9.0);
  CHECK(integer("callboard_sym::int", {-2.7}) == -2);
  CHECK(integer("math::floor", {-2.2}) == -3);
  CHECK(integer("math::ceil", {-2.2}) == -2);
  CHECK(integer("callboard_sym::round", {2.5}) == 2);
}

TEST_CASE("comparisons and logic") {
  CHECK(truth("callboard_sym::eq", {i(2), 2.0}));
  CHECK(truth("callboard_sym::ne", {i(2), i(3)}));
  CHECK(truth("callboard_sym::lt", {i(2), i(3)}));
  CHECK(truth("callboard_sym::le", {i(3), i(3)}));
  CHECK_FALSE(truth("callboard_sym::gt", {i(3), i(3)}));
  CHECK(truth("callboard_sym::ge", {i(3), i(3)}));
  CHECK(truth("callboard_sym::not", {i(0)}));
  CHECK(truth("_operator::and_", {true, true}));
  CHECK_FALSE(truth("_operator::or_", {false, false}));
  CHECK_FALSE(truth("callboard_sym::eq", {std::nan(""), std::nan("")}));
  CHECK_FALSE(truth("callboard_sym::ge", {std::nan(""), 1.0}));
}

TEST_CASE("names that torch.export leaves in graphs mean the same") {
  CHECK(integer("_operator::floordiv", {i(-7), i(2)}) == -4);
  CHECK(integer("torch::sym_max", {i(-7), i(2)}) == 2);
}

TEST_CASE("arithmetic that does not fit fails the run with bad input") {
  CHECK(refusal("callboard_sym::add", {i(kMax), i(1)}) == ErrorCode::kBadInput);
  CHECK(refusal("callboard_sym::sub", {i(kMin), i(1)}) == ErrorCode::kBadInput);
  CHECK(refusal("callboard_sym::mul", {i(kMax), i(2)}) == ErrorCode::kBadInput);
  CHECK(refusal("callboard_sym::neg", {i(kMin)}) == ErrorCode::kBadInput);
  CHECK(refusal("callboard_sym::floordiv", {i(kMin), i(-1)}) == ErrorCode::kBadInput);
  CHECK(refusal("callboard_sym::floordiv", {i(1), i(0)}) == ErrorCode::kBadInput);
  CHECK(refusal("callboard_sym::mod", {i(1), i(0)}) == ErrorCode::kBadInput);
  CHECK(refusal("callboard_sym::pow", {i(10), i(30)}) == ErrorCode::kBadInput);
  CHECK(refusal("callboard_sym::int", {1e300}) == ErrorCode::kBadInput);
  CHECK(refusal("callboard_sym::int", {std::nan("")}) == ErrorCode::kBadInput);
  CHECK(refusal("callboard_sym::add", {std::string("x"), i(1)}) == ErrorCode::kBadInput);
}

TEST_CASE("primitives refuse wrong arguments when they are loaded") {
  CHECK(refusal("callboard_sym::add", {i(1)}) == ErrorCode::kBadArgument);
  CHECK(refusal("callboard_sym::neg", {i(1), i(2)}) == ErrorCode::kBadArgument);
  CHECK(refusal("callboard_sym::neg", {ArgDType{DType::kInt8}}) == ErrorCode::kBadArgument);
  CHECK(refusal("callboard_sym::unheard_of", {i(1)}) == ErrorCode::kUnknownOperator);
}

TEST_CASE("sizes of tensors, also from the back, and out of range") {
  TestDevice device;
  const auto size_of = [&](const std::string& op, std::vector<Argument> args) {
    static int number = 0;
    FragmentMaker maker("size " + std::to_string(number++));
    maker.input();
    maker.output(maker.node(op, std::move(args), {}, number_spec(ValueKind::kInt)));
    return device.run(maker.build(), {to_wire(at::ones({2, 3}))});
  };
  CHECK(size_of("callboard_sym::size", {value(0), i(1)}).to_client.at(0) == WireValue(std::int64_t{3}));
  CHECK(size_of("callboard_sym::size", {value(0), i(-2)}).to_client.at(0) == WireValue(std::int64_t{2}));
  CHECK(size_of("callboard_sym::stride", {value(0), i(0)}).to_client.at(0) == WireValue(std::int64_t{3}));
  CHECK(size_of("callboard_sym::numel", {value(0)}).to_client.at(0) == WireValue(std::int64_t{6}));
  CHECK(size_of("aten::sym_size.int", {value(0), i(1)}).to_client.at(0) == WireValue(std::int64_t{3}));
  CHECK(size_of("callboard_sym::size", {value(0), i(2)}).error->code == ErrorCode::kBadInput);
}

TEST_CASE("a program's own check that fails is bad input with its message") {
  TestDevice device;
  FragmentMaker maker("assert");
  const ValueId x = maker.input(number_spec(ValueKind::kInt));
  const ValueId ok = maker.node("callboard_sym::lt", {value(x), i(5)}, {}, number_spec(ValueKind::kBool));
  maker.node_without_outputs("callboard_sym::assert", {value(ok), std::string("x must be below 5")});
  maker.output(x);
  const Fragment fragment = maker.build();
  CHECK_FALSE(device.run(fragment, {std::int64_t{4}}).error);
  const RunResult failed = device.run(fragment, {std::int64_t{5}});
  REQUIRE(failed.error);
  CHECK(failed.error->code == ErrorCode::kBadInput);
  CHECK(failed.error->message.find("x must be below 5") != std::string::npos);
}
