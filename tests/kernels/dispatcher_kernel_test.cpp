// Arguments of every kind, through the loader and the executor, against direct calls of ATen.
#include <limits>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/slice.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "kernels/loaded_fragment.h"
#include "tests/kernels/support/test_device.h"
#include "tests/kernels/support/test_operators.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::kernels;
using namespace callboard::testing;

namespace {

/// A program of one node over the given tensors; `args` see them as values 0, 1, ….
at::Tensor call(const std::string& op, std::vector<Argument> args, const std::vector<at::Tensor>& tensors,
                FragmentMaker::Kwargs kwargs = {}) {
  FragmentMaker maker("call");
  for (std::size_t i = 0; i < tensors.size(); ++i) maker.input();
  maker.output(maker.node(op, std::move(args), std::move(kwargs)));
  TestDevice device;
  return device.result(maker.build(), tensors);
}

Error load_error(const std::string& op, std::vector<Argument> args, FragmentMaker::Kwargs kwargs = {},
                 ValueSpec input = any_tensor(), ValueSpec output = any_tensor()) {
  FragmentMaker maker("refused");
  maker.input(std::move(input));
  maker.output(maker.node(op, std::move(args), std::move(kwargs), std::move(output)));
  TestDevice device;
  const auto loaded = device.load(maker.build());
  REQUIRE_FALSE(loaded);
  return loaded.error();
}

/// Runs an operator of cbtest that writes down what it was given.
std::string echo(const std::string& op, std::vector<Argument> args, std::vector<ValueSpec> inputs = {},
                 std::vector<WireValue> values = {}, FragmentMaker::Kwargs kwargs = {}) {
  FragmentMaker maker("echo");
  for (ValueSpec& spec : inputs) maker.input(std::move(spec));
  maker.symbol("s0", 1, 100);
  maker.output(maker.node(op, std::move(args), std::move(kwargs), number_spec(ValueKind::kInt)));
  TestDevice device;
  const RunResult result = device.run(maker.build(), std::move(values), {6});
  REQUIRE_FALSE(result.error);
  return echoed;
}

}  // namespace

TEST_CASE("R35: Python numbers promote as in eager PyTorch") {
  const at::Tensor ints = at::arange(4, at::kLong);
  const at::Tensor bools = at::ones({3}, at::kBool);
  const at::Tensor floats = at::rand({3});
  const at::Tensor zero_dim = at::full({}, 0.1, at::kDouble);
  CHECK(identical(call("aten::mul.Tensor", {value(0), 0.5}, {ints}), at::mul(ints, 0.5)));
  CHECK(identical(call("aten::mul.Scalar", {value(0), 0.5}, {ints}), at::mul(ints, 0.5)));
  CHECK(identical(call("aten::add.Tensor", {value(0), std::int64_t{1}}, {bools}), at::add(bools, 1)));
  CHECK(identical(call("aten::add.Tensor", {value(0), true}, {bools}), at::add(bools, at::Scalar(true))));
  CHECK(identical(call("aten::add.Tensor", {value(0), value(1)}, {floats, zero_dim}), at::add(floats, zero_dim)));
  CHECK(identical(call("aten::lt.Scalar", {value(0), 1.5}, {ints}), at::lt(ints, 1.5)));
  CHECK(identical(call("aten::lt.Tensor", {value(0), 1.5}, {ints}), at::lt(ints, 1.5)));
  CHECK(call("aten::mul.Tensor", {value(0), 2.0}, {floats.to(at::kHalf)}).scalar_type() == at::kHalf);
  CHECK(identical(call("aten::pow.Tensor_Scalar", {value(0), std::int64_t{2}}, {floats}), at::pow(floats, 2)));
  CHECK(identical(call("aten::add.Tensor", {value(0), std::complex<double>(1, 2)}, {floats}),
                  at::add(floats, at::Scalar(c10::complex<double>(1, 2)))));
}

