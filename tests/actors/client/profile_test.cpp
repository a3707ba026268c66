#include "actors/client/profile.h"

#include <map>
#include <mutex>
#include <set>

#include <nlohmann/json.hpp>

#include "messages/stage_time.h"
#include "tests/actors/client/client_fixture.h"

namespace callboard::actors {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

/// A coordinator with devices of a size, each of which takes so many microseconds for a node as the node's number is.
struct ProfiledCluster {
  std::vector<float> values = std::vector<float>(8, 1.5f);

  std::mutex mutex;
  std::vector<std::string> log;     // guarded by mutex: what came, in order
  std::set<std::string> too_small;  // guarded by mutex: devices
  std::set<std::string> marks;      // guarded by mutex
  std::optional<Error> run_fails;   // guarded by mutex
  std::size_t nodes = 1;
  std::size_t page = 100;

  // Last, so that its threads end first.
  FakeCluster cluster;
  std::unique_ptr<Client> client;

  ProfiledCluster() {
    cluster.on_message([this](FakeCluster& to, const ActorId& from, const Message& message) {
      std::lock_guard lock(mutex);
      if (const auto* load = std::get_if<LoadProgram>(&message)) return on_load(to, from, *load);
      if (const auto* submit = std::get_if<Submit>(&message)) {
        log.push_back("run");
        Outcome outcome = ok(submit->request, small(1));
        if (run_fails) {
          outcome.outputs.clear();
          outcome.status = OutcomeStatus::kFailed;
          outcome.error = run_fails;
        }
        to.send(from, outcome);
        return true;
      }
      if (const auto* operation = std::get_if<Operation>(&message)) return on_operation(to, from, *operation);
      if (std::holds_alternative<UnloadProgram>(message)) log.push_back("unload");
      return false;
    });
    auto connected = Client::connect(options());
    REQUIRE(connected);
    client = std::move(*connected);
  }

  bool on_load(FakeCluster& to, const ActorId& from, const LoadProgram& load) {
    const std::string device = load.placement.devices.at(0);
    log.push_back("load " + device);
    marks.insert(load.program.annotations.at("callboard.profile"));
    PlannedFragment fragment;
    fragment.device = device;
    std::optional<Error> error;
    if (too_small.count(device) != 0) error = Error(ErrorCode::kDoesNotFit, "'" + device + "' is too small");
    to.send(from, ProgramLoaded{load.request, error, program_hash(load.program, load.placement), {fragment}});
    return true;
  }

