// The library as a device actor opens it, without Python.
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>

#include "kernels/own_operators.h"
#include "tests/kernels/custom_ops/operators.h"
#include "tests/kernels/support/fragment_maker.h"
#include "tests/kernels/support/test_device.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::kernels;
using namespace callboard::testing;

TEST_CASE("Callboard's operators are not there before they are asked for, and a missing library is told by its path") {
  // Catch2 runs the cases of a program in the order of their declaration, and this is the first.
  REQUIRE_FALSE(c10::Dispatcher::singleton().findSchema({"callboard::rms_norm", ""}));
  const Status missing = load_own_operators("/no/such/folder");
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == ErrorCode::kEnvironment);
  CHECK(missing.error().message.find("/no/such/folder/callboard_ops.so") != std::string::npos);
  REQUIRE(load_callboard_operators());
  CHECK(c10::Dispatcher::singleton().findSchema({"callboard::rms_norm", ""}));
  // Whoever comes second finds them there, wherever it would have looked.
  CHECK(load_own_operators("/no/such/folder"));
}

TEST_CASE("rms_norm in a fragment gives what it gives at once, and makes the fragment neither random nor impure") {
  REQUIRE(load_callboard_operators());
  TestDevice device;
  FragmentMaker maker("rms_norm");
  const ValueId x = maker.input();
  const ValueId weight = maker.input();
  maker.output(maker.node("callboard::rms_norm", {value(x), value(weight), 1e-6}));
  const Fragment fragment = maker.build();
  const auto loaded = device.load(fragment);
  REQUIRE(loaded);
  CHECK(loaded->pure);
  CHECK_FALSE(loaded->random);
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const at::Tensor rows = at::rand({7, 100}).to(type) - 0.5;
    const at::Tensor factors = at::rand({100}).to(type);
    const at::Tensor result = device.result(fragment, {rows, factors});
    CHECK(identical(result, rms_norm(rows, factors, 1e-6)));
    const at::Tensor expected = rms_norm_reference(rows, factors, 1e-6);
    CHECK(result.allclose(expected, type == at::kBFloat16 ? 2e-2 : type == at::kHalf ? 2e-3 : 1e-5, 1e-6));
  }
}

TEST_CASE("what an operator refuses is the run's error, in its words") {
  REQUIRE(load_callboard_operators());
  TestDevice device;
  FragmentMaker maker("refused");
  const ValueId x = maker.input();
  const ValueId weight = maker.input();
  maker.output(maker.node("callboard::rms_norm", {value(x), value(weight), 1e-6}));
  const RunResult result = device.run(maker.build(), {to_wire(at::ones({2, 4})), to_wire(at::ones({3}))});
  REQUIRE(result.error);
  CHECK(result.error->code == ErrorCode::kKernelFailed);
  CHECK(result.error->op == "callboard::rms_norm");
  CHECK(result.error->to_string().find("weight has 3 elements") != std::string::npos);
}
