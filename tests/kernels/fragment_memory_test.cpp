// What a fragment keeps and must not change: constants, inputs, state; and what it cannot hold.
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include "kernels/tensor_convert.h"
#include "tests/kernels/support/test_device.h"
#include "tests/kernels/support/test_operators.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::kernels;
using namespace callboard::testing;

namespace {

const std::int64_t kOne = 1;

RunResult run_ok(TestDevice& device, const Fragment& fragment, std::vector<WireValue> inputs) {
  RunResult result = device.run(fragment, std::move(inputs));
  if (result.error) FAIL(result.error->to_string());
  return result;
}

}  // namespace

TEST_CASE("constants are bound once by content: tied weights and views share their storage") {
  const at::Tensor storage = at::arange(24, at::kFloat);
  const ContentHash hash = add_constant(storage);
  FragmentMaker maker("tied");
  const ValueId a = maker.constant(hash, 96, TensorMeta::contiguous(DType::kFloat32, {4, 6}));
  const ValueId b = maker.constant(hash, 96, TensorMeta{DType::kFloat32, {6, 4}, {1, 6}, 0});
  const ValueId c = maker.constant(hash, 96, TensorMeta{DType::kFloat32, {2}, {1}, 22});
  maker.output(maker.node("aten::mm", {value(a), value(b)}));
  maker.output(maker.node("aten::add.Tensor", {value(c), kOne}));
  const Fragment fragment = maker.build();
  TestDevice device;
  CHECK(device.load(fragment).value().constant_bytes == 96);
  const RunResult result = run_ok(device, fragment, {});
  const at::Tensor matrix = storage.view({4, 6});
  CHECK(identical(from_wire(result.to_client[0]), matrix.mm(matrix.t())));
  CHECK(identical(from_wire(result.to_client[1]), storage.slice(0, 22) + 1));
}

TEST_CASE("a constant that is missing, too short or reaches beyond its storage is refused by name") {
  TestDevice device;
  FragmentMaker missing("missing constant");
  missing.output(missing.constant(ContentHash::of("?", 1), 16, TensorMeta::contiguous(DType::kFloat32, {4})));
  const auto absent = device.load(missing.build());
  REQUIRE_FALSE(absent);
  CHECK(absent.error().code == ErrorCode::kConstantMissing);
  CHECK(absent.error().message.find("constant_0") != std::string::npos);
  const ContentHash hash = add_constant(at::ones({4}));
  FragmentMaker longer("longer constant");
  longer.output(longer.constant(hash, 32, TensorMeta::contiguous(DType::kFloat32, {8})));
  CHECK(device.load(longer.build()).error().code == ErrorCode::kConstantMissing);
  FragmentMaker beyond("beyond");
  beyond.output(beyond.constant(hash, 16, TensorMeta::contiguous(DType::kFloat32, {5})));
  CHECK_FALSE(device.load(beyond.build()));
}

TEST_CASE("a write to a constant goes to a copy: the next run and other programs see the old one") {
  const at::Tensor weight = at::arange(6, at::kFloat);
  const ContentHash hash = add_constant(weight);
  const std::string before = constant_bytes(hash);
  FragmentMaker maker("writes a constant");
  const ValueId w = maker.constant(hash, 24, TensorMeta::contiguous(DType::kFloat32, {6}));
  const ValueId view =
      maker.node("aten::slice.Tensor", {value(w), std::int64_t{0}, std::int64_t{2}, std::int64_t{6}, kOne});
  const ValueId written = maker.node("aten::add_.Tensor", {value(w), kOne});
  maker.output(written);
  maker.output(view);
  maker.output(w);
  const Fragment fragment = maker.build();
  TestDevice device;
  for (int i = 0; i < 2; ++i) {
    const RunResult result = run_ok(device, fragment, {});
    CHECK(identical(from_wire(result.to_client[0]), weight + 1));
    // As in eager PyTorch, who looks at the same memory sees the write.
    CHECK(identical(from_wire(result.to_client[1]), weight.slice(0, 2) + 1));
    CHECK(identical(from_wire(result.to_client[2]), weight + 1));
  }
  CHECK(constant_bytes(hash) == before);
}

