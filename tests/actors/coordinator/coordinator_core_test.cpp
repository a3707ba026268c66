#include "actors/coordinator/coordinator_core.h"

#include <nlohmann/json.hpp>

#include "tests/actors/coordinator/core_fixture.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

using namespace std::chrono_literals;
using test::CoreFixture;
using test::has;
using test::one_outcome;
using test::status_of;

}  // namespace

TEST_CASE("the cluster is ready when all devices are, and clients are told") {
  CoreFixture f;
  REQUIRE(f.join(Role::kNode, f.node));
  REQUIRE(f.join(Role::kClient, f.client));
  REQUIRE(f.join(Role::kDevice, f.cpu0));
  CHECK_FALSE(status_of(f)["ready"].get<bool>());
  REQUIRE(f.join(Role::kDevice, f.cpu1));
  CHECK(status_of(f)["ready"].get<bool>());
  const auto events = f.take<ActorEvent>(f.client);
  REQUIRE(events.size() == 2);
  CHECK(events[1].event == "ready");
}

TEST_CASE("unknown devices, old incarnations, a second node and too many clients are not let in") {
  auto options = test::core_options();
  options.clients_max = 1;
  CoreFixture f(options);
  f.bring_up();
  const Status unknown = f.join(Role::kDevice, ActorId{"cpu9", 1});
  REQUIRE_FALSE(unknown);
  CHECK(has(unknown.error().hint, "did you mean"));
  f.exited(f.cpu0);
  CHECK(f.join(Role::kDevice, f.cpu0).error().code == ErrorCode::kStaleIncarnation);
  CHECK(f.join(Role::kDevice, ActorId{"cpu0", 2}));
  CHECK_FALSE(f.join(Role::kNode, ActorId{"node2", 1}));
  CHECK(f.join(Role::kClient, ActorId{"client-b", 1}).error().code == ErrorCode::kOverloaded);
}

TEST_CASE("CO-1: a request gets its values from all fragments in the program's order") {
  CoreFixture f;
  f.bring_up();
  test::GraphFixture g;
  const ValueId x = g.input("x");
  const ValueId a = g.node("aten::relu", {x}, "layer.0");
  const ValueId b = g.node("aten::relu", {a}, "layer.1");
  g.output(b);
  g.output(a);
  g.output(b);
  const ContentHash hash = f.load(g.program(), test::two_stage_placement());
  const RequestSeq request = f.submit(hash);
  const auto at0 = f.take<RunFragment>(f.cpu0);
  const auto at1 = f.take<RunFragment>(f.cpu1);
  REQUIRE(at0.size() == 1);
  REQUIRE(at1.size() == 1);
  CHECK(at0[0].inputs.size() == 1);
  CHECK(at1[0].inputs.empty());
  CHECK(at0[0].client == f.client);
  f.finish(f.cpu1, at1[0], {CoreFixture::leased(f.cpu1, 5)});
  CHECK(f.take<Outcome>(f.client).empty());
  f.finish(f.cpu0, at0[0], {CoreFixture::leased(f.cpu0, 3)});
  const Outcome outcome = one_outcome(f, request);
  CHECK(outcome.status == OutcomeStatus::kOk);
  CHECK(outcome.quiesced);
  REQUIRE(outcome.outputs.size() == 3);
  CHECK(outcome.outputs[0] == CoreFixture::leased(f.cpu1, 5));
  CHECK(outcome.outputs[1] == CoreFixture::leased(f.cpu0, 3));
  CHECK(outcome.outputs[2] == outcome.outputs[0]);
}

