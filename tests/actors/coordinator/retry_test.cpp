// CO-7: what runs again when its device dies, how often, in which order, and what does not.
#include "actors/coordinator/coordinator_core.h"

#include "tests/actors/coordinator/core_fixture.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

using namespace std::chrono_literals;
using test::CoreFixture;
using test::has;
using test::one_outcome;
using test::status_of;

CoordinatorOptions retrying(std::uint32_t attempts = 3) {
  CoordinatorOptions options = test::core_options();
  options.retry_pure = true;
  options.attempts_max = attempts;
  return options;
}

/// Killed, and its next incarnation has joined and loaded.
ActorId replace(CoreFixture& f, const ActorId& device) {
  f.exited(device);
  const ActorId next{device.name, device.incarnation + 1};
  REQUIRE(f.join(Role::kDevice, next));
  f.answer_loads();
  return next;
}

std::uint64_t retried(const CoreFixture& f) { return status_of(f)["counters"]["retried"].get<std::uint64_t>(); }

}  // namespace

TEST_CASE(
    "CO-7: a pure request whose device dies runs again on the next incarnation, and its caller sees one outcome") {
  CoreFixture f(retrying());
  f.bring_up();
  const ContentHash hash = f.load(test::chain_program(1), test::on("cpu0"));
  const RequestSeq request = f.submit(hash);
  const auto first = f.take<RunFragment>(f.cpu0);
  REQUIRE(first.size() == 1);
  const ActorId second = replace(f, f.cpu0);
  CHECK(f.take<Outcome>(f.client).empty());
  const auto again = f.take<RunFragment>(second);
  REQUIRE(again.size() == 1);
  CHECK(again[0].run == first[0].run);
  CHECK(again[0].attempt == 2);
  CHECK(again[0].inputs == first[0].inputs);
  CHECK(again[0].deadline_ms <= first[0].deadline_ms);
  f.finish(second, again[0], {CoreFixture::leased(second, 4)});
  const Outcome outcome = one_outcome(f, request);
  CHECK(outcome.status == OutcomeStatus::kOk);
  CHECK(outcome.quiesced);
  CHECK(retried(f) == 1);
  CHECK(status_of(f)["requests"]["running"] == 0);
}

TEST_CASE("CO-7: the other devices let go of the first attempt before the second one starts") {
  CoreFixture f(retrying());
  f.bring_up();
  test::GraphFixture g;
  const ValueId a = g.node("aten::relu", {g.input("x")}, "layer.0");
  g.output(a);
  g.output(g.node("aten::relu", {a}, "layer.1"));
  const ContentHash hash = f.load(g.program(), test::two_stage_placement());
  const RequestSeq request = f.submit(hash);
  const auto at0 = f.take<RunFragment>(f.cpu0);
  const auto at1 = f.take<RunFragment>(f.cpu1);
  f.finish(f.cpu0, at0[0], {CoreFixture::leased(f.cpu0, 3)});
  SECTION("the one that still runs is told to stop, and answers") {
    const ActorId second = replace(f, f.cpu0);
    CHECK(f.take<CancelRun>(f.cpu1).empty());  // nothing of it was pending on cpu0: it goes on
    f.finish(f.cpu1, at1[0], {CoreFixture::leased(f.cpu1, 5)});
    CHECK(one_outcome(f, request).status == OutcomeStatus::kOk);
    CHECK(retried(f) == 0);
  }
  SECTION("what the living one has made already is released") {
    const ActorId second = replace(f, f.cpu1);
    const auto released = f.take<ReleaseLeases>(f.cpu0);
    REQUIRE(released.size() == 1);
    CHECK(released[0].leases == std::vector<LeaseId>{3});
    const auto again0 = f.take<RunFragment>(f.cpu0);
    const auto again1 = f.take<RunFragment>(second);
    REQUIRE(again0.size() == 1);
    REQUIRE(again1.size() == 1);
    CHECK(again0[0].attempt == 2);
    CHECK(again1[0].attempt == 2);
    f.finish(second, again1[0], {CoreFixture::leased(second, 6)});
    f.finish(f.cpu0, again0[0], {CoreFixture::leased(f.cpu0, 7)});
    const Outcome outcome = one_outcome(f, request);
    CHECK(outcome.outputs[0] == CoreFixture::leased(f.cpu0, 7));
    CHECK(outcome.outputs[1] == CoreFixture::leased(second, 6));
  }
}

