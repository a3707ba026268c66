#include "messages/graph_check.h"

#include <algorithm>
#include <set>

#include "messages/codec.h"
#include "messages/limits.h"
#include "tests/golden/golden_messages.h"
#include "tests/support/random_graph.h"
#include "tests/support/test.h"

namespace callboard {
namespace {

Node make_node(std::string op, std::vector<Argument> args, std::vector<ValueId> outputs) {
  Node node;
  node.op = std::move(op);
  node.args = std::move(args);
  for (const ValueId id : outputs) node.outputs.push_back({false, {id}});
  return node;
}

ValueSpec tensor(std::string name, std::vector<Expr> sizes) {
  return {std::move(name), ValueKind::kTensor, DType::kFloat32, std::move(sizes)};
}

/// x[s0, 4] + weight -> relu -> y; sound, and each test breaks one thing.
ProgramGraph sound_program() {
  ProgramGraph program;
  program.name = "p";
  program.symbols = {{"s0", 1, 512}};
  program.values = {tensor("x", {Expr::symbol(0), Expr::constant(4)}),
                    tensor("w", {Expr::constant(4)}),
                    tensor("sum", {Expr::symbol(0), Expr::constant(4)}),
                    {"n", ValueKind::kInt, DType::kUndefined, {}},
                    tensor("y", {Expr::symbol(0), Expr::constant(4)})};
  program.inputs = {{"x", 0}};
  program.constants = {{"w", 1, ContentHash::of("w", 1), 16, TensorMeta::contiguous(DType::kFloat32, {4})}};
  program.nodes = {make_node("aten::add.Tensor", {ArgValue{0}, ArgValue{1}}, {2}),
                   make_node("callboard_sym::size", {ArgValue{2}, std::int64_t{0}}, {3}),
                   make_node("aten::view", {ArgValue{2}, ArgIntList{{Expr::value(3), Expr::constant(4)}}}, {4})};
  program.outputs = {{"y", ArgValue{4}}};
  return program;
}

Fragment sound_fragment() {
  const ProgramGraph program = sound_program();
  Fragment fragment;
  fragment.program = ContentHash::of("p", 1);
  fragment.index = 1;
  fragment.device = "cpu0";
  fragment.symbols = program.symbols;
  for (ValueId id = 0; id < program.values.size(); ++id) fragment.values[id] = program.values[id];
  fragment.inputs = {{0, FragmentInput::Source::kEdge, 0}};
  fragment.constants = program.constants;
  fragment.node_ids = {3, 4, 7};
  fragment.nodes = program.nodes;
  fragment.outputs = {{4, true, {{2, "cpu1"}}}};
  fragment.frees = compute_frees(fragment);
  return fragment;
}

/// The one fault of what `broken` is.
template <class Graph>
Error only_fault(const Graph& broken) {
  Status checked = [&] {
    if constexpr (std::is_same_v<Graph, ProgramGraph>)
      return check_program(broken);
    else
      return check_fragment(broken);
  }();
  if (checked) {
    FAIL_CHECK("it was accepted");
    return Error(ErrorCode::kOk, "");
  }
  INFO(checked.error().to_string());
  CHECK(checked.error().causes.empty());
  return checked.error();
}

void check_says(const Error& error, ErrorCode code, std::initializer_list<const char*> parts) {
  INFO(error.to_string());
  CHECK(error.code == code);
  for (const char* part : parts) CHECK(error.to_string().find(part) != std::string::npos);
}

TEST_CASE("a sound program and a sound fragment are accepted") {
  CHECK(check_program(sound_program()));
  CHECK(check_fragment(sound_fragment()));
  CHECK(check_program(ProgramGraph{}));
}

TEST_CASE("random programs of the generator are accepted") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    test::Random random(seed);
    const Status checked = check_program(test::random_program(random, 1 + random.below(60)));
    if (!checked) FAIL(checked.error().to_string());
  }
}

