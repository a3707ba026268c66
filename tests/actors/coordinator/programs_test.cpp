#include "actors/coordinator/programs.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "tests/actors/coordinator/core_fixture.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

using namespace std::chrono_literals;
using test::CoreFixture;
using test::has;
using test::status_of;
using test::one_outcome;

}  // namespace

TEST_CASE("a program is loaded on its devices and answered with the whole plan") {
  CoreFixture f;
  f.bring_up();
  LoadProgram order;
  order.request = 7;
  order.program = test::two_stage_program();
  order.placement = test::two_stage_placement();
  f.message(f.client, order);
  const auto first = f.take<LoadFragment>(f.cpu0);
  REQUIRE(first.size() == 1);
  REQUIRE(first[0].peers.size() == 1);
  CHECK(first[0].peers[0].who == f.cpu1);
  CHECK(f.take<ProgramLoaded>(f.client).empty());
  FragmentLoaded answer;
  answer.program = first[0].fragment.program;
  answer.pure = true;
  answer.peak_bytes = 77;
  f.message(f.cpu0, answer);
  answer.fragment = 1;
  f.message(f.cpu1, answer);
  const auto loaded = f.take<ProgramLoaded>(f.client);
  REQUIRE(loaded.size() == 1);
  CHECK(loaded[0].request == 7);
  CHECK_FALSE(loaded[0].error);
  REQUIRE(loaded[0].plan.size() == 2);
  CHECK(loaded[0].plan[0].pure);
  CHECK(loaded[0].plan[1].peak_bytes == 77);
}

TEST_CASE("what the devices cannot run is reported from all of them at once") {
  CoreFixture f;
  f.bring_up();
  LoadProgram order;
  order.request = 1;
  order.program = test::two_stage_program();
  order.placement = test::two_stage_placement();
  f.message(f.client, order);
  const ContentHash hash = program_hash(order.program, order.placement);
  for (std::uint32_t i = 0; i < 2; ++i) {
    FragmentLoaded answer;
    answer.program = hash;
    answer.fragment = i;
    answer.error = Error(ErrorCode::kUnknownOperator, "no operator number " + std::to_string(i));
    f.message(i == 0 ? f.cpu0 : f.cpu1, answer);
  }
  const auto loaded = f.take<ProgramLoaded>(f.client);
  REQUIRE(loaded.size() == 1);
  REQUIRE(loaded[0].error);
  CHECK(loaded[0].error->code == ErrorCode::kUnknownOperator);
  CHECK(loaded[0].error->causes.size() == 2);
  CHECK(f.take<UnloadFragments>(f.cpu0).size() == 1);
  CHECK(f.submit(hash) != 0);
  CHECK(f.take<Outcome>(f.client)[0].error->code == ErrorCode::kProgramUnknown);
}

TEST_CASE("programs are shared by clients and unloaded with the last one") {
  CoreFixture f;
  f.bring_up();
  const ActorId other{"client-b", 1};
  REQUIRE(f.join(Role::kClient, other));
  const ContentHash hash = f.load(test::chain_program(1), test::on("cpu0"));
  f.load(test::chain_program(1), test::on("cpu0"), other);
  f.load(test::chain_program(1), test::on("cpu0"), other);
  f.message(f.client, UnloadProgram{0, hash});
  f.message(other, UnloadProgram{0, hash});
  CHECK(f.take<UnloadFragments>(f.cpu0).empty());
  f.submit(hash, other);
  CHECK(f.take<RunFragment>(f.cpu0).size() == 1);
  f.lose(other);
  CHECK(f.take<UnloadFragments>(f.cpu0).empty());  // its run has not been answered
  CHECK(f.take<CancelRun>(f.cpu0).size() == 1);
  RunFragment order;
  order.run = 1;
  f.finish(f.cpu0, order, {}, Error(ErrorCode::kCancelled, "cancelled"));
  CHECK(f.take<UnloadFragments>(f.cpu0).size() == 1);
  CHECK(status_of(f)["programs"].empty());
}