TEST_CASE("R41: infinities, NaN and negative zero arrive bit by bit") {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double number : {-infinity, infinity, -0.0, std::numeric_limits<double>::quiet_NaN(), 1e308}) {
    FragmentMaker maker("full");
    maker.output(maker.node("aten::full", {ints({2, 2}), ArgScalar{number}},
                            {{"dtype", ArgDType{DType::kFloat64}}, {"device", ArgDeviceSlot{0}}}));
    TestDevice device;
    CHECK(identical(device.result(maker.build(), {}), at::full({2, 2}, number, at::kDouble)));
  }
}

TEST_CASE("every kind of argument reaches its operator as it was given") {
  const WireValue tensor = to_wire(at::ones({2}));
  CHECK(echo("cbtest::echo",
             {value(0), std::int64_t{-3}, 1.5, true, std::complex<double>(1, -2), std::string("text"),
              ArgDType{DType::kBFloat16}, ArgLayout{"strided"}, ArgMemoryFormat{"channels_last"}, ArgDeviceSlot{0}},
             {any_tensor()},
             {tensor}) == "float32[2] on cpu i-3 f1.500000 b1 c1.000000,-2.000000 stext dBFloat16 l0 m2 vcpu");
  // An int for a float and for a complex, a symbol for an int and for a float.
  CHECK(echo("cbtest::echo",
             {value(0), ArgSymbol{Expr::symbol(0)}, std::int64_t{2}, false, std::int64_t{4}, std::string(),
              ArgDType{DType::kBool}, ArgLayout{"sparse_csr"}, ArgMemoryFormat{"preserve_format"}, ArgDeviceSlot{0}},
             {any_tensor()}, {tensor}) == "float32[2] on cpu i6 f2.000000 b0 c4.000000,0.000000 s dBool l2 m1 vcpu");
  // Numbers that nodes or edges made, for tensors, ints and floats.
  CHECK(echo("cbtest::echo",
             {value(0), value(1), value(0), value(1), 0.0, std::string(), ArgDType{DType::kInt8}, ArgLayout{"strided"},
              ArgMemoryFormat{"contiguous_format"}, ArgDeviceSlot{0}},
             {number_spec(ValueKind::kInt), number_spec(ValueKind::kBool)}, {std::int64_t{9}, true})
            .find("int64[] on cpu i1 f9.000000 b1") == 0);
}

TEST_CASE("every kind of list reaches its operator as it was given") {
  const WireValue tensor = to_wire(at::ones({2}));
  CHECK(echo("cbtest::echo_lists",
             {ints({1, -2}), ArgFloatList{{0.5, 1}}, ArgBoolList{{true, false}}, ArgStringList{{"a", "b"}},
              ArgOptionalValueList{{0, kNoValue}}, ArgValueList{{0, 0}}, ArgFloatList{{1, 2}}},
             {any_tensor()}, {tensor}) == "i[1,-2,]f[0.500000,1.000000,]b[1,0,]s[a,b,]o[x-]t2n[Double,Double,]");
  ArgIntList symbolic;
  symbolic.items = {Expr::symbol(0), Expr::constant(3)};
  CHECK(
      echo("cbtest::echo_lists",
           {symbolic, ints({1, 2}), ArgBoolList{}, ArgStringList{}, ArgOptionalValueList{}, ArgValueList{}, ints({7})},
           {any_tensor()}, {tensor}) == "i[6,3,]f[1.000000,2.000000,]b[]s[]o[]t0n[Long,]");
}

TEST_CASE("scalars keep their kind") {
  CHECK(echo("cbtest::echo_scalar", {std::int64_t{1}}) == "Long");
  CHECK(echo("cbtest::echo_scalar", {1.0}) == "Double");
  CHECK(echo("cbtest::echo_scalar", {true}) == "Bool");
  CHECK(echo("cbtest::echo_scalar", {ArgScalar{std::complex<double>(0, 1)}}) == "ComplexDouble");
  CHECK(echo("cbtest::echo_scalar", {ArgScalar{true}}) == "Bool");
}

