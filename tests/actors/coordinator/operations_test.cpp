#include "actors/coordinator/operations.h"

#include <set>

#include <nlohmann/json.hpp>

#include "tests/actors/coordinator/core_fixture.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

using namespace std::chrono_literals;
using test::CoreFixture;

void ask(CoreFixture& f, const std::string& name, const std::string& arguments = "{}") {
  f.message(f.client, Operation{++f.last_request, name, arguments});
}

OperationResult answer(CoreFixture& f) {
  const auto results = f.take<OperationResult>(f.client);
  REQUIRE(results.size() == 1);
  CHECK(results[0].request == f.last_request);
  return results[0];
}

nlohmann::json good(CoreFixture& f) {
  const OperationResult result = answer(f);
  if (result.error) FAIL(result.error->to_string());
  const auto parsed = nlohmann::json::parse(result.result);
  REQUIRE(parsed.is_object());
  return parsed;
}

Error bad(CoreFixture& f) {
  const OperationResult result = answer(f);
  REQUIRE(result.error);
  return *result.error;
}

}  // namespace

TEST_CASE("the table of operations has distinct names and says what each is for") {
  std::set<std::string_view> names;
  for (const OperationSpec& spec : operation_table()) {
    CHECK(names.insert(spec.name).second);
    CHECK_FALSE(spec.description.empty());
    for (const OperationArgument& argument : spec.arguments) CHECK_FALSE(argument.meaning.empty());
  }
  for (const char* name : {"status", "actors", "programs", "requests", "cancel", "wait_ready", "restart_actor",
                           "shutdown", "trace", "device_query", "log_level"}) {
    CHECK(names.count(name) == 1);
  }
}

