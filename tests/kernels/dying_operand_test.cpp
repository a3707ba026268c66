// Results in a dying operand's memory: when, and that nobody can tell but by the time.
#include "kernels/dying_operand.h"

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <c10/core/InferenceMode.h>

#include "kernels/tensor_convert.h"
#include "tests/kernels/support/test_device.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::kernels;
using namespace callboard::testing;

namespace {

std::optional<c10::OperatorHandle> form_of(const std::string& name, const std::string& overload) {
  const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
  REQUIRE(op);
  return in_place_form(*op);
}

/// The stack has the only reference to what is moved or made in the call.
bool may_overwrite(at::Tensor first, at::Tensor second, at::ScalarType result = at::kFloat) {
  Stack stack;
  stack.emplace_back(std::move(first));
  stack.emplace_back(std::move(second));
  return may_overwrite_first(stack, stack.size(), result);
}

at::Tensor random_of(at::ScalarType dtype, c10::IntArrayRef sizes) {
  const at::Tensor values = at::randn(sizes) * 3;
  return dtype == at::kBool ? values > 0 : values.to(dtype);
}

/// Arguments for any operator that takes tensors and numbers; nullopt for others.
std::optional<Stack> arguments_for(const c10::FunctionSchema& schema, at::ScalarType dtype, c10::IntArrayRef sizes,
                                   bool others_without_dimensions) {
  Stack stack;
  for (const c10::Argument& formal : schema.arguments()) {
    const c10::TypeKind kind = formal.type()->kind();
    if (kind == c10::TypeKind::TensorType) {
      const bool spread = others_without_dimensions && !stack.empty();
      stack.emplace_back(random_of(dtype, spread ? c10::IntArrayRef{} : sizes));
    } else if (formal.default_value()) {
      stack.push_back(*formal.default_value());
    } else if (kind == c10::TypeKind::NumberType) {
      stack.emplace_back(c10::Scalar(2));
    } else if (kind == c10::TypeKind::FloatType) {
      stack.emplace_back(0.5);
    } else if (kind == c10::TypeKind::IntType) {
      stack.emplace_back(std::int64_t{1});
    } else {
      return std::nullopt;
    }
  }
  return stack;
}

std::optional<at::Tensor> call(const c10::OperatorHandle& op, Stack stack) {
  try {
    op.callBoxed(stack);
  } catch (const std::exception&) {
    return std::nullopt;  // not for this dtype
  }
  return stack.front().toTensor();
}

Stack with_own_first(const Stack& stack) {
  Stack own = stack;
  own.front() = stack.front().toTensor().clone();
  return own;
}

}  // namespace

TEST_CASE("pointwise operators have an in-place form, others have none") {
  for (const auto& [name, overload] : std::vector<std::pair<std::string, std::string>>{{"aten::add", "Tensor"},
                                                                                       {"aten::mul", "Tensor"},
                                                                                       {"aten::gelu", ""},
                                                                                       {"aten::relu", ""},
                                                                                       {"aten::silu", ""},
                                                                                       {"aten::rsqrt", ""}}) {
    const auto form = form_of(name, overload);
    INFO(name);
    REQUIRE(form);
    CHECK(form->operator_name().name == name + "_");
    CHECK(form->operator_name().overload_name == overload);
  }
  for (const auto& [name, overload] : std::vector<std::pair<std::string, std::string>>{{"aten::mm", ""},
                                                                                       {"aten::view", ""},
                                                                                       {"aten::add_", "Tensor"},
                                                                                       {"aten::bernoulli", ""},
                                                                                       {"aten::cat", ""},
                                                                                       {"aten::where", "self"},
                                                                                       {"aten::add", "out"},
                                                                                       {"aten::dropout", ""}}) {
    INFO(name);
    CHECK_FALSE(form_of(name, overload));
  }
}