TEST_CASE("a write to an input goes to a copy: its owner's memory stays as it was") {
  TestDevice device;
  FragmentMaker maker("writes an input");
  const ValueId x = maker.input();
  const ValueId row = maker.node("aten::select.int", {value(x), std::int64_t{0}, std::int64_t{0}});
  maker.node("aten::add_.Tensor", {value(row), kOne});
  maker.output(x);
  const Fragment fragment = maker.build();
  at::Tensor expected = at::rand({4, 50'000});
  const at::Tensor given = expected.clone();
  // One input comes from another process, one is a block of this device's own, used by its address.
  FragmentMaker first("makes a block");
  first.output(first.node("aten::clone", {value(first.input())}), true, 1);
  const Fragment maker_of_block = first.build();
  REQUIRE(device.load(maker_of_block));
  RunOrder order = TestDevice::order(maker_of_block, {to_wire(given)});
  order.edge_holders = {kSelf};
  const RunResult made = device.run(std::move(order));
  REQUIRE_FALSE(made.error);
  const RunResult result = run_ok(device, fragment, {to_wire(given)});
  expected.select(0, 0).add_(1);
  CHECK(identical(from_wire(result.to_client[0]), expected));
  const RunResult own = run_ok(device, fragment, {made.on_edges[0]});
  CHECK(identical(from_wire(own.to_client[0]), expected));
  CHECK(identical(from_wire(made.to_client[0]), given));
}

TEST_CASE("a write through a list and through an out argument copies first, too") {
  TestDevice device;
  const at::Tensor a = at::rand({3});
  const at::Tensor b = at::rand({3});
  FragmentMaker list("foreach");
  const ValueId x = list.input();
  const ValueId y = list.input();
  list.node_without_outputs("aten::_foreach_add_.Scalar", {ArgValueList{{x, y}}, kOne});
  list.output(x);
  list.output(y);
  const RunResult result = run_ok(device, list.build(), {to_wire(a), to_wire(b)});
  CHECK(identical(from_wire(result.to_client[0]), a + 1));
  CHECK(identical(from_wire(result.to_client[1]), b + 1));

  FragmentMaker out("out");
  const ValueId p = out.input();
  const ValueId q = out.input();
  out.output(out.node("aten::add.out", {value(p), kOne}, {{"out", value(q)}}));
  out.output(q);
  const RunResult made = run_ok(device, out.build(), {to_wire(a), to_wire(b)});
  CHECK(identical(from_wire(made.to_client[0]), a + 1));
  CHECK(identical(from_wire(made.to_client[1]), a + 1));

  FragmentMaker custom("custom write");
  const ValueId s = custom.input();
  const ValueId t = custom.input();
  custom.node_without_outputs("cbtest::add_to", {value(s), value(t)});
  custom.output(t);
  CHECK(device.load(custom.build()).value().pure);
  CHECK(identical(device.result(custom.build(), {a, b}), b + a));
}

TEST_CASE("R39: state is kept between runs, has versions and begins again after a restart") {
  FragmentMaker maker("counter");
  const ValueId n = add_constant(maker, at::zeros({1}));
  const ValueId x = maker.input();
  const ValueId after = maker.node("aten::add.Tensor", {value(n), value(x)});
  maker.state(n, after);
  maker.output(after);
  const Fragment fragment = maker.build();
  for (int restart = 0; restart < 2; ++restart) {
    TestDevice device;
    CHECK_FALSE(device.load(fragment).value().pure);
    for (int i = 1; i <= 3; ++i) {
      const RunResult result = run_ok(device, fragment, {to_wire(at::ones({1}))});
      CHECK(from_wire(result.to_client[0]).item<float>() == static_cast<float>(i));
      CHECK(result.state_version == static_cast<std::uint64_t>(i));
    }
    CHECK(device.runtime().describe().find("\"version\":3") != std::string::npos);
  }
}

TEST_CASE("R39: state that is written in place behaves alike and results handed out do not change") {
  FragmentMaker maker("in place counter");
  const ValueId n = add_constant(maker, at::zeros({100'000}));
  const ValueId after = maker.node("aten::add_.Tensor", {value(n), value(maker.input())});
  maker.state(n, after);
  maker.output(after);
  const Fragment fragment = maker.build();
  TestDevice device;
  std::vector<RunResult> results;
  for (int i = 0; i < 3; ++i) results.push_back(run_ok(device, fragment, {to_wire(at::ones({1}))}));
  for (int i = 0; i < 3; ++i) {
    CHECK(from_wire(results[static_cast<std::size_t>(i)].to_client[0])[99'999].item<float>() ==
          static_cast<float>(i + 1));
  }
}

TEST_CASE("R39: a run that fails leaves the state as it was") {
  FragmentMaker maker("failing counter");
  const ValueId n = add_constant(maker, at::zeros({2}));
  const ValueId x = maker.input();
  const ValueId after = maker.node("aten::add_.Tensor", {value(n), value(x)});
  maker.state(n, after);
  const ValueId hooked = maker.node("cbtest::hook", {value(after)});
  maker.output(hooked);
  const Fragment fragment = maker.build();
  TestDevice device;
  run_ok(device, fragment, {to_wire(at::ones({2}))});
  hook_body = [] { throw std::runtime_error("not now"); };
  const RunResult failed = device.run(fragment, {to_wire(at::ones({2}))});
  hook_body = nullptr;
  CHECK(failed.error->code == ErrorCode::kKernelFailed);
  const RunResult result = run_ok(device, fragment, {to_wire(at::ones({2}))});
  CHECK(result.state_version == 2);
  CHECK(from_wire(result.to_client[0])[0].item<float>() == 2.0f);
}

TEST_CASE("R39: state that becomes an input's memory is copied before the input is released") {
  FragmentMaker maker("state from input");
  const ValueId n = add_constant(maker, at::zeros({100'000}));
  const ValueId x = maker.input();
  maker.state(n, x);
  maker.output(maker.node("aten::add.Tensor", {value(n), kOne}));
  const Fragment fragment = maker.build();
  TestDevice device;
  const std::uint64_t before = test_memory().peer->stats().leases;
  const at::Tensor given = at::rand({100'000});
  from_wire(run_ok(device, fragment, {to_wire(given)}).to_client[0]);
  CHECK(test_memory().peer->stats().leases == before);
  const at::Tensor scribble = at::rand({100'000});
  to_wire(scribble);
  CHECK(identical(from_wire(run_ok(device, fragment, {to_wire(scribble)}).to_client[0]), given + 1));
}

TEST_CASE("what cannot fit is refused when it is loaded, naming the node where it peaks") {
  RuntimeOptions options;
  options.memory_limit = 1'000'000;
  TestDevice device(options);
  FragmentMaker maker("too large");
  const ValueId x = maker.input(tensor_spec(DType::kFloat32, {10}));
  const ValueId y = maker.node("aten::relu", {value(x)}, {}, tensor_spec(DType::kFloat32, {10}));
  maker.output(
      maker.node("aten::expand", {value(y), ints({100'000, 10})}, {}, tensor_spec(DType::kFloat32, {100'000, 10})));
  maker.output(maker.node("aten::zeros", {ints({400'000})}, {{"dtype", ArgDType{DType::kFloat32}}},
                          tensor_spec(DType::kFloat32, {400'000})));
  const auto loaded = device.load(maker.build());
  REQUIRE_FALSE(loaded);
  CHECK(loaded.error().code == ErrorCode::kDoesNotFit);
  CHECK(loaded.error().node == 102);
  CHECK(loaded.error().op == "aten::zeros");
  CHECK(loaded.error().message.find("1600040") != std::string::npos);
}

TEST_CASE("with symbols, only the runs that do not fit are refused") {
  RuntimeOptions options;
  options.memory_limit = 1'000'000;
  TestDevice device(options);
  FragmentMaker maker("large batches do not fit");
  maker.symbol("s0", 1, 1'000'000);
  const ValueSpec batch{"", ValueKind::kTensor, DType::kFloat32, std::vector<Expr>{Expr::symbol(0)}};
  maker.output(maker.node("aten::relu", {value(maker.input(batch))}, {}, batch));
  const Fragment fragment = maker.build();
  CHECK(device.load(fragment).value().peak_bytes == 4'000'000);
  CHECK_FALSE(device.run(fragment, {to_wire(at::ones({1'000}))}, {1'000}).error);
  CHECK(device.run(fragment, {to_wire(at::ones({300'000}))}, {300'000}).error->code == ErrorCode::kDoesNotFit);
}

TEST_CASE("a list of frees that is wrong does not make a kernel read what is gone") {
  FragmentMaker maker("wrong frees");
  const ValueId x = maker.input();
  const ValueId a = maker.node("aten::relu", {value(x)});
  const ValueId b = maker.node("aten::add.Tensor", {value(a), value(x)});
  maker.output(b);
  Fragment fragment = maker.build();
  fragment.frees = {{}, {a, x}};
  TestDevice device;
  CHECK(identical(device.result(fragment, {at::ones({2})}), at::ones({2}) + 1));
}