TEST_CASE("CO-7: a device that is still at the first attempt holds the second one up, until it answers") {
  CoreFixture f(retrying());
  f.bring_up();
  const ContentHash hash = f.load(test::two_stage_program(), test::two_stage_placement());
  const RequestSeq request = f.submit(hash);
  f.take<RunFragment>(f.cpu0);
  const auto at1 = f.take<RunFragment>(f.cpu1);
  const ActorId second = replace(f, f.cpu0);
  CHECK(f.take<CancelRun>(f.cpu1).size() == 1);
  CHECK(f.take<RunFragment>(second).empty());
  SECTION("its answer to the cancel, or a result that was faster, starts the next one") {
    const bool faster = GENERATE(false, true);
    if (faster) {
      f.finish(f.cpu1, at1[0], {CoreFixture::leased(f.cpu1, 8)});
      CHECK(f.take<ReleaseLeases>(f.cpu1).size() == 1);
    } else {
      f.finish(f.cpu1, at1[0], {}, Error(ErrorCode::kCancelled, "cancelled"));
    }
    CHECK(f.take<RunFragment>(second).size() == 1);
    const auto again = f.take<RunFragment>(f.cpu1);
    REQUIRE(again.size() == 1);
    f.finish(f.cpu1, at1[0], {CoreFixture::leased(f.cpu1, 9)});  // the first attempt's, once more: counts for nothing
    CHECK(f.take<Outcome>(f.client).empty());
    f.finish(f.cpu1, again[0], {CoreFixture::leased(f.cpu1, 10)});
  }
  SECTION("the caller may cancel meanwhile") {
    f.message(f.client, CancelRequest{request});
    Outcome outcome = one_outcome(f, request);
    CHECK(outcome.status == OutcomeStatus::kCancelled);
    CHECK_FALSE(outcome.quiesced);
    f.finish(f.cpu1, at1[0], {}, Error(ErrorCode::kCancelled, "cancelled"));
    CHECK(f.take<Quiesced>(f.client).size() == 1);
    CHECK(f.take<RunFragment>(second).empty());
  }
  SECTION("its deadline goes on") {
    f.wait(11s, {second, f.cpu1});
    CHECK(one_outcome(f, request).status == OutcomeStatus::kExpired);
  }
  SECTION("its own death counts as an answer and is no further attempt") {
    const ActorId other = replace(f, f.cpu1);
    CHECK(f.take<RunFragment>(second).at(0).attempt == 2);
    CHECK(f.take<RunFragment>(other).at(0).attempt == 2);
  }
  SECTION("a device that will not come back ends it") {
    f.exited(second, 9, -1);
    const Outcome outcome = one_outcome(f, request);
    CHECK(outcome.error->code == ErrorCode::kActorUnavailable);
    CHECK(has(outcome.error->message, "cannot start"));
  }
  SECTION("so does the end of the cluster") {
    f.message(f.client, Operation{900, "shutdown", "{}"});
    CHECK(f.take<Outcome>(f.client).size() == 1);
  }
}

TEST_CASE("CO-7: the attempts are counted, and the last death is the error") {
  CoreFixture f(retrying(2));
  f.bring_up();
  const ContentHash hash = f.load(test::chain_program(1), test::on("cpu0"));
  const RequestSeq request = f.submit(hash);
  const ActorId second = replace(f, f.cpu0);
  REQUIRE(f.take<RunFragment>(second).size() == 1);
  f.exited(second, 11);
  const Outcome outcome = one_outcome(f, request);
  CHECK(outcome.error->code == ErrorCode::kActorDied);
  CHECK(has(outcome.error->message, "SIGSEGV"));
  CHECK(has(outcome.error->message, "its attempt 2"));
  CHECK(outcome.quiesced);
}

TEST_CASE("CO-7: a device that is given up ends its requests at once, whatever the attempts") {
  CoreFixture f(retrying());
  f.bring_up();
  const ContentHash hash = f.load(test::chain_program(1), test::on("cpu0"));
  const RequestSeq request = f.submit(hash);
  f.exited(f.cpu0, 9, -1);
  CHECK(one_outcome(f, request).error->code == ErrorCode::kActorDied);
  CHECK(retried(f) == 0);
}

TEST_CASE("CO-7: what runs again keeps its place before later requests of its client") {
  CoordinatorOptions options = retrying();
  options.runs_per_device = 2;
  CoreFixture f(options);
  f.bring_up();
  const ContentHash hash = f.load(test::chain_program(1), test::on("cpu0"));
  for (int i = 0; i < 4; ++i) f.submit(hash);
  const auto first = f.take<RunFragment>(f.cpu0);
  REQUIRE(first.size() == 2);
  const ActorId second = replace(f, f.cpu0);
  auto again = f.take<RunFragment>(second);
  REQUIRE(again.size() == 2);
  CHECK(again[0].run == first[0].run);
  CHECK(again[1].run == first[1].run);
  f.finish(second, again[0], {CoreFixture::leased(second, 1)});
  again = f.take<RunFragment>(second);
  REQUIRE(again.size() == 1);
  CHECK(again[0].run > first[1].run);
  CHECK(again[0].attempt == 1);
}