TEST_CASE("a load ends at its deadline and names who has not answered") {
  CoreFixture f;
  f.bring_up();
  LoadProgram order;
  order.request = 1;
  order.program = test::two_stage_program();
  order.placement = test::two_stage_placement();
  order.deadline_ms = 1'000;
  f.message(f.client, order);
  FragmentLoaded answer;
  answer.program = program_hash(order.program, order.placement);
  f.message(f.cpu0, answer);
  f.wait(1s, {f.cpu0, f.cpu1});
  const auto loaded = f.take<ProgramLoaded>(f.client);
  REQUIRE(loaded.size() == 1);
  CHECK(loaded[0].error->code == ErrorCode::kDeadlineExceeded);
  CHECK(has(loaded[0].error->message, "'cpu1' is still loading"));
  CHECK_FALSE(has(loaded[0].error->message, "'cpu0'"));
}

TEST_CASE("R55: a device that comes back gets its programs again before it gets runs") {
  CoreFixture f;
  f.bring_up();
  const ContentHash hash = f.load(test::two_stage_program(), test::two_stage_placement());
  f.exited(f.cpu1);
  f.submit(hash);
  CHECK(f.take<RunFragment>(f.cpu0).empty());
  const ActorId second{"cpu1", 2};
  REQUIRE(f.join(Role::kDevice, second));
  CHECK(status_of(f)["actors"][3]["state"] == "loading");
  const auto moved = f.take<PeerMoved>(f.cpu0);
  REQUIRE(moved.size() == 1);
  CHECK(moved[0].peer.who == second);
  CHECK(f.take<RunFragment>(second).empty());
  f.answer_loads();
  CHECK(f.take<RunFragment>(f.cpu0).size() == 1);
  CHECK(f.take<RunFragment>(second).size() == 1);
  CHECK(status_of(f)["ready"].get<bool>());
}

TEST_CASE(
    "a program that cannot be loaded again fails its requests with the device's reason, until it is loaded anew") {
  CoreFixture f;
  f.bring_up();
  const ContentHash hash = f.load(test::chain_program(1), test::on("cpu0"));
  f.exited(f.cpu0);
  const RequestSeq waiting = f.submit(hash);
  const ActorId second{"cpu0", 2};
  REQUIRE(f.join(Role::kDevice, second));
  REQUIRE(f.take<LoadFragment>(second).size() == 1);
  FragmentLoaded answer;
  answer.program = hash;
  answer.error = Error(ErrorCode::kConstantMissing, "its weights are gone");
  f.message(second, answer);
  Outcome outcome = one_outcome(f, waiting);
  CHECK(outcome.error->code == ErrorCode::kConstantMissing);
  CHECK(outcome.error->causes.at(0).message == "its weights are gone");
  CHECK(one_outcome(f, f.submit(hash)).error->code == ErrorCode::kConstantMissing);
  CHECK(status_of(f)["ready"].get<bool>());
  CHECK(f.load(test::chain_program(1), test::on("cpu0")) == hash);
  f.submit(hash);
  CHECK(f.take<RunFragment>(second).size() == 1);
}

TEST_CASE("a device that is not started again fails what waits for it, at once") {
  CoreFixture f;
  f.bring_up();
  const ContentHash hash = f.load(test::chain_program(1), test::on("cpu0"));
  f.exited(f.cpu0);
  const RequestSeq waiting = f.submit(hash);
  CHECK(f.take<Outcome>(f.client).empty());
  f.exited(ActorId{"cpu0", 2}, 9, -1);
  CHECK(one_outcome(f, waiting).error->code == ErrorCode::kActorUnavailable);
  const RequestSeq later = f.submit(hash);
  const Outcome outcome = one_outcome(f, later);
  CHECK(outcome.error->code == ErrorCode::kActorUnavailable);
  CHECK(has(outcome.error->causes.at(0).message, "cpu0#2 was killed"));
  const auto events = f.take<ActorEvent>(f.client);
  CHECK(events.back().event == "failed");
}