TEST_CASE("R37: None for an optional argument and defaults of those not given") {
  CHECK(echo("cbtest::echo_optional", {}) == "----default");
  CHECK(echo("cbtest::echo_optional", {ArgNone{}, ArgDType{DType::kInt8}}, {}, {}, {{"named", std::string("x")}}) ==
        "-d--x");
  CHECK(echo("cbtest::echo_optional", {std::int64_t{1}}, {}, {}, {{"l", ints({})}, {"d", ArgNone{}}}) == "i-l-default");
  const at::Tensor x = at::rand({2, 4});
  CHECK(identical(call("aten::layer_norm", {value(0), ints({4}), ArgNone{}, ArgNone{}, 1e-5}, {x}),
                  at::layer_norm(x, {4})));
}

TEST_CASE("one int stands for all of a fixed-length list") {
  CHECK(echo("cbtest::echo_expanded", {std::int64_t{3}}) == "i[3,3,]");
  CHECK(echo("cbtest::echo_expanded", {ArgSymbol{Expr::symbol(0)}}) == "i[6,6,]");
}

TEST_CASE("an operator that edits its list does not change the next run's") {
  FragmentMaker maker("keep list");
  maker.output(maker.node("cbtest::keep_list", {ints({5, 6})}, {}, number_spec(ValueKind::kInt)));
  const Fragment fragment = maker.build();
  TestDevice device;
  for (int i = 0; i < 3; ++i) CHECK(device.run(fragment, {}).to_client.at(0) == WireValue(std::int64_t{3}));
}