TEST_CASE("the in-place form of every pointwise operator gives the same bits and strides") {
  const c10::InferenceMode inference;
  std::set<std::string> compared;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op) continue;
    const auto in_place = in_place_form(*op);
    if (!in_place) continue;
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat, at::kByte,
                                       at::kInt, at::kLong, at::kBool}) {
      for (const std::vector<std::int64_t>& sizes :
           std::vector<std::vector<std::int64_t>>{{1}, {3, 5}, {2, 1, 37}, {1, 64}, {130, 257}, {}}) {
        for (const bool spread : {false, true}) {
          const auto stack = arguments_for(op->schema(), dtype, sizes, spread);
          if (!stack) continue;
          const auto expected = call(*op, *stack);
          if (!expected || expected->scalar_type() != dtype) continue;
          const Stack own = with_own_first(*stack);
          if (!may_overwrite_first(own, own.size(), dtype)) continue;
          const auto result = call(*in_place, own);
          INFO(name << ", " << c10::toString(dtype) << " " << expected->sizes() << (spread ? ", spread" : ""));
          REQUIRE(result);
          CHECK(identical(*result, *expected));
          CHECK(result->strides() == expected->strides());
          compared.insert(name.name + "." + name.overload_name);
        }
      }
    }
  }
  CHECK(compared.size() > 60);
  CHECK(compared.contains("aten::add.Tensor"));
}

TEST_CASE("an operand is overwritten only if nobody else can see it") {
  CHECK(may_overwrite(at::rand({4}), at::rand({4})));
  const at::Tensor kept = at::rand({4});
  CHECK_FALSE(may_overwrite(kept, at::rand({4})));
  const at::Tensor whole = at::rand({4});
  CHECK_FALSE(may_overwrite(whole.view({4}), at::rand({4})));
  CHECK_FALSE(may_overwrite(at::rand({8}).slice(0, 0, 4), at::rand({4})));
  at::Tensor watched = at::rand({4});
  const c10::weak_intrusive_ptr<c10::StorageImpl> weak(watched.storage().getWeakStorageImpl());
  CHECK_FALSE(may_overwrite(std::move(watched), at::rand({4})));
  std::vector<float> foreign(4);
  CHECK_FALSE(may_overwrite(at::from_blob(foreign.data(), {4}), at::rand({4})));
}

TEST_CASE("an operand is overwritten only by a result of its own shape, strides and dtype") {
  CHECK(may_overwrite(at::rand({2, 3}), at::full({}, 2.0F)));
  CHECK_FALSE(may_overwrite(at::rand({4}), at::rand({4}), at::kBool));
  CHECK_FALSE(may_overwrite(at::rand({4}), at::ones({4}, at::kDouble)));
  CHECK_FALSE(may_overwrite(at::rand({1}), at::rand({4})));
  CHECK_FALSE(may_overwrite(at::rand({4}), at::rand({1})));
  CHECK_FALSE(may_overwrite(at::rand({2, 3}).t(), at::rand({3, 2})));
  CHECK_FALSE(may_overwrite(at::rand({3, 2}), at::rand({2, 3}).t()));
  CHECK_FALSE(may_overwrite(at::rand({2, 1, 3}), at::full({}, 2.0F)));  // LibTorch may give the 1 another stride
  CHECK_FALSE(may_overwrite(at::rand({4, 1}).t(), at::rand({1, 4})));   // contiguous, though with strides (1, 1)
  CHECK_FALSE(may_overwrite(at::rand({0}), at::rand({0})));
  CHECK(may_overwrite(at::ones({4}, at::kLong), at::ones({4}, at::kLong), at::kLong));
}

TEST_CASE("a number as the other operand goes by its kind") {
  const auto number = [](const c10::Scalar& value, at::ScalarType dtype) {
    at::Tensor tensor = at::full({}, value, dtype);
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    return tensor;
  };
  CHECK(may_overwrite(at::rand({4}), number(0.1, at::kDouble)));
  CHECK(may_overwrite(at::rand({4}), number(2, at::kLong)));
  CHECK(may_overwrite(at::ones({4}, at::kByte), number(2, at::kLong), at::kByte));
  CHECK_FALSE(may_overwrite(at::ones({4}, at::kLong), number(0.5, at::kDouble), at::kLong));
  CHECK_FALSE(may_overwrite(at::ones({4}, at::kBool), number(2, at::kLong), at::kBool));
  CHECK_FALSE(may_overwrite(at::rand({4}), at::full({}, 0.1, at::kDouble)));  // no number, a tensor
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    const ValueSpec spec = tensor_spec(dtype_of(dtype).value(), {37});
    FragmentMaker maker(std::string("numbers ") + c10::toString(dtype));
    const ValueId x = maker.input(spec);
    const ValueId shifted = maker.node("aten::add.Tensor", {value(x), std::int64_t{1}}, {}, spec);
    maker.output(maker.node("aten::mul.Tensor", {value(shifted), 0.1}, {}, spec));
    const at::Tensor given = random_of(dtype, {37});
    CHECK(identical(TestDevice().result(maker.build(), {given}), at::mul(at::add(given, 1), 0.1)));
  }
}