TEST_CASE("a submit that does not fit its program is refused by name") {
  CoreFixture f;
  f.bring_up();
  const ContentHash hash = f.load(test::chain_program(1), test::on("cpu0"));
  Submit order;
  order.request = 50;
  order.program = hash;
  f.message(f.client, order);
  CHECK(one_outcome(f, 50).error->code == ErrorCode::kBadInput);
  order.inputs = {std::int64_t{3}};
  f.message(f.client, order);
  const Outcome wrong_kind = one_outcome(f, 50);
  CHECK(has(wrong_kind.error->message, "input 'x' is an int, the program takes a tensor"));
  order.inputs = {CoreFixture::tensor()};
  order.symbols = {1};
  f.message(f.client, order);
  CHECK(one_outcome(f, 50).error->code == ErrorCode::kBadInput);
  CHECK(f.take<RunFragment>(f.cpu0).empty());
}

TEST_CASE("CO-1: the first error is the outcome, the other devices are cancelled, quiesced follows") {
  CoreFixture f;
  f.bring_up();
  const ContentHash hash = f.load(test::two_stage_program(), test::two_stage_placement());
  const RequestSeq request = f.submit(hash);
  const auto at0 = f.take<RunFragment>(f.cpu0);
  const auto at1 = f.take<RunFragment>(f.cpu1);
  f.finish(f.cpu0, at0[0], {}, Error(ErrorCode::kKernelFailed, "the root"));
  const Outcome outcome = one_outcome(f, request);
  CHECK(outcome.status == OutcomeStatus::kFailed);
  CHECK(outcome.error->message == "the root");
  CHECK_FALSE(outcome.quiesced);
  CHECK(f.take<CancelRun>(f.cpu1).size() == 1);
  CHECK(f.take<CancelRun>(f.cpu0).empty());
  f.finish(f.cpu1, at1[0], {}, Error(ErrorCode::kCancelled, "cancelled"));
  CHECK(f.take<Outcome>(f.client).empty());
  CHECK(f.take<Quiesced>(f.client).size() == 1);
}

TEST_CASE("results that nobody gets any more are released at their owner") {
  CoreFixture f;
  f.bring_up();
  test::GraphFixture g;
  const ValueId a = g.node("aten::relu", {g.input("x")}, "layer.0");
  g.output(a);
  g.output(g.node("aten::relu", {a}, "layer.1"));
  const ContentHash hash = f.load(g.program(), test::two_stage_placement());
  f.submit(hash);
  const auto at0 = f.take<RunFragment>(f.cpu0);
  const auto at1 = f.take<RunFragment>(f.cpu1);
  f.finish(f.cpu0, at0[0], {CoreFixture::leased(f.cpu0, 3)});
  f.message(f.client, CancelRequest{f.last_request});
  auto released = f.take<ReleaseLeases>(f.cpu0);
  REQUIRE(released.size() == 1);
  CHECK(released[0].leases == std::vector<LeaseId>{3});
  f.finish(f.cpu1, at1[0], {CoreFixture::leased(f.cpu1, 9)});  // it was faster than the cancel
  released = f.take<ReleaseLeases>(f.cpu1);
  REQUIRE(released.size() == 1);
  CHECK(released[0].leases == std::vector<LeaseId>{9});
  CHECK(f.take<Quiesced>(f.client).size() == 1);
}