TEST_CASE("operators with lists, holes, factories and formats equal direct calls of ATen") {
  const at::Tensor x = at::rand({2, 3, 4, 4});
  const at::Tensor index = at::tensor({1, 0}, at::kLong);
  CHECK(identical(call("aten::cat", {ArgValueList{{0, 1}}, std::int64_t{1}}, {x, x}), at::cat({x, x}, 1)));
  CHECK(identical(call("aten::index.Tensor", {value(0), ArgOptionalValueList{{kNoValue, 1}}}, {x, index}),
                  at::index(x, {std::nullopt, index})));
  CHECK(identical(call("aten::permute", {value(0), ints({0, 2, 3, 1})}, {x}), x.permute({0, 2, 3, 1})));
  CHECK(identical(call("aten::sum.dim_IntList", {value(0), ints({1, -1}), true}, {x}), x.sum({1, -1}, true)));
  CHECK(identical(call("aten::clone", {value(0)}, {x}, {{"memory_format", ArgMemoryFormat{"channels_last"}}}), x));
  CHECK(identical(call("aten::_to_copy", {value(0)}, {x}, {{"dtype", ArgDType{DType::kFloat16}}}), x.to(at::kHalf)));
  CHECK(identical(
      call("aten::slice.Tensor", {value(0), std::int64_t{2}, std::int64_t{1}, std::int64_t{9}, std::int64_t{2}}, {x}),
      at::slice(x, 2, 1, 9, 2)));
  const at::Tensor weight = at::rand({5, 3, 3, 3});
  CHECK(identical(call("aten::convolution",
                       {value(0), value(1), ArgNone{}, ints({1, 1}), ints({1, 1}), ints({1, 1}), false, ints({0, 0}),
                        std::int64_t{1}},
                       {x, weight}),
                  at::convolution(x, weight, std::nullopt, {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1)));
}

TEST_CASE("R29: strided, sliced and expanded inputs give what their contiguous copies give") {
  const at::Tensor base = at::rand({4, 6});
  for (const at::Tensor& x : {base.t(), base.slice(0, 0, 4, 2), base.slice(1, 1), base.slice(0, 0, 1).expand({3, 6}),
                              at::rand({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)}) {
    CHECK(identical(call("aten::softmax.int", {value(0), std::int64_t{-1}}, {x}), at::softmax(x.contiguous(), -1)));
    CHECK(identical(call("aten::add.Tensor", {value(0), value(0)}, {x}), at::add(x, x)));
  }
}

TEST_CASE("an unknown operator names the nearest ones of its namespace") {
  const Error error = load_error("aten::reluu", {value(0)});
  CHECK(error.code == ErrorCode::kUnknownOperator);
  CHECK(error.node == 100);
  CHECK(error.hint.find("aten::relu") != std::string::npos);
  CHECK(error.message.find("node_0") != std::string::npos);
  CHECK(error.detail.find("model.py:10") != std::string::npos);
  CHECK(load_error("nowhere::op", {value(0)}).hint.find("name the library") != std::string::npos);
  CHECK(
      load_error("callboard_sym::floor_div", {std::int64_t{1}, std::int64_t{1}}).hint.find("callboard_sym::floordiv") !=
      std::string::npos);
}

TEST_CASE("an operator without a kernel for this device is refused when it is loaded") {
  CHECK(load_error("cbtest::only_elsewhere", {value(0)}).code == ErrorCode::kUnsupported);
}

TEST_CASE("wrong arguments are refused at load by operator, argument, expected type and what was given") {
  const auto refused = [](const std::string& op, std::vector<Argument> args, FragmentMaker::Kwargs kwargs,
                          const std::string& text, ErrorCode code = ErrorCode::kBadArgument) {
    const Error error = load_error(op, std::move(args), std::move(kwargs));
    INFO(error.to_string());
    CHECK(error.code == code);
    CHECK(error.message.find(text) != std::string::npos);
    CHECK(error.message.find(op) != std::string::npos);
  };
  refused("aten::relu", {std::string("x")}, {}, "argument 'self' must be Tensor, got the string 'x'");
  refused("aten::sum.dim_IntList", {value(0), ints({0}), std::int64_t{1}}, {},
          "argument 'keepdim' must be bool, got the int 1");
  refused("aten::softmax.int", {value(0), 1.5}, {}, "argument 'dim' must be int, got the float");
  refused("aten::softmax.int", {value(0)}, {}, "argument 'dim' (int) is missing");
  refused("aten::relu", {value(0)}, {{"alpha", std::int64_t{1}}}, "no argument 'alpha'");
  refused("aten::relu", {value(0)}, {{"self", value(0)}}, "'self' is given twice");
  refused("aten::relu", {value(0), std::int64_t{1}}, {}, "2 positional arguments given, the operator takes 1");
  refused("aten::cat", {ArgValue{0}}, {}, "argument 'tensors'");
  refused("aten::cat", {ArgOptionalValueList{{0, kNoValue}}}, {}, "argument 'tensors'");
  refused("aten::add.Scalar", {value(0), value(0)}, {}, "argument 'other'");
  refused("aten::clone", {value(0)}, {{"memory_format", ArgMemoryFormat{"channels_first"}}},
          "no memory format 'channels_first'");
  refused("aten::clone", {value(0)}, {{"memory_format", std::int64_t{1}}}, "argument 'memory_format'");
  refused("aten::_to_copy", {value(0)}, {{"device", ArgLiteralDevice{"cuda:1"}}}, "cuda:1", ErrorCode::kLiteralDevice);
  refused("aten::_to_copy", {value(0)}, {{"device", ArgDeviceSlot{1}}}, "slot 1", ErrorCode::kBadGraph);
  refused("cbtest::with_generator", {value(0)}, {{"generator", std::int64_t{1}}}, "Generator", ErrorCode::kUnsupported);
  refused("aten::relu", {ArgNone{}}, {}, "argument 'self' must be Tensor, got None");
}

TEST_CASE("a generator argument may be None") {
  FragmentMaker maker("generator");
  const ValueId x = maker.input();
  maker.output(
      maker.node("cbtest::with_generator", {value(x)}, {{"generator", ArgNone{}}}, number_spec(ValueKind::kInt)));
  TestDevice device;
  CHECK(device.run(maker.build(), {to_wire(at::ones({1}))}).to_client.at(0) == WireValue(std::int64_t{0}));
}

TEST_CASE("all nodes that cannot run are told at once, each with node, name and source") {
  FragmentMaker maker("gaps");
  const ValueId x = maker.input();
  const ValueId a = maker.node("aten::reluu", {value(x)});
  const ValueId b = maker.node("aten::relu", {value(a)});
  const ValueId c = maker.node("nowhere::op", {value(b)});
  maker.output(maker.node("aten::softmax.int", {value(c)}));
  TestDevice device;
  const auto loaded = device.load(maker.build());
  REQUIRE_FALSE(loaded);
  const Error& error = loaded.error();
  CHECK(error.code == ErrorCode::kUnknownOperator);
  REQUIRE(error.causes.size() == 3);
  CHECK(error.causes[0].op == "aten::reluu");
  CHECK(error.causes[1].node == 102);
  CHECK(error.causes[1].message.find("node_2") != std::string::npos);
  CHECK(error.causes[2].code == ErrorCode::kBadArgument);
  CHECK(error.causes[2].detail.find("model.py:13") != std::string::npos);
  CHECK(error.actor == "cpu0#1");
}

TEST_CASE("another number of outputs than the operator has is refused when it is loaded") {
  FragmentMaker maker("outputs");
  const ValueId x = maker.input();
  maker.node_of("aten::relu", {value(x)}, {}, {{any_tensor()}, {any_tensor()}});
  TestDevice device;
  CHECK(device.load(maker.build()).error().code == ErrorCode::kOutputMismatch);
}

TEST_CASE("R37: unused, None and list outputs") {
  const at::Tensor x = at::rand({2, 4});
  TestDevice device;
  SECTION("native_layer_norm of which only output 0 is used") {
    FragmentMaker maker("native_layer_norm");
    maker.input();
    const auto made = maker.node_of("aten::native_layer_norm", {value(0), ints({4}), ArgNone{}, ArgNone{}, 1e-5}, {},
                                    {{any_tensor()}, {any_tensor()}, {any_tensor()}});
    maker.drop_output(1);
    maker.drop_output(2);
    maker.output(made[0][0]);
    CHECK(identical(device.result(maker.build(), {x}), std::get<0>(at::native_layer_norm(x, {4}, {}, {}, 1e-5))));
  }
  SECTION("a list that nobody uses") {
    FragmentMaker maker("unused list");
    maker.input();
    const auto made =
        maker.node_of("cbtest::pair", {value(0)}, {}, {{any_tensor()}, {any_tensor(), any_tensor()}}, {false, true});
    maker.drop_output(1);
    maker.output(made[0][0]);
    CHECK(identical(device.result(maker.build(), {x}), x + 1));
  }
  SECTION("one item of a list") {
    FragmentMaker maker("split");
    maker.input();
    const auto made =
        maker.node_of("aten::split.Tensor", {value(0), std::int64_t{1}}, {}, {{any_tensor(), any_tensor()}}, {true});
    maker.output(made[0][1]);
    CHECK(identical(device.result(maker.build(), {x}), x.slice(0, 1, 2)));
  }
  SECTION("a list of another length") {
    FragmentMaker maker("split wrong");
    maker.input();
    const auto made = maker.node_of("aten::split.Tensor", {value(0), std::int64_t{1}}, {}, {{any_tensor()}}, {true});
    maker.output(made[0][0]);
    CHECK(device.run(maker.build(), {to_wire(x)}).error->code == ErrorCode::kOutputMismatch);
  }
  SECTION("None and something for one optional output") {
    for (const bool give : {false, true}) {
      FragmentMaker maker(give ? "some" : "none");
      maker.input();
      maker.output(
          maker.node("cbtest::maybe", {value(0), give}, {}, give ? any_tensor() : number_spec(ValueKind::kNone)));
      const RunResult result = device.run(maker.build(), {to_wire(x)});
      REQUIRE_FALSE(result.error);
      CHECK(std::holds_alternative<std::monostate>(result.to_client.at(0)) == !give);
    }
  }
  SECTION("numbers, and lists of numbers") {
    FragmentMaker maker("numbers");
    maker.input();
    const auto numbers = maker.node_of(
        "cbtest::numbers", {value(0)}, {},
        {{number_spec(ValueKind::kInt)}, {number_spec(ValueKind::kFloat)}, {number_spec(ValueKind::kBool)}});
    const auto shape = maker.node_of("cbtest::shape_list", {value(0)}, {},
                                     {{number_spec(ValueKind::kInt), number_spec(ValueKind::kInt)}}, {true});
    for (const auto& group : numbers) maker.output(group[0]);
    maker.output(shape[0][1]);
    maker.output(maker.node("aten::view", {value(0), ArgValueList{{shape[0][1], shape[0][0]}}}));
    const RunResult result = device.run(maker.build(), {to_wire(x)});
    REQUIRE_FALSE(result.error);
    CHECK(result.to_client.at(0) == WireValue(std::int64_t{8}));
    CHECK(result.to_client.at(1) == WireValue(0.5));
    CHECK(result.to_client.at(2) == WireValue(true));
    CHECK(result.to_client.at(3) == WireValue(std::int64_t{4}));
    CHECK(identical(from_wire(result.to_client.at(4)), x.view({4, 2})));
  }
}

TEST_CASE("randomness, state and effects make a fragment impure, switched-off dropouts do not") {
  const auto info = [](const std::string& op, std::vector<Argument> args) {
    FragmentMaker maker("purity " + op);
    maker.input();
    maker.output(maker.node(op, std::move(args)));
    TestDevice device;
    return device.load(maker.build()).value();
  };
  CHECK(info("aten::relu", {value(0)}).pure);
  CHECK_FALSE(info("aten::dropout", {value(0), 0.5, true}).pure);
  CHECK(info("aten::dropout", {value(0), 0.5, true}).random);
  CHECK(info("aten::dropout", {value(0), 0.5, false}).pure);
  CHECK(info("aten::rand_like", {value(0)}).random);
  CHECK(info("aten::bernoulli", {value(0)}).random);

  FragmentMaker maker("effect");
  const ValueId x = maker.input();
  maker.node_without_outputs("cbtest::effect", {value(x)});
  maker.output(x);
  TestDevice device;
  CHECK_FALSE(device.load(maker.build()).value().pure);
}

TEST_CASE("sizes that depend on data flow from a node into arguments and are checked against declarations") {
  FragmentMaker maker("data dependent");
  maker.input();
  const ValueId picked = maker.node("aten::nonzero", {value(0)});
  const ValueId count =
      maker.node("callboard_sym::size", {value(picked), std::int64_t{0}}, {}, number_spec(ValueKind::kInt));
  const ValueSpec spec{"", ValueKind::kTensor, DType::kFloat32, std::vector<Expr>{Expr::value(count)}};
  ArgIntList shape;
  shape.items = {Expr::value(count)};
  maker.output(maker.node("aten::zeros", {shape}, {{"dtype", ArgDType{DType::kFloat32}}}, spec));
  const ValueSpec wrong{"", ValueKind::kTensor, DType::kFloat32, std::vector<Expr>{Expr::value(count)}};
  TestDevice device;
  const Fragment fragment = maker.build();
  CHECK(device.result(fragment, {at::ones({5})}).numel() == 5);
  CHECK(device.result(fragment, {at::zeros({5})}).numel() == 0);
  maker.output(maker.node("aten::zeros", {ints({3})}, {{"dtype", ArgDType{DType::kFloat32}}}, wrong));
  Fragment mismatched = maker.build();
  mismatched.index = 1;
  CHECK(device.run(mismatched, {to_wire(at::ones({5}))}).error->code == ErrorCode::kOutputMismatch);
  CHECK_FALSE(device.run(mismatched, {to_wire(at::ones({3}))}).error);
}
