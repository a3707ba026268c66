#include "actors/coordinator/planner.h"

#include <numeric>
#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "messages/codec.h"
#include "messages/graph_check.h"
#include "tests/support/graph_fixture.h"
#include "tests/support/random_graph.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

using test::GraphFixture;

const std::vector<PlannerDevice> kTwo = {{"cpu0", 0}, {"cpu1", 0}};

std::vector<std::string> devices_of_nodes(const Plan& plan, std::size_t nodes) {
  std::vector<std::string> result(nodes);
  for (const Fragment& fragment : plan.fragments) {
    for (std::uint32_t node : fragment.node_ids) result[node] = fragment.device;
  }
  return result;
}

std::string all_text(const Error& error) { return error.to_string(); }

bool mentions(const Error& error, const std::string& text) { return all_text(error).find(text) != std::string::npos; }

/// What must hold of every plan.
void check_plan(const ProgramGraph& program, const Plan& plan) {
  std::set<std::uint32_t> nodes;
  std::map<std::pair<std::uint32_t, ValueId>, std::set<std::uint32_t>> edges_out;
  std::map<std::pair<std::uint32_t, ValueId>, std::set<std::uint32_t>> edges_in;
  for (std::uint32_t f = 0; f < plan.fragments.size(); ++f) {
    const Fragment& fragment = plan.fragments[f];
    const Status status = check_fragment(fragment);
    INFO((status ? std::string() : status.error().to_string()));
    REQUIRE(status);
    CHECK(fragment.index == f);
    CHECK(fragment.program == plan.program);
    CHECK(fragment.frees == compute_frees(fragment));
    for (std::size_t i = 0; i < fragment.nodes.size(); ++i) {
      CHECK(nodes.insert(fragment.node_ids[i]).second);
      CHECK(fragment.nodes[i] == program.nodes[fragment.node_ids[i]]);
    }
    for (const FragmentOutput& output : fragment.outputs) {
      for (const auto& edge : output.edges) {
        edges_out[{f, output.value}].insert(edge.fragment);
        CHECK(edge.device == plan.fragments[edge.fragment].device);
      }
    }
    for (const FragmentInput& input : fragment.inputs) {
      if (input.source == FragmentInput::Source::kEdge) {
        edges_in[{input.index, input.value}].insert(f);
      } else {
        CHECK(program.inputs.at(input.index).value == input.value);
        const auto& users = plan.input_users.at(input.index);
        CHECK(std::count(users.begin(), users.end(), f) == 1);
      }
    }
  }
  CHECK(nodes.size() == program.nodes.size());
  CHECK(edges_out == edges_in);
  std::size_t outputs = 0;
  for (const ProgramOutput& output : program.outputs) {
    const auto* value = std::get_if<ArgValue>(&output.source);
    if (value == nullptr) continue;
    const auto [fragment, number] = plan.client_outputs.at(outputs++);
    std::vector<ValueId> to_client;
    for (const FragmentOutput& out : plan.fragments.at(fragment).outputs) {
      if (out.to_client) to_client.push_back(out.value);
    }
    CHECK(to_client.at(number) == value->value);
  }
  CHECK(plan.client_outputs.size() == outputs);
}

Plan must_plan(const ProgramGraph& program, const Placement& placement, const std::vector<PlannerDevice>& devices) {
  auto plan = plan_program(program, placement, devices);
  if (!plan) FAIL(plan.error().to_string());
  check_plan(program, *plan);
  return std::move(*plan);
}

Error must_refuse(const ProgramGraph& program, const Placement& placement, const std::vector<PlannerDevice>& devices) {
  auto plan = plan_program(program, placement, devices);
  REQUIRE_FALSE(plan);
  return plan.error();
}

}  // namespace

TEST_CASE("a prefix places its module and what is below it, not its namesakes") {
  GraphFixture g;
  ValueId x = g.input("x");
  x = g.node("aten::relu", {x}, "layer.1");
  x = g.node("aten::relu", {x}, "layer.1.attention");
  x = g.node("aten::relu", {x}, "layer.10");
  x = g.node("aten::relu", {x}, "layer.10.attention");
  g.output(x);
  const auto placement = test::split_placement({{"cpu0", {"layer.10"}}, {"cpu1", {"layer.1"}}});
  const Plan plan = must_plan(g.program(), placement, kTwo);
  CHECK(devices_of_nodes(plan, 4) == std::vector<std::string>{"cpu1", "cpu1", "cpu0", "cpu0"});
}