TEST_CASE("calls of operations are checked by name, kind and choice") {
  CHECK(parse_operation("statsu", "{}").error().hint == "did you mean 'status'?");
  CHECK(parse_operation("status", "[]").error().code == ErrorCode::kUsage);
  CHECK(parse_operation("status", "{nonsense").error().code == ErrorCode::kUsage);
  CHECK(parse_operation("status", R"({"a":1})").error().hint == "it takes none");
  CHECK(parse_operation("restart_actor", "{}").error().message.find("'name'") != std::string::npos);
  CHECK_FALSE(parse_operation("restart_actor", R"({"name":7})"));
  CHECK_FALSE(parse_operation("cancel", R"({"client":"a#1","request":18446744073709551615})"));
  CHECK(parse_operation("log_level", R"({"level":"wraning"})").error().hint == "did you mean 'warning'?");
  CHECK(parse_operation("trace", R"({"action":"take"})"));
  CHECK(parse_operation("status", ""));
}

TEST_CASE("status, actors, programs and requests answer with the coordinator's tables") {
  CoreFixture f;
  f.bring_up();
  const ContentHash hash = f.load(test::chain_program(1), test::on("cpu0"));
  f.submit(hash);
  f.take<ActorEvent>(f.client);
  ask(f, "status");
  CHECK(good(f)["requests"]["running"] == 1);
  ask(f, "actors");
  CHECK(good(f)["actors"].size() == 4);
  ask(f, "programs");
  CHECK(good(f)["programs"][0]["fragments"][0]["device"] == "cpu0");
  ask(f, "requests");
  CHECK(good(f)["requests"][0]["state"] == "running");
  ask(f, "cancel", R"({"client":"client-a#1","request":2})");
  good(f);
  CHECK(f.take<Outcome>(f.client).at(0).status == OutcomeStatus::kCancelled);
  ask(f, "cancel", R"({"client":"client-a#1","request":99})");
  CHECK(bad(f).code == ErrorCode::kUsage);
}

TEST_CASE("programs tells of each stage: its edges, its time by the costs, and the mean of its runs") {
  CoreFixture f;
  f.bring_up();
  ProgramGraph graph = test::chain_program(2);
  graph.annotations["callboard.costs"] = "measured on cpu0, median of 5 runs";
  for (Node& node : graph.nodes) node.cost = 2'000;
  const ContentHash hash = f.load(graph, test::on("cpu0"));
  const ContentHash other = f.load(test::chain_program(1), test::on("cpu1"));
  for (const std::int64_t ns : {1'000, 3'000}) {
    f.submit(hash);
    for (const RunFragment& order : f.take<RunFragment>(f.cpu0)) {
      FragmentFinished report;
      report.run = order.run;
      report.attempt = order.attempt;
      report.run_ns = ns;
      report.outputs = {std::int64_t{1}};
      f.message(f.cpu0, report);
    }
  }
  ask(f, "programs", R"({"program": ")" + hash.hex() + "\"}");
  const auto told = good(f);
  REQUIRE(told["programs"].size() == 1);
  const auto& program = told["programs"][0];
  CHECK(program["costs"] == "measured on cpu0, median of 5 runs");
  const auto& stage = program["fragments"][0];
  CHECK(stage["time_source"] == "measured");
  CHECK(stage["time_ns"] == 4'000);
  CHECK(stage["runs"] == 2);
  CHECK(stage["mean_run_ns"] == 2'000);
  CHECK(stage["edges"].empty());
  ask(f, "programs", R"({"program": ")" + other.hex() + "\"}");
  const auto estimated = good(f)["programs"][0]["fragments"][0];
  CHECK(estimated["time_source"] == "estimated");
  CHECK(estimated["runs"] == 0);
  CHECK(estimated["mean_run_ns"].is_null());
}

TEST_CASE("descriptions that are no JSON or no UTF-8 do not break the status") {
  CoreFixture f;
  Hello hello;
  hello.role = Role::kClient;
  hello.who = ActorId{"client-\xff", 1};
  hello.description = "\xfe not json";
  REQUIRE(f.core->admit(hello));
  f.step(CoordinatorCore::PeerJoined{hello});
  CHECK(nlohmann::json::parse(f.core->status_json(f.now)).is_object());
}

TEST_CASE("wait_ready answers when all are ready, when one has failed, or in time") {
  CoreFixture f;
  REQUIRE(f.join(Role::kNode, f.node));
  REQUIRE(f.join(Role::kClient, f.client));
  REQUIRE(f.join(Role::kDevice, f.cpu0));
  ask(f, "wait_ready", R"({"timeout_ms":1000})");
  CHECK(f.take<OperationResult>(f.client).empty());
  f.wait(1s, {f.cpu0});
  const Error late = bad(f);
  CHECK(late.code == ErrorCode::kNotReady);
  CHECK(late.message.find("'cpu1' is starting") != std::string::npos);
  ask(f, "wait_ready");
  f.exited(f.cpu1, 6, -1);
  const Error failed = bad(f);
  CHECK(failed.code == ErrorCode::kStartFailed);
  CHECK(failed.message.find("SIGABRT") != std::string::npos);
  REQUIRE(failed.causes.size() == 1);
  CHECK(failed.causes[0].actor == "cpu1#1");
  CHECK(failed.causes[0].code == ErrorCode::kActorDied);
  REQUIRE(f.join(Role::kDevice, ActorId{"cpu1", 2}));
  ask(f, "wait_ready");
  CHECK(good(f)["ready"] == true);
}

TEST_CASE("a trace is taken from all devices and merged; a lost device is named") {
  CoreFixture f;
  f.bring_up();
  ask(f, "trace", R"({"action":"take"})");
  const auto q0 = f.take<DeviceQuery>(f.cpu0);
  const auto q1 = f.take<DeviceQuery>(f.cpu1);
  REQUIRE(q0.size() == 1);
  REQUIRE(q1.size() == 1);
  f.message(f.cpu0, DeviceReply{q0[0].query, {}, R"({"events":[{"name":"a"}]})"});
  f.message(f.cpu0, DeviceReply{q1[0].query, {}, "{}"});  // not the one that was asked
  CHECK(f.take<OperationResult>(f.client).empty());
  CHECK(nlohmann::json::parse(q0[0].arguments)["take"].get<std::size_t>() <= limits::kStringBytesMax / 4);
  f.message(f.cpu1, DeviceReply{q1[0].query, {}, R"({"events":[{"name":"b"}],"more":true})"});
  const auto merged = good(f);
  CHECK(merged["traceEvents"].size() == 2);
  CHECK(merged["more"] == true);
  ask(f, "trace", R"({"action":"on","device":"cpu1"})");
  CHECK(f.take<DeviceQuery>(f.cpu0).empty());
  f.exited(f.cpu1);
  CHECK(bad(f).message.find("cpu1#1") != std::string::npos);
}

TEST_CASE("a device query is passed on and answered, or ends in time") {
  CoreFixture f;
  f.bring_up();
  ask(f, "device_query", R"({"device":"cpu0","name":"memory"})");
  const auto query = f.take<DeviceQuery>(f.cpu0);
  REQUIRE(query.size() == 1);
  CHECK(query[0].name == "memory");
  f.message(f.cpu0, DeviceReply{query[0].query, {}, R"({"leases":0})"});
  CHECK(good(f)["leases"] == 0);
  ask(f, "device_query", R"({"device":"cpu5","name":"memory"})");
  CHECK(bad(f).code == ErrorCode::kUsage);
  ask(f, "device_query", R"({"device":"cpu0","name":"memory"})");
  f.wait(10s, {f.cpu0, f.cpu1});
  CHECK(bad(f).code == ErrorCode::kDeadlineExceeded);
}

TEST_CASE("restart and shutdown go to the node actor; a stopping cluster takes nothing new") {
  CoreFixture f;
  f.bring_up();
  const ContentHash hash = f.load(test::chain_program(1), test::on("cpu0"));
  ask(f, "restart_actor", R"({"name":"cpu0","kill":true})");
  good(f);
  const auto stops = f.take<StopActor>(f.node);
  REQUIRE(stops.size() == 1);
  CHECK(stops[0].kill);
  CHECK(stops[0].restart);
  ask(f, "log_level", R"({"level":"debug"})");
  good(f);
  f.exited(f.cpu0);
  const RequestSeq waiting = f.submit(hash);
  ask(f, "shutdown", R"({"reason":"test"})");
  good(f);
  CHECK(f.take<ShutDown>(f.node).size() == 1);
  const auto outcomes = f.take<Outcome>(f.client);
  REQUIRE(outcomes.size() == 1);
  CHECK(outcomes[0].request == waiting);
  CHECK(outcomes[0].error->code == ErrorCode::kActorUnavailable);
  f.submit(hash);
  CHECK(f.take<Outcome>(f.client).at(0).error->code == ErrorCode::kActorUnavailable);
}

}  // namespace callboard::actors
