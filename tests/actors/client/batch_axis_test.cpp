#include "actors/client/batch_axis.h"

#include "actors/client/fragment_builder.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::actors;

namespace {

using Sizes = std::vector<Expr>;

/// f(a, b) with these sizes, whose one output is declared with `out`.
ProgramGraph graph_of(const Sizes& a, const Sizes& b, std::optional<Sizes> out, ValueKind kind = ValueKind::kTensor) {
  FragmentBuilder builder("axis");
  builder.add_symbol("batch", 1, 64).value();
  builder.add_symbol("length", 2, 512).value();
  const ValueId x = builder.add_tensor_input("a", DType::kFloat32, a).value();
  builder.add_tensor_input("b", DType::kFloat32, b).value();
  const DType dtype = kind == ValueKind::kTensor ? DType::kFloat32 : DType::kUndefined;
  const ValueId y = builder.call("aten::neg", {ArgValue{x}}, {"y", kind, dtype, std::move(out)}).value();
  REQUIRE(builder.add_output("y", y));
  REQUIRE(builder.add_output({"text", std::string("t")}));
  return builder.graph();
}

const Expr kBatch = Expr::symbol(0);
const Expr kLength = Expr::symbol(1);
const Expr kFour = Expr::constant(4);
const Expr kTwice{{{ExprOp::kSymbol, 0}, {ExprOp::kConst, 2}, {ExprOp::kMul, 0}}};

std::string refusal(const ProgramGraph& graph, const BatchDim& dim = {}) {
  const auto axis = find_batch_axis(graph, dim);
  if (axis) return "";
  CHECK(axis.error().code == ErrorCode::kUnsupported);
  CHECK_FALSE(axis.error().hint.empty());
  return axis.error().message;
}

}  // namespace

TEST_CASE("the batch is found in inputs and outputs, wherever it is", "[batch_axis]") {
  const auto axis = find_batch_axis(graph_of({kBatch, kLength}, {kFour, kBatch}, {{kLength, kFour, kBatch}}), {});
  REQUIRE(axis);
  CHECK(axis->name == "batch");
  CHECK(axis->min == 1);
  CHECK(axis->max == 64);
  CHECK(axis->inputs == std::vector<std::optional<std::size_t>>{0, 1});
  CHECK(axis->outputs == std::vector<std::optional<std::size_t>>{2, std::nullopt});
  const auto second = find_batch_axis(graph_of({kLength, kBatch}, {kFour}, {{kBatch}}), {1, {}});
  REQUIRE(second);
  CHECK(second->inputs == std::vector<std::optional<std::size_t>>{1, std::nullopt});
}

TEST_CASE("several symbols at the dimension are the caller's choice", "[batch_axis]") {
  const ProgramGraph graph = graph_of({kBatch, kFour}, {kLength, kFour}, {{kBatch}});
  const std::string message = refusal(graph);
  CHECK(message.find("'b' is the symbol length") != std::string::npos);
  CHECK(message.find("'a' is batch") != std::string::npos);
  const auto axis = find_batch_axis(graph, {0, {{"a", 0}}});
  REQUIRE(axis);
  CHECK(axis->inputs == std::vector<std::optional<std::size_t>>{0, std::nullopt});
  CHECK(refusal(graph, {0, {{"a", 1}}}).find("'a' has no free size at dimension 1") != std::string::npos);
  CHECK(refusal(graph, {0, {{"c", 0}}}).find("no input 'c'") != std::string::npos);
}

TEST_CASE("programs without one batch dimension are refused, naming what is in the way", "[batch_axis]") {
  CHECK(refusal(graph_of({kFour}, {kFour}, {{kFour}})).find("no tensor input") != std::string::npos);
  CHECK(refusal(graph_of({kBatch, kBatch}, {kFour}, {{kBatch}})).find("input 'a'") != std::string::npos);
  CHECK(refusal(graph_of({kBatch}, {kTwice}, {{kBatch}})).find("input 'b'") != std::string::npos);
  CHECK(refusal(graph_of({kBatch}, {kFour}, {{kFour}})).find("output 'y' has sizes [4]") != std::string::npos);
  CHECK(refusal(graph_of({kBatch}, {kFour}, {{kTwice}})).find("output 'y'") != std::string::npos);
  CHECK(refusal(graph_of({kBatch}, {kFour}, {{kBatch, kBatch}})).find("output 'y'") != std::string::npos);
  CHECK(refusal(graph_of({kBatch}, {kFour}, {})).find("sizes of output 'y'") != std::string::npos);
  CHECK(refusal(graph_of({kBatch}, {kFour}, {}, ValueKind::kInt)).find("output 'y' is an int") != std::string::npos);
  ProgramGraph stateful = graph_of({kBatch}, {kFour}, {{kBatch}});
  stateful.states.push_back({"running_mean", 0, 0, 0});
  CHECK(refusal(stateful).find("'running_mean'") != std::string::npos);
}

TEST_CASE("a request's rows and known outputs come from its own sizes", "[batch_axis]") {
  ProgramGraph graph = graph_of({kBatch}, {kFour, kLength}, {{kBatch}});
  graph.outputs.push_back({"twice", ArgSymbol{kTwice}});
  const auto axis = find_batch_axis(graph, {});
  REQUIRE(axis);
  TensorRef a;
  a.meta = TensorMeta::contiguous(DType::kFloat32, {7});
  TensorRef b;
  b.meta = TensorMeta::contiguous(DType::kFloat32, {4, 5});
  ClientValue inputs[] = {a, b};
  const auto bound = bind_request(graph, *axis, inputs);
  REQUIRE(bound);
  CHECK(bound->rows == 7);
  CHECK(bound->known == std::vector<std::optional<std::int64_t>>{std::nullopt, std::nullopt, 14});
  a.meta.sizes = {65};
  inputs[0] = a;
  CHECK(bind_request(graph, *axis, inputs).error().code == ErrorCode::kBadInput);
}