TEST_CASE("CO-1: a request expires at its deadline, waiting or running") {
  CoreFixture f;
  f.bring_up();
  const ContentHash hash = f.load(test::chain_program(1), test::on("cpu0"));
  const RequestSeq running = f.submit(hash, f.client, 1'000);
  const auto orders = f.take<RunFragment>(f.cpu0);
  f.wait(1s, {f.cpu0, f.cpu1});
  Outcome outcome = one_outcome(f, running);
  CHECK(outcome.status == OutcomeStatus::kExpired);
  CHECK(outcome.error->code == ErrorCode::kDeadlineExceeded);
  CHECK_FALSE(outcome.quiesced);
  CHECK(f.take<CancelRun>(f.cpu0).size() == 1);
  f.finish(f.cpu0, orders[0], {CoreFixture::tensor()});
  CHECK(f.take<Quiesced>(f.client).size() == 1);

  f.exited(f.cpu0);
  const RequestSeq waiting = f.submit(hash, f.client, 1'000);
  f.wait(1s, {f.cpu1});
  outcome = one_outcome(f, waiting);
  CHECK(outcome.status == OutcomeStatus::kExpired);
  CHECK(outcome.quiesced);
  CHECK(has(outcome.error->message, "'cpu0', which is down"));
}

TEST_CASE("CO-2: a device's death fails its runs in the step that takes the report, in words") {
  CoreFixture f;
  f.bring_up();
  const ContentHash hash = f.load(test::two_stage_program(), test::two_stage_placement());
  const RequestSeq request = f.submit(hash);
  const auto at1 = f.take<RunFragment>(f.cpu1);
  f.exited(f.cpu0);
  const Outcome outcome = one_outcome(f, request);
  CHECK(outcome.error->code == ErrorCode::kActorDied);
  CHECK(has(outcome.error->message, "cpu0#1 was killed by signal 9 (SIGKILL)"));
  CHECK(has(outcome.error->detail, "last words of cpu0#1"));
  CHECK(outcome.error->actor == "cpu0#1");
  CHECK_FALSE(outcome.quiesced);  // cpu1 may still read
  CHECK(f.take<CancelRun>(f.cpu1).size() == 1);
  f.finish(f.cpu1, at1[0], {}, Error(ErrorCode::kCancelled, "cancelled"));
  CHECK(f.take<Quiesced>(f.client).size() == 1);
}

TEST_CASE("the other devices hear of a device's end: one that joined later may have lent to it") {
  CoreFixture f;
  f.bring_up();
  f.lose(f.cpu0);
  CHECK(f.take<HolderGone>(f.cpu1).empty());  // its process may live
  f.exited(f.cpu0);
  const auto gone = f.take<HolderGone>(f.cpu1);
  REQUIRE(gone.size() == 1);
  CHECK(gone[0].holder == f.cpu0);
}

TEST_CASE("CO-2: a lost link waits for the exit report to name the cause, but not for ever") {
  CoreFixture f;
  f.bring_up();
  const ContentHash hash = f.load(test::chain_program(1), test::on("cpu0"));
  RequestSeq request = f.submit(hash);
  f.lose(f.cpu0);
  CHECK(f.take<Outcome>(f.client).empty());
  f.wait(500ms, {f.cpu1});
  f.exited(f.cpu0, 11);
  Outcome outcome = one_outcome(f, request);
  CHECK(has(outcome.error->message, "signal 11 (SIGSEGV)"));
  CHECK(outcome.quiesced);

  const ActorId second{"cpu0", 2};
  REQUIRE(f.join(Role::kDevice, second));
  f.answer_loads();
  request = f.submit(hash);
  f.lose(second);
  f.wait(1s, {f.cpu1});
  outcome = one_outcome(f, request);
  CHECK(outcome.error->code == ErrorCode::kActorDied);
  CHECK(has(outcome.error->message, "the link broke"));
  const auto stops = f.take<StopActor>(f.node);
  REQUIRE(stops.size() == 1);
  CHECK(stops[0].who == second);
  CHECK(stops[0].kill);
  // CO-6: its process may still read the inputs until its end is reported.
  CHECK_FALSE(outcome.quiesced);
  f.exited(second);
  CHECK(f.take<Outcome>(f.client).empty());
  CHECK(f.take<Quiesced>(f.client).size() == 1);
}

TEST_CASE("an error that follows from a death waits for the root cause") {
  CoreFixture f;
  f.bring_up();
  const ContentHash hash = f.load(test::two_stage_program(), test::two_stage_placement());
  RequestSeq request = f.submit(hash);
  auto at1 = f.take<RunFragment>(f.cpu1);
  f.finish(f.cpu1, at1[0], {}, Error(ErrorCode::kTensorLost, "its segment is gone"));
  CHECK(f.take<Outcome>(f.client).empty());
  f.exited(f.cpu0);
  CHECK(has(one_outcome(f, request).error->message, "SIGKILL"));

  REQUIRE(f.join(Role::kDevice, ActorId{"cpu0", 2}));
  f.answer_loads();
  request = f.submit(hash);
  at1 = f.take<RunFragment>(f.cpu1);
  f.finish(f.cpu1, at1[0], {}, Error(ErrorCode::kTensorLost, "its segment is gone"));
  f.wait(1s, {f.cpu1, ActorId{"cpu0", 2}});
  CHECK(one_outcome(f, request).error->code == ErrorCode::kTensorLost);
}

TEST_CASE("CO-3: only the current incarnation and attempt count; other results are dropped, counted and released") {
  CoreFixture f;
  f.bring_up();
  const ContentHash hash = f.load(test::chain_program(1), test::on("cpu0"));
  const RequestSeq request = f.submit(hash);
  auto orders = f.take<RunFragment>(f.cpu0);
  RunFragment other = orders[0];
  other.attempt = 2;
  f.finish(f.cpu0, other, {CoreFixture::leased(f.cpu0, 8)});
  CHECK(f.take<ReleaseLeases>(f.cpu0).size() == 1);
  f.finish(f.cpu1, orders[0], {CoreFixture::leased(f.cpu1, 8)});
  CHECK(f.take<ReleaseLeases>(f.cpu1).size() == 1);
  CHECK(f.take<Outcome>(f.client).empty());
  f.finish(f.cpu0, orders[0], {CoreFixture::tensor()});
  CHECK(one_outcome(f, request).status == OutcomeStatus::kOk);
  f.finish(f.cpu0, orders[0], {CoreFixture::leased(f.cpu0, 9)});
  CHECK(f.take<Outcome>(f.client).empty());
  CHECK(status_of(f)["counters"]["stale_results"] == 3);
}

TEST_CASE("R59: a request that is repeated while it runs is not run twice") {
  CoreFixture f;
  f.bring_up();
  const ContentHash hash = f.load(test::chain_program(1), test::on("cpu0"));
  const RequestSeq request = f.submit(hash);
  --f.last_request;
  CHECK(f.submit(hash) == request);
  const auto orders = f.take<RunFragment>(f.cpu0);
  REQUIRE(orders.size() == 1);
  f.finish(f.cpu0, orders[0], {CoreFixture::tensor()});
  one_outcome(f, request);
}

TEST_CASE("CO-4: requests of one client start in order; those for other devices need not wait") {
  auto options = test::core_options();
  options.runs_per_device = 1;
  CoreFixture f(options);
  f.bring_up();
  const ContentHash both = f.load(test::two_stage_program(), test::two_stage_placement());
  const ContentHash on0 = f.load(test::chain_program(1), test::on("cpu0"));
  const ContentHash on1 = f.load(test::chain_program(1), test::on("cpu1"));
  f.submit(on0);
  f.submit(both);  // waits for cpu0, and keeps its place on cpu1
  f.submit(on1);
  auto at0 = f.take<RunFragment>(f.cpu0);
  REQUIRE(at0.size() == 1);
  CHECK(f.take<RunFragment>(f.cpu1).empty());
  const ActorId other{"client-b", 1};
  REQUIRE(f.join(Role::kClient, other));
  f.load(test::chain_program(1), test::on("cpu1"), other);
  f.submit(on1, other);  // another client has no order with it
  auto at1 = f.take<RunFragment>(f.cpu1);
  REQUIRE(at1.size() == 1);
  f.finish(f.cpu1, at1[0], {CoreFixture::tensor()});
  CHECK(f.take<RunFragment>(f.cpu1).empty());
  f.finish(f.cpu0, at0[0], {CoreFixture::tensor()});
  at0 = f.take<RunFragment>(f.cpu0);
  at1 = f.take<RunFragment>(f.cpu1);
  REQUIRE(at0.size() == 1);
  REQUIRE(at1.size() == 1);
  CHECK(at0[0].program == both);
  CHECK(at1[0].program == both);
}

TEST_CASE("a full device serves the clients in turn") {
  auto options = test::core_options();
  options.runs_per_device = 1;
  CoreFixture f(options);
  f.bring_up();
  const ActorId other{"client-b", 1};
  REQUIRE(f.join(Role::kClient, other));
  const ContentHash hash = f.load(test::chain_program(1), test::on("cpu0"));
  f.load(test::chain_program(1), test::on("cpu0"), other);
  for (int i = 0; i < 4; ++i) f.submit(hash);
  for (int i = 0; i < 4; ++i) f.submit(hash, other);
  std::string order;
  for (int i = 0; i < 8; ++i) {
    const auto runs = f.take<RunFragment>(f.cpu0);
    REQUIRE(runs.size() == 1);
    order += runs[0].client == f.client ? 'a' : 'b';
    f.finish(f.cpu0, runs[0], {CoreFixture::tensor()});
  }
  CHECK(order == "abababab");
}

TEST_CASE("runs wait while what others keep for the next device fills its credit; one alone always goes") {
  auto options = test::core_options();
  options.edge_bytes = GENERATE(40, 1);  // an edge of the program has 16 bytes: two of them, or not even one
  const std::size_t at_once = options.edge_bytes == 40 ? 2 : 1;
  CoreFixture f(options);
  f.bring_up();
  const ContentHash hash = f.load(test::two_stage_program(), test::two_stage_placement());
  std::vector<RequestSeq> requests;
  for (int i = 0; i < 5; ++i) requests.push_back(f.submit(hash));
  std::vector<RunFragment> at0 = f.take<RunFragment>(f.cpu0);
  std::vector<RunFragment> at1 = f.take<RunFragment>(f.cpu1);
  REQUIRE(at0.size() == at_once);
  const auto held = [&] {
    const auto status = test::status_of(f);
    for (const auto& actor : status["actors"]) {
      if (actor["name"] == "cpu0") return actor["held_bytes"].get<std::uint64_t>();
    }
    return std::uint64_t{0};
  };
  CHECK(held() == 16 * at_once);
  for (std::size_t done = 0; done < requests.size(); ++done) {
    REQUIRE(done < at0.size());
    f.finish(f.cpu0, at0[done], {});
    CHECK(f.take<RunFragment>(f.cpu0).empty());  // the value is still there for cpu1
    f.finish(f.cpu1, at1[done], {CoreFixture::tensor()});
    CHECK(one_outcome(f, requests[done]).status == OutcomeStatus::kOk);
    for (RunFragment& order : f.take<RunFragment>(f.cpu0)) at0.push_back(std::move(order));
    for (RunFragment& order : f.take<RunFragment>(f.cpu1)) at1.push_back(std::move(order));
  }
  CHECK(at0.size() == requests.size());
  CHECK(held() == 0);
}

TEST_CASE("CO-5: what exceeds a client's limit is refused and harms nobody else") {
  auto options = test::core_options();
  options.requests_per_client = 2;
  CoreFixture f(options);
  f.bring_up();
  const ContentHash hash = f.load(test::chain_program(1), test::on("cpu0"));
  f.submit(hash);
  f.submit(hash);
  const RequestSeq third = f.submit(hash);
  CHECK(one_outcome(f, third).error->code == ErrorCode::kOverloaded);
  const auto orders = f.take<RunFragment>(f.cpu0);
  f.finish(f.cpu0, orders[0], {CoreFixture::tensor()});
  f.take<Outcome>(f.client);
  f.submit(hash);
  CHECK(f.take<Outcome>(f.client).empty());
}

TEST_CASE("R81: a silent device is given up and killed, and its late answers do not count") {
  CoreFixture f;
  f.bring_up();
  const ContentHash hash = f.load(test::chain_program(1), test::on("cpu0"));
  const RequestSeq request = f.submit(hash);
  const auto orders = f.take<RunFragment>(f.cpu0);
  f.wait(2'750ms, {f.cpu1});
  CHECK(f.take<StopActor>(f.node).empty());
  f.wait(250ms, {f.cpu1});
  const auto stops = f.take<StopActor>(f.node);
  REQUIRE(stops.size() == 1);
  CHECK(stops[0].who == f.cpu0);
  CHECK(f.forgotten == std::vector<ActorId>{f.cpu0});
  f.finish(f.cpu0, orders[0], {CoreFixture::tensor()});  // SIGCONT: fenced
  CHECK(f.take<Outcome>(f.client).empty());
  f.exited(f.cpu0);
  CHECK(has(one_outcome(f, request).error->causes.at(0).message, "no sign of life for 3000 ms"));
  CHECK_FALSE(f.join(Role::kDevice, f.cpu0));
}

TEST_CASE("R81: after the coordinator itself stood still nobody counts as silent") {
  CoreFixture f;
  f.bring_up();
  f.now += 10s;
  f.tick();
  CHECK(f.take<StopActor>(f.node).empty());
  f.wait(5s, {f.cpu0, f.cpu1});
  CHECK(f.take<StopActor>(f.node).empty());
}

TEST_CASE("a client that goes takes its requests along and leaves nothing behind") {
  CoreFixture f;
  f.bring_up();
  const ContentHash hash = f.load(test::chain_program(1), test::on("cpu0"));
  f.submit(hash);
  const auto orders = f.take<RunFragment>(f.cpu0);
  f.lose(f.client);
  CHECK(f.take<CancelRun>(f.cpu0).size() == 1);
  f.finish(f.cpu0, orders[0], {CoreFixture::leased(f.cpu0, 4)});
  CHECK(f.take<ReleaseLeases>(f.cpu0).size() == 1);
  CHECK(f.take<UnloadFragments>(f.cpu0).size() == 1);
  const auto status = status_of(f);
  CHECK(status["requests"]["running"] == 0);
  CHECK(status["clients"].empty());
  CHECK(status["programs"].empty());
}

TEST_CASE("an outcome that is too large for a message becomes an error, and its values are released") {
  CoreFixture f;
  f.bring_up();
  Outcome outcome;
  outcome.request = 3;
  outcome.outputs = {CoreFixture::leased(f.cpu0, 6)};
  f.step(CoordinatorCore::SendRefused{f.client, outcome, Error(ErrorCode::kTooLarge, "too large")});
  CHECK(f.take<ReleaseLeases>(f.cpu0).size() == 1);
  CHECK(one_outcome(f, 3).error->code == ErrorCode::kTooLarge);
}

TEST_CASE("the core beats to all its peers and wants to be woken for it") {
  CoreFixture f;
  f.bring_up();
  CHECK(f.core->next_tick() <= f.now + limits::kBeatInterval);
  f.now += limits::kBeatInterval;
  std::size_t beats = 0;
  for (const auto& action : f.core->step(CoordinatorCore::Tick{}, f.now)) {
    const auto* send = std::get_if<CoordinatorCore::Send>(&action);
    if (send != nullptr && std::holds_alternative<Beat>(send->message)) ++beats;
  }
  CHECK(beats == 4);
}

TEST_CASE("devices with memory of their own are told of each other when they join, and status says how results go") {
  auto options = test::core_options(3);
  options.devices[1].own_memory = options.devices[2].own_memory = true;
  CoreFixture f(options);
  const ActorId cpu2{"cpu2", 1};
  for (const ActorId& who : {f.cpu0, f.cpu1}) REQUIRE(f.join(Role::kDevice, who));
  CHECK(f.take<PeerMoved>(f.cpu1).empty());
  REQUIRE(f.join(Role::kDevice, cpu2));
  const auto told = f.take<PeerMoved>(cpu2);
  REQUIRE(told.size() == 1);
  CHECK(told[0].peer == PeerAddress{f.cpu1, "ipc://cpu1#1"});
  CHECK(f.take<PeerMoved>(f.cpu1).at(0).peer.who == cpu2);

  const auto transports = [&](std::size_t device) {
    return status_of(f)["actors"][1 + device].value("transports", nlohmann::json());
  };
  CHECK(transports(0).is_null());
  CHECK(transports(1).empty());
  f.message(f.cpu1, TransportChosen{cpu2, TransportPath::kHostCopy, "cpu2#1 takes host copies: it is far away"});
  f.message(f.cpu1, TransportChosen{ActorId{"nobody", 1}, TransportPath::kIpc, {}});
  REQUIRE(transports(1).size() == 1);
  CHECK(transports(1)[0] == nlohmann::json({{"reader", "cpu2"},
                                            {"incarnation", 1},
                                            {"path", "host copy"},
                                            {"reason", "cpu2#1 takes host copies: it is far away"}}));
  f.message(f.cpu1, TransportChosen{cpu2, TransportPath::kIpc, {}});
  CHECK(transports(1).at(0)["path"] == "ipc");
  // A new process has its own to find out.
  REQUIRE(f.join(Role::kNode, f.node));
  f.exited(f.cpu1);
  REQUIRE(f.join(Role::kDevice, ActorId{"cpu1", 2}));
  CHECK(status_of(f)["actors"][3]["transports"].empty());
}

TEST_CASE("a device is told which clients can open its memory; where the file insists, others are refused by name") {
  auto options = test::core_options(1);
  options.devices[0].own_memory = options.devices[0].results_on_gpu = true;
  options.devices[0].results_on_gpu_only = GENERATE(false, true);
  const bool only = options.devices[0].results_on_gpu_only;
  CoreFixture f(options);
  REQUIRE(f.join(Role::kDevice, f.cpu0, R"({"gpu": "GPU-1"})"));
  const ActorId sees{"sees", 1};
  const ActorId elsewhere{"elsewhere", 1};
  const ActorId blind{"blind", 1};
  const ActorId odd{"odd", 1};
  REQUIRE(f.join(Role::kClient, sees, R"({"gpus": ["GPU-0", "GPU-1"]})"));
  REQUIRE(f.join(Role::kClient, elsewhere, R"({"gpus": ["GPU-2"]})"));
  REQUIRE(f.join(Role::kClient, blind, R"({"why_no_gpu": "there is no driver"})"));
  REQUIRE(f.join(Role::kClient, odd, R"({"gpus": [1, {"GPU-1": true}], "why_no_gpu": 7})"));
  for (const ActorId& client : {sees, elsewhere, blind, odd}) {
    f.submit(f.load(test::chain_program(1), test::on("cpu0"), client), client);
    const auto orders = f.take<RunFragment>(f.cpu0);
    const auto outcomes = f.take<Outcome>(client);
    if (client == sees || !only) {
      REQUIRE(orders.size() == 1);
      CHECK(orders[0].client_reads_device == (client == sees));
      continue;
    }
    CHECK(orders.empty());
    REQUIRE(outcomes.size() == 1);
    REQUIRE(outcomes[0].error);
    CHECK(outcomes[0].error->code == ErrorCode::kUnsupported);
    CHECK(has(outcomes[0].error->message, "GPU-1"));
    CHECK(has(outcomes[0].error->message, client.to_string()));
    CHECK(has(outcomes[0].error->message, "there is no driver") == (client == blind));
  }
}

TEST_CASE("a device that leaves no results on its GPU sends all clients copies") {
  auto options = test::core_options(1);
  options.devices[0].own_memory = true;
  CoreFixture f(options);
  REQUIRE(f.join(Role::kDevice, f.cpu0, R"({"gpu": "GPU-1"})"));
  REQUIRE(f.join(Role::kClient, f.client, R"({"gpus": ["GPU-1"]})"));
  f.submit(f.load(test::chain_program(1), test::on("cpu0")));
  const auto orders = f.take<RunFragment>(f.cpu0);
  REQUIRE(orders.size() == 1);
  CHECK_FALSE(orders[0].client_reads_device);
}

}  // namespace callboard::actors