TEST_CASE("R39: lost state is said once to each client, and all states start anew together") {
  CoreFixture f;
  f.bring_up();
  test::GraphFixture g("two_states");
  const ValueId x = g.input("x");
  const ValueId a0 = g.constant("a");
  const ValueId a1 = g.node("aten::add.Tensor", {a0, x}, "layer.0");
  const ValueId b0 = g.constant("b");
  const ValueId b1 = g.node("aten::add.Tensor", {b0, a1}, "layer.1");
  g.output(b1);
  g.state("a", a0, a1);
  g.state("b", b0, b1);
  const ContentHash hash = f.load(g.program(), test::two_stage_placement());
  const ActorId other{"client-b", 1};
  REQUIRE(f.join(Role::kClient, other));
  f.load(g.program(), test::two_stage_placement(), other);
  f.submit(hash);
  const auto running = f.take<RunFragment>(f.cpu1);
  f.take<RunFragment>(f.cpu0);
  f.exited(f.cpu0);
  f.take<Outcome>(f.client);
  const auto events = f.take<ActorEvent>(f.client);
  CHECK(std::any_of(events.begin(), events.end(), [](const ActorEvent& e) { return e.event == "state_lost"; }));
  REQUIRE(f.join(Role::kDevice, ActorId{"cpu0", 2}));
  f.answer_loads();
  // The other half is set back too, but not under a run that has not been answered.
  CHECK(f.take<UnloadFragments>(f.cpu1).empty());
  f.finish(f.cpu1, running[0], {}, Error(ErrorCode::kCancelled, "cancelled"));
  CHECK(f.take<UnloadFragments>(f.cpu1).size() == 1);
  f.answer_loads();
  f.take<Quiesced>(f.client);

  const RequestSeq told = f.submit(hash);
  const Outcome outcome = one_outcome(f, told);
  CHECK(outcome.error->code == ErrorCode::kStateLost);
  CHECK(has(outcome.error->message, "'a'"));
  CHECK(has(outcome.error->message, "two_states"));
  f.submit(hash);
  CHECK(f.take<RunFragment>(f.cpu1).size() == 1);
  f.submit(hash, other);
  CHECK(f.take<Outcome>(other).at(0).error->code == ErrorCode::kStateLost);
}

TEST_CASE("R39: a request that waits when the state is lost is told, and those behind it run on the new state") {
  CoordinatorOptions options = test::core_options();
  options.runs_per_device = 1;
  CoreFixture f(options);
  f.bring_up();
  const ContentHash hash = f.load(test::counting_program(), test::on("cpu0"));
  const ActorId other{"client-b", 1};
  REQUIRE(f.join(Role::kClient, other));
  f.load(test::counting_program(), test::on("cpu0"), other);
  const RequestSeq running = f.submit(hash);
  const RequestSeq cancelled = f.submit(hash);
  const RequestSeq told = f.submit(hash);
  f.submit(hash);
  const RequestSeq told_too = f.submit(hash, other);
  REQUIRE(f.take<RunFragment>(f.cpu0).size() == 1);
  f.message(f.client, CancelRequest{cancelled});
  CHECK(one_outcome(f, cancelled).status == OutcomeStatus::kCancelled);

  f.exited(f.cpu0);
  const auto outcomes = f.take<Outcome>(f.client);
  REQUIRE(outcomes.size() == 2);
  CHECK(outcomes[0].request == running);
  CHECK(outcomes[0].error->code == ErrorCode::kActorDied);
  CHECK(outcomes[1].request == told);
  CHECK(outcomes[1].error->code == ErrorCode::kStateLost);
  CHECK(outcomes[1].quiesced);
  const auto others = f.take<Outcome>(other);
  REQUIRE(others.size() == 1);
  CHECK(others[0].request == told_too);
  CHECK(others[0].error->code == ErrorCode::kStateLost);

  const ActorId second{"cpu0", 2};
  REQUIRE(f.join(Role::kDevice, second));
  f.answer_loads();
  const auto next = f.take<RunFragment>(second);
  REQUIRE(next.size() == 1);
  CHECK(next[0].client == f.client);
  f.finish(second, next[0], {CoreFixture::tensor()});
  CHECK(f.take<Outcome>(f.client).at(0).status == OutcomeStatus::kOk);
  f.submit(hash, other);
  CHECK(f.take<RunFragment>(second).size() == 1);
}

}  // namespace callboard::actors