TEST_CASE("a longer prefix beats a shorter one whatever the order of the rules") {
  const ProgramGraph program = test::chain_program(4);
  for (bool longer_first : {false, true}) {
    auto placement = test::split_placement({{"cpu0", {"layer"}}, {"cpu1", {"layer.2"}}});
    if (longer_first) std::swap(placement.rules[0], placement.rules[1]);
    const Plan plan = must_plan(program, placement, kTwo);
    CHECK(devices_of_nodes(plan, 4) == std::vector<std::string>{"cpu0", "cpu0", "cpu1", "cpu0"});
    CHECK(plan.fragments.size() == 3);
  }
}

TEST_CASE("node ranges beat prefixes, and unmatched nodes follow the node before them") {
  GraphFixture g;
  ValueId x = g.input("x");
  for (int i = 0; i < 6; ++i) x = g.node("aten::relu", {x}, i < 3 ? "" : "tail");
  g.output(x);
  Placement placement = test::split_placement({{"cpu0", {"tail"}}});
  placement.rules.push_back({"cpu1", {}, {{1, 1}, {4, 5}}});
  const Plan plan = must_plan(g.program(), placement, kTwo);
  CHECK(devices_of_nodes(plan, 6) == std::vector<std::string>{"cpu1", "cpu1", "cpu1", "cpu0", "cpu1", "cpu1"});
}

TEST_CASE("nodes that the exporter made of one stay together, by ranges and automatically") {
  GraphFixture g;
  ValueId x = g.input("x");
  for (int i = 0; i < 8; ++i) x = g.node("aten::relu", {x});
  g.output(x);
  ProgramGraph program = g.program();
  for (std::size_t i = 0; i < 8; ++i) program.nodes[i].name = "node" + std::to_string(i);
  for (const std::size_t i : {3, 4, 5}) program.nodes[i].name = "a write and its copy";
  Placement ranges = test::split_placement({{"cpu0", {""}}});
  ranges.rules.push_back({"cpu1", {}, {{4, 7}}});
  const Plan plan = must_plan(program, ranges, kTwo);
  CHECK(devices_of_nodes(plan, 8) ==
        std::vector<std::string>{"cpu0", "cpu0", "cpu0", "cpu0", "cpu0", "cpu0", "cpu1", "cpu1"});
  Placement automatic;
  automatic.automatic = true;
  const auto devices = devices_of_nodes(must_plan(program, automatic, kTwo), 8);
  CHECK(devices[3] == devices[5]);
  CHECK(devices.front() != devices.back());
}

TEST_CASE("every fault of a placement is named at once") {
  const ProgramGraph program = test::chain_program(4);
  Placement placement = test::split_placement({{"cpu7", {"layer.0"}}, {"cpu1", {"laier.1"}}});
  placement.rules.push_back({"cpu0", {}, {{2, 9}}});
  const Error error = must_refuse(program, placement, kTwo);
  CHECK(error.code == ErrorCode::kBadPlacement);
  CHECK(error.causes.size() == 3);
  CHECK(mentions(error, "'cpu7'"));
  CHECK(mentions(error, "did you mean 'layer.1'"));
  CHECK(mentions(error, "2…9"));
}

TEST_CASE("a node that two devices claim with prefixes of one length is refused") {
  const auto placement = test::split_placement({{"cpu0", {"layer.1"}}, {"cpu1", {"layer.1"}}});
  const Error error = must_refuse(test::chain_program(3), placement, kTwo);
  CHECK(error.code == ErrorCode::kBadPlacement);
  CHECK(mentions(error, "'cpu0' and on 'cpu1'"));
}

TEST_CASE("automatic placement names unknown and repeated devices") {
  Placement placement;
  placement.devices = {"cpu0", "cpu9", "cpu0"};
  const Error error = must_refuse(test::chain_program(3), placement, kTwo);
  CHECK(error.causes.size() == 2);
  CHECK(must_refuse(test::chain_program(1), {}, {}).code == ErrorCode::kBadPlacement);
}