TEST_CASE("all faults are reported at once, each with its node") {
  ProgramGraph program = sound_program();
  program.nodes[0].op = "add";
  program.nodes[0].name = "add_1";
  program.nodes[0].source = "model.py:12 in forward";
  program.nodes[1].args.push_back(ArgLiteralDevice{"cuda:1"});
  program.inputs.push_back({"", 99});
  const Status checked = check_program(program);
  REQUIRE_FALSE(checked);
  CHECK(checked.error().code == ErrorCode::kBadGraph);
  CHECK(checked.error().message == "program 'p' is not valid: 4 faults");
  REQUIRE(checked.error().causes.size() == 4);
  const auto of_node = [&](std::int64_t node) {
    for (const Error& cause : checked.error().causes) {
      if (cause.node == node) return cause;
    }
    return Error();
  };
  check_says(of_node(0), ErrorCode::kBadGraph,
             {"node 0 'add_1' (add)", "namespace::name[.overload]", "model.py:12 in forward"});
  check_says(of_node(1), ErrorCode::kLiteralDevice, {"cuda:1", "hint: "});
}

TEST_CASE("of very many faults the first 64 are listed and all are counted") {
  ProgramGraph program = sound_program();
  program.nodes.assign(1000, make_node("bad", {ArgValue{0}}, {}));
  program.outputs.clear();
  const Status checked = check_program(program);
  REQUIRE_FALSE(checked);
  CHECK(checked.error().causes.size() == limits::kErrorCausesMax);
  CHECK(checked.error().message == "program 'p' is not valid: 1000 faults (the first 64 are listed)");
}

TEST_CASE("operator names are namespace::name with an overload or without") {
  for (const char* good :
       {"aten::add.Tensor", "aten::relu", "_c10d::all_reduce_", "aten::__and__.Scalar", "demo::a.0", "a::b"}) {
    ProgramGraph program = sound_program();
    program.nodes[0].op = good;
    INFO(good);
    CHECK(check_program(program));
  }
  for (const char* bad : {"", "add", "aten::", "::add", "aten::add.", "aten:add", "aten::add.Tensor.x", "aten::a b",
                          "aten::add::x", "aten::2", "1a::b", "aten::é"}) {
    ProgramGraph program = sound_program();
    program.nodes[0].op = bad;
    INFO(bad);
    check_says(only_fault(program), ErrorCode::kBadGraph, {"the operator's name"});
  }
}

TEST_CASE("operators that read or write files are refused, whatever their overload") {
  for (const char* op : {"aten::from_file", "aten::from_file.out"}) {
    ProgramGraph program = sound_program();
    program.nodes[0].op = op;
    check_says(only_fault(program), ErrorCode::kUnsupported, {"node 0", "files"});
  }
}

TEST_CASE("a constant of integers that requires gradients is refused") {
  ProgramGraph program = sound_program();
  program.constants.at(0).requires_grad = true;
  CHECK(check_program(program));
  program.constants[0].meta.dtype = DType::kInt8;
  program.values.at(program.constants[0].value).dtype = DType::kInt8;
  check_says(only_fault(program), ErrorCode::kBadGraph, {"constant 'w'", "int8", "cannot require gradients"});
}

TEST_CASE("a value that is used before its definition, and a cycle, are told apart") {
  ProgramGraph program = sound_program();
  std::swap(program.nodes[0], program.nodes[1]);
  check_says(only_fault(program), ErrorCode::kUseBeforeDefinition, {"node 0", "value 2 'sum'", "node 1"});
  program = sound_program();
  program.nodes[0].args[1] = ArgValue{4};
  check_says(only_fault(program), ErrorCode::kCycle, {"node 0", "value 4 'y'", "node 2"});
  program = sound_program();
  program.nodes[1].args[1] = ArgSymbol{Expr::value(3)};
  check_says(only_fault(program), ErrorCode::kCycle, {"node 1", "value 3"});
}