TEST_CASE("CO-7: a request error is never run again, nor is what is not pure") {
  CoreFixture f(retrying());
  f.bring_up();
  SECTION("an operator that fails") {
    const ContentHash hash = f.load(test::chain_program(1), test::on("cpu0"));
    const RequestSeq request = f.submit(hash);
    f.finish(f.cpu0, f.take<RunFragment>(f.cpu0).at(0), {}, Error(ErrorCode::kKernelFailed, "the root"));
    CHECK(one_outcome(f, request).error->code == ErrorCode::kKernelFailed);
  }
  SECTION("a program of which one fragment is not pure") {
    LoadProgram order;
    order.request = ++f.last_request;
    order.program = test::two_stage_program();
    order.placement = test::two_stage_placement();
    f.message(f.client, order);
    for (const ActorId& device : {f.cpu0, f.cpu1}) {
      for (const LoadFragment& load : f.take<LoadFragment>(device)) {
        FragmentLoaded answer;
        answer.program = load.fragment.program;
        answer.fragment = load.fragment.index;
        answer.pure = device == f.cpu0;
        f.message(device, answer);
      }
    }
    const RequestSeq request = f.submit(program_hash(order.program, order.placement));
    f.take<RunFragment>(f.cpu0);
    f.exited(f.cpu0);
    const Outcome outcome = one_outcome(f, request);
    CHECK(outcome.error->code == ErrorCode::kActorDied);
    CHECK(has(outcome.error->message, "it may have run, and does not run again by itself"));
  }
  CHECK(retried(f) == 0);
}

TEST_CASE("CO-7: a lost link alone starts nothing: the process may still read") {
  CoreFixture f(retrying());
  f.bring_up();
  const ContentHash hash = f.load(test::chain_program(1), test::on("cpu0"));
  const RequestSeq request = f.submit(hash);
  f.take<RunFragment>(f.cpu0);
  f.lose(f.cpu0);
  f.wait(1500ms, {f.cpu1});
  CHECK(f.take<Outcome>(f.client).empty());
  CHECK(f.take<StopActor>(f.node).size() == 1);
  const ActorId second = replace(f, f.cpu0);
  const auto again = f.take<RunFragment>(second);
  REQUIRE(again.size() == 1);
  f.finish(second, again[0], {CoreFixture::leased(second, 4)});
  CHECK(one_outcome(f, request).status == OutcomeStatus::kOk);
}

TEST_CASE("CO-7: an error that follows from the death does not end what runs again") {
  CoreFixture f(retrying());
  f.bring_up();
  const ContentHash hash = f.load(test::two_stage_program(), test::two_stage_placement());
  const RequestSeq request = f.submit(hash);
  f.take<RunFragment>(f.cpu0);
  f.finish(f.cpu1, f.take<RunFragment>(f.cpu1).at(0), {}, Error(ErrorCode::kTensorLost, "its segment is gone"));
  const ActorId second = replace(f, f.cpu0);
  CHECK(f.take<RunFragment>(second).size() == 1);
  const auto again = f.take<RunFragment>(f.cpu1);
  REQUIRE(again.size() == 1);
  SECTION("the suspicion of the first attempt is over with it") {
    f.wait(2s, {second, f.cpu1});
    CHECK(f.take<Outcome>(f.client).empty());
    f.finish(f.cpu1, again[0], {CoreFixture::leased(f.cpu1, 2)});
    CHECK(f.take<Outcome>(f.client).empty());  // cpu0 has not answered
  }
  SECTION("one of the second attempt waits its own time") {
    f.wait(750ms, {second, f.cpu1});
    f.finish(f.cpu1, again[0], {}, Error(ErrorCode::kTensorLost, "its segment is gone"));
    f.wait(500ms, {second, f.cpu1});
    CHECK(f.take<Outcome>(f.client).empty());
    f.wait(500ms, {second, f.cpu1});
    CHECK(one_outcome(f, request).error->code == ErrorCode::kTensorLost);
  }
}

TEST_CASE("CO-7: a client that goes takes along what would run again") {
  CoreFixture f(retrying());
  f.bring_up();
  const ContentHash hash = f.load(test::two_stage_program(), test::two_stage_placement());
  f.submit(hash);
  const auto at1 = f.take<RunFragment>(f.cpu1);
  const ActorId second = replace(f, f.cpu0);
  f.lose(f.client);
  f.finish(f.cpu1, at1[0], {}, Error(ErrorCode::kCancelled, "cancelled"));
  CHECK(f.take<RunFragment>(second).empty());
  CHECK(status_of(f)["requests"]["running"] == 0);
  CHECK(status_of(f)["programs"].empty());
}

}  // namespace callboard::actors