TEST_CASE("one value has one output with an edge to each fragment that reads it") {
  GraphFixture g;
  const ValueId x = g.input("x");
  const ValueId a = g.node("aten::relu", {x}, "a");
  const ValueId b = g.node("aten::relu", {a}, "b");
  const ValueId c = g.node("aten::add.Tensor", {a, b}, "c");
  const ValueId d = g.node("aten::add.Tensor", {a, c}, "b");
  g.output(d);
  g.output(a);
  const auto placement = test::split_placement({{"cpu0", {"a", "c"}}, {"cpu1", {"b"}}});
  const Plan plan = must_plan(g.program(), placement, kTwo);
  REQUIRE(plan.fragments.size() == 4);
  REQUIRE(plan.fragments[0].outputs.size() == 1);
  CHECK(plan.fragments[0].outputs[0].to_client);
  CHECK(plan.fragments[0].outputs[0].edges.size() == 3);
  CHECK(plan.summary[0].edge_bytes == 3 * 16);
  REQUIRE(plan.edges.size() == 4);
  REQUIRE(plan.edges[0].size() == 3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    CHECK(plan.edges[0][i].to == i + 1);
    CHECK(plan.edges[0][i].bytes == 16);
    CHECK(plan.edges[0][i].exact);
  }
  REQUIRE(plan.edges[1].size() == 1);
  CHECK(plan.edges[1][0].to == 2);
  CHECK(plan.edges[3].empty());
}

TEST_CASE("several values on one edge are summed, and a size that is not known is said to be a lower bound") {
  GraphFixture g;
  const ValueId x = g.input("x");
  g.program().symbols = {{"s0", 2, 1'000'000}};
  g.program().values[x].sizes = std::vector<Expr>{Expr::symbol(0)};
  const ValueId a = g.node("aten::relu", {x}, "a");
  g.program().values[a].sizes = std::vector<Expr>{Expr::symbol(0)};
  const ValueId b = g.node("aten::sum", {x}, "a", 1, {3});
  g.output(g.node("aten::add.Tensor", {a, b}, "b"));
  const Plan plan = must_plan(g.program(), test::split_placement({{"cpu0", {"a"}}, {"cpu1", {"b"}}}), kTwo);
  REQUIRE(plan.edges.at(0).size() == 1);
  CHECK(plan.edges[0][0].bytes == 2 * 4 + 3 * 4);
  CHECK_FALSE(plan.edges[0][0].exact);
}

TEST_CASE("measured costs are balanced to within a tenth of the best split, where wrong estimates are not") {
  int better = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    test::Random random(seed);
    std::vector<double> measured;  // of a few slow operators among many quick ones, which estimates do not tell apart
    for (std::size_t i = 0; i < 24; ++i) {
      const auto quick = static_cast<double>(1'000 + random.below(20'000));
      measured.push_back(random.below(6) == 0 ? 40 * quick : quick);
    }
    const auto plan_with = [&](const std::function<double(std::size_t)>& cost) {
      GraphFixture g;
      ValueId x = g.input("x");
      for (std::size_t i = 0; i < measured.size(); ++i) x = g.node("aten::relu", {x}, "", cost(i));
      g.output(x);
      return must_plan(g.program(), {}, kTwo);
    };
    const auto slowest = [&](std::size_t cut) {
      const auto at = measured.begin() + static_cast<std::ptrdiff_t>(cut);
      return std::max(std::accumulate(measured.begin(), at, 0.0), std::accumulate(at, measured.end(), 0.0));
    };
    double best = slowest(0);
    for (std::size_t cut = 1; cut <= measured.size(); ++cut) best = std::min(best, slowest(cut));
    const Plan by_time = plan_with([&](std::size_t i) { return measured[i]; });
    const double found = slowest(by_time.fragments[0].nodes.size());
    CHECK(found <= 1.1 * best);
    CHECK(std::max(by_time.summary.at(0).cost, by_time.summary.at(1).cost) == Approx(found));
    const Plan by_estimate = plan_with([](std::size_t) { return 1.0; });
    if (slowest(by_estimate.fragments[0].nodes.size()) > 1.1 * found) ++better;
  }
  CHECK(better > 30);
}