TEST_CASE("unknown, undefined and doubly defined values are named") {
  ProgramGraph program = sound_program();
  program.nodes[0].args[1] = ArgValue{77};
  check_says(only_fault(program), ErrorCode::kBadGraph, {"node 0", "unknown value 77"});
  program = sound_program();
  program.values.push_back(tensor("ghost", {}));
  program.nodes[0].kwargs = {{"other", ArgOptionalValueList{{kNoValue, 5}}}};
  check_says(only_fault(program), ErrorCode::kBadGraph, {"node 0", "value 5 'ghost'", "nothing defines"});
  program = sound_program();
  program.nodes[2].outputs[0].values[0] = 2;
  program.outputs.clear();
  check_says(only_fault(program), ErrorCode::kBadGraph, {"value 2 'sum' is defined twice", "node 0", "node 2"});
  program = sound_program();
  program.outputs.push_back({"z", ArgValue{99}});
  check_says(only_fault(program), ErrorCode::kBadGraph, {"output 1 'z'", "99"});
}

TEST_CASE("symbols need a name, a range and an input that binds them") {
  ProgramGraph program = sound_program();
  program.symbols.push_back({"s1", 0, 10});
  check_says(only_fault(program), ErrorCode::kBadGraph, {"symbol 's1'", "bound by no input"});
  program.values[0].sizes->push_back(Expr{{{ExprOp::kConst, 2}, {ExprOp::kSymbol, 1}, {ExprOp::kMul, 0}}});
  CHECK(check_program(program));
  program.values[0].sizes->back() = Expr{{{ExprOp::kSymbol, 1}, {ExprOp::kSymbol, 1}, {ExprOp::kMul, 0}}};
  check_says(only_fault(program), ErrorCode::kBadGraph, {"symbol 's1'"});
  program = sound_program();
  program.symbols[0].min = 600;
  check_says(only_fault(program), ErrorCode::kBadGraph, {"empty range 600…512"});
  program = sound_program();
  program.symbols[0].name = "";
  check_says(only_fault(program), ErrorCode::kBadGraph, {"symbol 0"});
}

TEST_CASE("expressions are checked wherever they stand") {
  const Expr bad = Expr::symbol(9);
  ProgramGraph program = sound_program();
  program.nodes[2].args[1] = ArgIntList{{bad}};
  check_says(only_fault(program), ErrorCode::kBadGraph, {"node 2", "names symbol 9"});
  program = sound_program();
  program.nodes[2].args[1] = ArgSymbol{{}};
  check_says(only_fault(program), ErrorCode::kBadGraph, {"node 2"});
  program = sound_program();
  program.values[4].sizes->at(0) = bad;
  check_says(only_fault(program), ErrorCode::kBadGraph, {"value 4 'y'"});
  program = sound_program();
  program.outputs.push_back({"n", ArgSymbol{bad}});
  check_says(only_fault(program), ErrorCode::kBadGraph, {"output 1 'n'"});
  program = sound_program();
  program.nodes[2].args[1] = ArgIntList{{Expr::value(2)}};
  check_says(only_fault(program), ErrorCode::kBadGraph, {"node 2", "value 2 'sum'", "no integer"});
  program = sound_program();
  program.values[0].sizes->at(1) = Expr::value(3);
  check_says(only_fault(program), ErrorCode::kBadGraph, {"input 'x'", "value of the run"});
}

TEST_CASE("inputs have names of their own") {
  ProgramGraph program = sound_program();
  program.values.push_back(tensor("x2", {}));
  program.inputs.push_back({"x", 5});
  check_says(only_fault(program), ErrorCode::kBadGraph, {"two inputs", "'x'"});
  program.inputs[1].name = "";
  check_says(only_fault(program), ErrorCode::kBadGraph, {"input 1 has no name"});
}

TEST_CASE("R47: a constant must lie inside its storage") {
  ProgramGraph program = sound_program();
  program.constants[0].storage_bytes = 15;
  check_says(only_fault(program), ErrorCode::kBadGraph, {"constant 'w'", "touches 16 bytes", "has 15"});
  program.constants[0].storage_bytes = 16;
  program.constants[0].meta.strides = {std::int64_t{1} << 62};
  check_says(only_fault(program), ErrorCode::kBadGraph, {"constant 'w'"});
  program = sound_program();
  program.constants[0].storage = ContentHash{};
  check_says(only_fault(program), ErrorCode::kBadGraph, {"content hash"});
}