  bool on_operation(FakeCluster& to, const ActorId& from, const Operation& operation) {
    json result;
    const json arguments = json::parse(operation.arguments);
    if (operation.name == "actors") {
      log.push_back("actors");
      result = {{"actors",
                 {{{"name", "coordinator"}, {"role", "coordinator"}},
                  {{"name", "cpu0"}, {"role", "device"}},
                  {{"name", "cpu1"}, {"role", "device"}}}}};
    } else {
      const json query = json::parse(arguments.at("arguments").get<std::string>());
      log.push_back(arguments.at("name").get<std::string>() + " " + arguments.at("device").get<std::string>() +
                    (query.contains("on") ? (query["on"].get<bool>() ? " on" : " off") : " take"));
      if (query.contains("take")) {
        const auto first = query["take"].get<std::size_t>();
        std::vector<std::int64_t> times;
        for (std::size_t i = first; i < std::min(nodes, first + page); ++i) {
          times.push_back(static_cast<std::int64_t>(i * 1'000));
        }
        result = {{"times_ns", times}, {"nodes", nodes}, {"runs", 5}};
      }
    }
    to.send(from, OperationResult{operation.request, {}, result.is_null() ? "{}" : result.dump()});
    return true;
  }

  Result<NodeCosts> profile(const ProgramGraph& graph, const Placement& placement = {},
                            const ProfileOptions& wanted = {}) {
    const ClientValue inputs[] = {tensor(values, {2, 4}), std::int64_t{1}};
    return profile_nodes(*client, graph, {}, placement, inputs, wanted);
  }
  std::vector<std::string> seen() {
    std::lock_guard lock(mutex);
    return log;
  }
};

ProgramGraph chain_of(std::size_t count) {
  FragmentBuilder builder("chain");
  ValueId x = builder.add_tensor_input("x", DType::kFloat32, {{Expr::constant(2), Expr::constant(4)}}).value();
  builder.add_input({"n", ValueKind::kInt, DType::kUndefined, {}}).value();
  for (std::size_t i = 0; i < count; ++i) {
    x = builder.call("aten::neg", {ArgValue{x}}, {"y" + std::to_string(i), ValueKind::kTensor, DType::kFloat32, {}})
            .value();
  }
  REQUIRE(builder.add_output("y", x));
  return builder.finish().value();
}

}  // namespace

TEST_CASE("a profile warms up, times the runs on one device, and takes all nodes' times page by page", "[profile]") {
  ProfiledCluster c;
  c.nodes = 250;
  ProgramGraph graph = chain_of(250);
  ProfileOptions twice;
  twice.runs = 2;
  const auto costs = c.profile(graph, {}, twice);
  REQUIRE(costs);
  REQUIRE(costs->ns.size() == 250);
  CHECK(costs->ns[0] == 1);  // a cost is positive
  CHECK(costs->ns[249] == 249'000);
  CHECK(costs->note == "measured on cpu0, median of 2 runs");
  const std::vector<std::string> expected = {"actors",
                                             "load cpu0",
                                             "run",
                                             "profile cpu0 on",
                                             "run",
                                             "run",
                                             "profile cpu0 take",
                                             "profile cpu0 take",
                                             "profile cpu0 take",
                                             "profile cpu0 off"};
  std::vector<std::string> seen = c.seen();
  seen.resize(std::min(seen.size(), expected.size()));
  CHECK(seen == expected);
  set_costs(graph, *costs);
  CHECK(graph.nodes[249].cost == 249'000);
  CHECK(costs_are_measured(graph.annotations.at(std::string(kCostsAnnotation))));
  CHECK(graph.annotations.count("callboard.profile") == 0);
}

TEST_CASE("each profile runs a program of its own, so that it shares no state", "[profile]") {
  ProfiledCluster c;
  REQUIRE(c.profile(chain_of(1)));
  REQUIRE(c.profile(chain_of(1)));
  std::lock_guard lock(c.mutex);
  CHECK(c.marks.size() == 2);
}

TEST_CASE("nodes that did not run by themselves have a cost, too", "[profile]") {
  ProfiledCluster c;
  c.nodes = 2;
  const auto costs = c.profile(chain_of(4));
  REQUIRE(costs);
  CHECK(costs->ns == std::vector<double>{1, 1'000, 1, 1});
}

TEST_CASE("a device that is too small is passed over; where all are, estimates stay", "[profile]") {
  ProfiledCluster c;
  Placement placement;
  placement.devices = {"cpu1", "cpu0"};
  c.too_small = {"cpu1"};
  auto costs = c.profile(chain_of(1), placement);
  REQUIRE(costs);
  CHECK(costs->note.find("measured on cpu0") == 0);
  {
    std::lock_guard lock(c.mutex);
    c.too_small = {"cpu0", "cpu1"};
  }
  costs = c.profile(chain_of(1), placement);
  REQUIRE(costs);
  CHECK(costs->ns.empty());
  CHECK(costs->note == "estimated: the program fits no device whole: 'cpu0' is too small");
  ProgramGraph graph = chain_of(1);
  graph.nodes[0].cost = 7;
  set_costs(graph, *costs);
  CHECK(graph.nodes[0].cost == 7);
  CHECK_FALSE(costs_are_measured(graph.annotations.at(std::string(kCostsAnnotation))));
}

TEST_CASE("runs without memory leave the estimates, other failures are the caller's", "[profile]") {
  ProfiledCluster c;
  c.run_fails = Error(ErrorCode::kOutOfMemory, "no room");
  const auto costs = c.profile(chain_of(1));
  REQUIRE(costs);
  CHECK(costs->ns.empty());
  CHECK(costs->note.find("found no memory: no room") != std::string::npos);
  {
    std::lock_guard lock(c.mutex);
    c.run_fails = Error(ErrorCode::kKernelFailed, "singular");
  }
  const auto failed = c.profile(chain_of(1));
  REQUIRE_FALSE(failed);
  CHECK(failed.error().code == ErrorCode::kKernelFailed);
  CHECK(failed.error().message == "the profile run on 'cpu0' failed: singular");
  ProfileOptions none;
  none.runs = 0;
  CHECK(c.profile(chain_of(1), {}, none).error().code == ErrorCode::kBadArgument);
}

}  // namespace callboard::actors