TEST_CASE("automatic placement that fits nowhere names the node where each device peaks") {
  GraphFixture g;
  ValueId x = g.input("x");
  x = g.node("aten::relu", {x}, "", 1, {10});
  x = g.node("aten::exp", {x}, "", 1, {5'000});
  x = g.node("aten::relu", {x}, "", 1, {10});
  x = g.node("aten::tanh", {x}, "", 1, {6'000});
  g.output(x);
  const Error error = must_refuse(g.program(), {}, {{"cpu0", 15'000}, {"cpu1", 15'000}});
  CHECK(error.code == ErrorCode::kDoesNotFit);
  CHECK((mentions(error, "aten::exp") || mentions(error, "aten::tanh")));
  CHECK(mentions(error, "most at node"));
}

TEST_CASE("inputs and constants may be outputs, also of a program without nodes") {
  GraphFixture g;
  const ValueId x = g.input("x");
  const ValueId w = g.constant("w");
  g.output(x);
  g.output(w);
  g.output(x);
  g.program().outputs.push_back({"none", ArgNone{}});
  const Plan plan = must_plan(g.program(), {}, kTwo);
  REQUIRE(plan.fragments.size() == 1);
  CHECK(plan.fragments[0].constants.size() == 1);
  CHECK(plan.input_users[0] == std::vector<std::uint32_t>{0});
  CHECK(plan.client_outputs == std::vector<std::pair<std::uint32_t, std::uint32_t>>{{0, 0}, {0, 1}, {0, 0}});
}

TEST_CASE("a constant goes to each fragment that uses it, and tied weights count once") {
  GraphFixture g;
  ValueId x = g.input("x");
  const ValueId w = g.constant("w", 100, "same");
  const ValueId tied = g.constant("tied", 100, "same");
  x = g.node("aten::add.Tensor", {x, w}, "a");
  x = g.node("aten::add.Tensor", {x, tied}, "a");
  x = g.node("aten::add.Tensor", {x, w}, "b");
  g.output(x);
  const Plan plan = must_plan(g.program(), test::split_placement({{"cpu0", {"a"}}, {"cpu1", {"b"}}}), kTwo);
  CHECK(plan.fragments[0].constants.size() == 2);
  CHECK(plan.fragments[1].constants.size() == 1);
  CHECK(plan.summary[0].constant_bytes == 400);
  CHECK(plan.summary[1].constant_bytes == 400);
}

TEST_CASE("a state lives in one fragment; a placement that splits it is refused by its name") {
  GraphFixture g;
  const ValueId x = g.input("x");
  const ValueId before = g.constant("counter");
  const ValueId a = g.node("aten::relu", {x}, "a");
  const ValueId sum = g.node("aten::add.Tensor", {before, a}, "b");
  const ValueId y = g.node("aten::mul.Tensor", {sum, a}, "c");
  g.output(y);
  g.state("counter", before, sum);
  const Plan plan = must_plan(g.program(), test::split_placement({{"cpu0", {"a", "c"}}, {"cpu1", {"b"}}}), kTwo);
  REQUIRE(plan.fragments.size() == 3);
  REQUIRE(plan.fragments[1].states.size() == 1);
  CHECK(plan.fragments[1].states[0].initial == 0);

  GraphFixture split;
  const ValueId in = split.input("x");
  const ValueId old = split.constant("cache");
  const ValueId read = split.node("aten::add.Tensor", {old, in}, "a");
  const ValueId other = split.node("aten::relu", {read}, "b");
  const ValueId now = split.node("aten::add.Tensor", {other, in}, "a");
  split.output(now);
  split.state("cache", old, now);
  const auto placement = test::split_placement({{"cpu0", {"a"}}, {"cpu1", {"b"}}});
  CHECK(mentions(must_refuse(split.program(), placement, kTwo), "state 'cache'"));
  // Balanced by itself, nothing is cut between the two.
  CHECK(must_plan(split.program(), {}, kTwo).fragments.size() == 1);
}

TEST_CASE("what cannot fit is refused before it runs, naming node, bytes and limit") {
  GraphFixture g;
  ValueId x = g.input("x");
  const ValueId w = g.constant("w", 1000);
  x = g.node("aten::add.Tensor", {x, w}, "", 1, {1000});
  const ValueId big = g.node("aten::add.Tensor", {x, w}, "", 1, {2000});
  const ValueId view = g.node("aten::expand", {big}, "", 1, {1'000'000'000});
  g.output(g.node("aten::sum", {view}, "", 1, {1}));
  CHECK(plan_program(g.program(), {}, std::vector<PlannerDevice>{{"cpu0", 17'000}}));
  const Error error = must_refuse(g.program(), {}, {{"cpu0", 15'000}});
  CHECK(error.code == ErrorCode::kDoesNotFit);
  CHECK(error.node == 1);
  CHECK(error.op == "aten::add.Tensor");
  CHECK(mentions(error, "16000 bytes"));
  CHECK(mentions(error, "15000 bytes"));
}

TEST_CASE("a program is refused for its size only if its smallest sizes do not fit") {
  GraphFixture g;
  const ValueId x = g.input("x");
  g.program().symbols = {{"s0", 2, 1'000'000}};
  g.program().values[x].sizes = std::vector<Expr>{Expr::symbol(0)};
  const ValueId y = g.node("aten::relu", {x});
  g.program().values[y].sizes = std::vector<Expr>{Expr::symbol(0)};
  g.output(y);
  CHECK(plan_program(g.program(), {}, std::vector<PlannerDevice>{{"cpu0", 100}}));
  CHECK(must_plan(g.program(), {}, {{"cpu0", 0}}).summary[0].peak_bytes == 0);
  g.program().symbols[0].min = 1'000;
  CHECK(must_refuse(g.program(), {}, {{"cpu0", 100}}).code == ErrorCode::kDoesNotFit);
}

TEST_CASE("automatic placement moves work to where the weights fit") {
  GraphFixture g;
  ValueId x = g.input("x");
  for (int i = 0; i < 4; ++i) {
    const ValueId w = g.constant("w" + std::to_string(i), 1000);
    x = g.node("aten::add.Tensor", {x, w}, "layer." + std::to_string(i), 1, {4});
  }
  g.output(x);
  const Plan even = must_plan(g.program(), {}, kTwo);
  CHECK(even.summary[0].constant_bytes == even.summary[1].constant_bytes);
  const Plan plan = must_plan(g.program(), {}, {{"cpu0", 4'500}, {"cpu1", 20'000}});
  CHECK(plan.summary[0].constant_bytes == 4'000);
  CHECK(must_refuse(g.program(), {}, {{"cpu0", 4'500}, {"cpu1", 4'500}}).code == ErrorCode::kDoesNotFit);
}

TEST_CASE("the summary names node ranges, modules at two levels and cost") {
  GraphFixture g;
  ValueId x = g.input("x");
  x = g.node("aten::relu", {x}, "encoder.layer.0.attention", 3);
  x = g.node("aten::relu", {x}, "encoder.layer.1.output", 4);
  x = g.node("aten::relu", {x}, "pooler", 5);
  g.output(x);
  Placement placement;
  placement.devices = {"cpu1"};
  const Plan plan = must_plan(g.program(), placement, kTwo);
  REQUIRE(plan.summary.size() == 1);
  CHECK(plan.summary[0].device == "cpu1");
  CHECK(plan.summary[0].node_ranges == std::vector<std::pair<std::uint32_t, std::uint32_t>>{{0, 2}});
  CHECK(plan.summary[0].modules == std::vector<std::string>{"encoder.layer", "pooler"});
  CHECK(plan.summary[0].cost == 12);
  CHECK(plan.summary[0].peak_bytes == 32);
  CHECK(plan.program == program_hash(g.program(), placement));
}

TEST_CASE("a program that check_program refuses is not planned") {
  GraphFixture g;
  g.output(g.node("aten::relu", {g.input("x")}));
  g.program().nodes[0].args.push_back(ArgLiteralDevice{"cuda:0"});
  CHECK(must_refuse(g.program(), {}, kTwo).code == ErrorCode::kLiteralDevice);
}

TEST_CASE("plans of random programs are sound for random placements") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    test::Random random(seed);
    const ProgramGraph program = test::random_program(random, 1 + random.below(40));
    std::vector<PlannerDevice> devices;
    for (std::size_t i = 0; i <= random.below(4); ++i) devices.push_back({"cpu" + std::to_string(i), 0});
    Placement placement;
    if (random.chance(70)) {
      placement.automatic = false;
      for (std::uint32_t node = 0; node < program.nodes.size(); ++node) {
        if (random.chance(50))
          placement.rules.push_back({devices[random.below(devices.size())].name, {}, {{node, node}}});
      }
    }
    must_plan(program, placement, devices);
  }
}

}  // namespace callboard::actors