TEST_CASE("a state starts from its constant and ends as a value") {
  ProgramGraph program = sound_program();
  program.states = {{"counter", 1, 2, 0}};
  CHECK(check_program(program));
  program.states[0].initial = 1;
  check_says(only_fault(program), ErrorCode::kBadGraph, {"state 'counter'", "no constant"});
  program.states[0] = {"counter", 0, 2, 0};
  check_says(only_fault(program), ErrorCode::kBadGraph, {"state 'counter'"});
  program.states[0] = {"counter", 1, 99, 0};
  check_says(only_fault(program), ErrorCode::kBadGraph, {"state 'counter'", "99"});
  program.states = {{"a", 1, 2, 0}, {"b", 1, 2, 0}};
  check_says(only_fault(program), ErrorCode::kBadGraph, {"state 'b'", "twice"});
}

TEST_CASE("arguments: literal devices, slots, names and counts") {
  ProgramGraph program = sound_program();
  program.nodes[0].kwargs = {{"device", ArgLiteralDevice{"cpu"}}};
  check_says(only_fault(program), ErrorCode::kLiteralDevice, {"node 0", "'cpu'"});
  program.nodes[0].kwargs = {{"device", ArgDeviceSlot{1}}};
  check_says(only_fault(program), ErrorCode::kBadGraph, {"slot 1"});
  program.nodes[0].kwargs = {{"a", ArgNone{}}, {"a", ArgNone{}}};
  check_says(only_fault(program), ErrorCode::kBadGraph, {"'a'"});
  program = sound_program();
  program.nodes[0].args = {ArgValueList{std::vector<ValueId>(limits::kArgumentsMax - 1, 0)}};
  CHECK(check_program(program));
  program.nodes[0].args = {ArgValueList{std::vector<ValueId>(limits::kArgumentsMax, 0)}};
  check_says(only_fault(program), ErrorCode::kTooLarge, {"node 0", "4097", "4096"});
  program = sound_program();
  program.nodes[0].outputs[0].values.clear();
  program.nodes = {program.nodes[0]};
  program.outputs.clear();
  check_says(only_fault(program), ErrorCode::kBadGraph, {"has 0 values"});
}

TEST_CASE("a list of outputs may have holes, and None may be passed on") {
  ProgramGraph program = sound_program();
  program.nodes[0].outputs.push_back({true, {kNoValue, kNoValue}});
  program.nodes[0].outputs.push_back({true, {}});
  program.nodes[0].outputs.push_back({false, {kNoValue}});
  program.nodes[0].args.push_back(ArgNone{});
  CHECK(check_program(program));
}

TEST_CASE("programs may have as many symbols, values and nodes as the limits say, not one more") {
  ProgramGraph program = sound_program();
  program.symbols.resize(limits::kSymbolsMax + 1, {"s", 0, 1});
  check_says(only_fault(program), ErrorCode::kTooLarge, {"257 symbols"});
  program = sound_program();
  program.nodes.resize(limits::kNodesMax + 1);
  check_says(only_fault(program), ErrorCode::kTooLarge, {"100001 nodes"});
  program = sound_program();
  program.values.resize(limits::kValuesMax + 1);
  check_says(only_fault(program), ErrorCode::kTooLarge, {"400001 values"});
  program = sound_program();
  program.nodes.resize(limits::kNodesMax, make_node("aten::relu", {ArgValue{0}}, {}));
  program.values.resize(limits::kValuesMax);
  CHECK(check_program(program));
}

TEST_CASE("a graph of another schema is refused before anything else") {
  ProgramGraph program = sound_program();
  program.schema_version = 2;
  program.nodes[0].op = "bad";
  check_says(only_fault(program), ErrorCode::kVersionMismatch, {"schema 2", "reads 1"});
}