TEST_CASE("a number made a tensor is not overwritten: its result would promote as a number") {
  at::Tensor number = at::full({}, 3, at::kLong);
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  CHECK_FALSE(may_overwrite(std::move(number), at::full({}, 2, at::kLong), at::kLong));
  CHECK(may_overwrite(at::full({}, 3, at::kLong), at::full({}, 2, at::kLong), at::kLong));

  FragmentMaker maker("number first");
  maker.symbol("s0", 1, 64);
  const ValueSpec rows{"x", ValueKind::kTensor, DType::kInt64, std::vector<Expr>{Expr::symbol(0)}};
  const ValueSpec whole = tensor_spec(DType::kInt64, {});
  const ValueSpec half = tensor_spec(DType::kInt32, {});
  const ValueId x = maker.input(rows);
  const ValueId y = maker.input(half);
  const ValueId sum = maker.node("aten::sum", {value(x)}, {}, whole);
  const ValueId product = maker.node("aten::mul.Tensor", {ArgSymbol{Expr::symbol(0)}, value(sum)}, {}, whole);
  maker.output(maker.node("aten::add.Tensor", {value(product), value(y)}, {}, whole));
  const Fragment fragment = maker.build();
  TestDevice device;
  const at::Tensor small = at::full({}, 7, at::kInt);
  CHECK(identical(device.result(fragment, {at::ones({5}, at::kLong), small}, {5}), at::full({}, 32, at::kLong)));
}

TEST_CASE("a chain that overwrites changes neither inputs, constants, kept values nor the next run") {
  const ValueSpec floats = tensor_spec(DType::kFloat32, {33});
  FragmentMaker maker("overwriting chain");
  const at::Tensor weight = at::rand({33});
  const ValueId x = maker.input(floats);
  const ValueId w = add_constant(maker, weight);
  const ValueId sum = maker.node("aten::add.Tensor", {value(x), value(w)}, {}, floats);
  const ValueId kept = maker.node("aten::mul.Tensor", {value(sum), value(w)}, {}, floats);  // the last of sum
  const ValueId other = maker.node("aten::gelu", {value(kept)}, {}, floats);                // kept is a result
  const ValueId last = maker.node("aten::tanh", {value(other)}, {}, floats);
  maker.output(kept);
  maker.output(last);
  const Fragment fragment = maker.build();
  TestDevice device;
  const at::Tensor given = at::rand({33});
  const at::Tensor before = given.clone();
  for (int run = 0; run < 3; ++run) {
    const RunResult result = device.run(fragment, {to_wire(given)});
    REQUIRE_FALSE(result.error);
    const at::Tensor expected = at::mul(at::add(before, weight), weight);
    CHECK(identical(from_wire(result.to_client[0]), expected));
    CHECK(identical(from_wire(result.to_client[1]), at::tanh(at::gelu(expected))));
    CHECK(identical(given, before));
  }
}

TEST_CASE("a result that is still lent out is not overwritten by the next run") {
  const ValueSpec floats = tensor_spec(DType::kFloat32, {100'000});
  FragmentMaker maker("lent chain");
  const ValueId x = maker.input(floats);
  const ValueId sum = maker.node("aten::add.Tensor", {value(x), value(x)}, {}, floats);
  maker.output(maker.node("aten::relu", {value(sum)}, {}, floats));
  const Fragment fragment = maker.build();
  TestDevice device;
  const at::Tensor first_input = at::randn({100'000});
  const RunResult first = device.run(fragment, {to_wire(first_input)});
  REQUIRE_FALSE(first.error);
  CHECK(identical(device.result(fragment, {at::ones({100'000})}), at::full({100'000}, 2.0F)));
  CHECK(identical(from_wire(first.to_client[0]), at::relu(first_input + first_input)));
}