TEST_CASE("frees name each value with its last reader, but never what leaves the fragment") {
  const Fragment fragment = sound_fragment();
  CHECK(fragment.frees == std::vector<std::vector<ValueId>>{{0, 1}, {}, {2, 3}});
  Fragment kept = fragment;
  kept.states = {{"s", 1, 2, 0}};
  CHECK(compute_frees(kept) == std::vector<std::vector<ValueId>>{{0, 1}, {}, {3}});
  Fragment unread = fragment;
  unread.nodes[1].outputs.push_back({true, {9, kNoValue}});
  CHECK(compute_frees(unread)[1] == std::vector<ValueId>{9});
}

TEST_CASE("a fragment's edges only go up, inputs come from somewhere") {
  Fragment fragment = sound_fragment();
  fragment.inputs[0].index = 1;
  check_says(only_fault(fragment), ErrorCode::kBadGraph, {"fragment input 0", "fragment 1", "higher numbers"});
  fragment = sound_fragment();
  fragment.outputs[0].edges[0].fragment = 1;
  check_says(only_fault(fragment), ErrorCode::kBadGraph, {"fragment output 0", "higher numbers"});
  fragment = sound_fragment();
  fragment.outputs[0].edges.push_back({2, "cpu1"});
  check_says(only_fault(fragment), ErrorCode::kBadGraph, {"fragment 2 twice"});
  fragment = sound_fragment();
  fragment.outputs[0] = {4, false, {}};
  check_says(only_fault(fragment), ErrorCode::kBadGraph, {"goes nowhere"});
  fragment = sound_fragment();
  fragment.device.clear();
  check_says(only_fault(fragment), ErrorCode::kBadGraph, {"no device"});
}

TEST_CASE("a fragment's faults name nodes by their number in the program") {
  Fragment fragment = sound_fragment();
  fragment.nodes[2].op = "bad";
  check_says(only_fault(fragment), ErrorCode::kBadGraph, {"node 7 (bad)"});
  CHECK(only_fault(fragment).node == 7);
  fragment = sound_fragment();
  fragment.node_ids = {3, 3, 7};
  check_says(only_fault(fragment), ErrorCode::kBadGraph, {"do not rise"});
  fragment.node_ids = {3, 4};
  check_says(only_fault(fragment), ErrorCode::kBadGraph, {"3 nodes and 2 node numbers"});
}

TEST_CASE("frees that would drop a value too early, twice, or never defined are refused") {
  const auto with = [](std::vector<std::vector<ValueId>> frees) {
    Fragment fragment = sound_fragment();
    fragment.frees = std::move(frees);
    return only_fault(fragment);
  };
  check_says(with({{2}, {}, {}}), ErrorCode::kBadGraph, {"node 3", "value 2 'sum'", "later node reads"});
  check_says(with({{3}, {}, {}}), ErrorCode::kBadGraph, {"later node defines"});
  check_says(with({{}, {}, {4}}), ErrorCode::kBadGraph, {"leaves the fragment"});
  check_says(with({{0, 0}, {}, {}}), ErrorCode::kBadGraph, {"freed already"});
  check_says(with({{9}, {}, {}}), ErrorCode::kBadGraph, {"value 9", "nothing defines"});
  check_says(with({{}}), ErrorCode::kBadGraph, {"1 lists of what to free"});
  Fragment lazy = sound_fragment();
  lazy.frees = {{}, {}, {}};
  CHECK(check_fragment(lazy));
}

TEST_CASE("whatever decodes can be checked, without harm") {
  test::Random random(5);
  for (int i = 0; i < 400; ++i) {
    ProgramGraph program;
    test::fill(random, program);
    const Status of_program = check_program(program);
    CHECK((of_program || !of_program.error().to_string().empty()));
    Fragment fragment;
    test::fill(random, fragment);
    const Status of_fragment = check_fragment(fragment);
    CHECK((of_fragment || !of_fragment.error().to_string().empty()));
    CHECK(compute_frees(fragment).size() == fragment.nodes.size());
  }
}

}  // namespace
}  // namespace callboard
