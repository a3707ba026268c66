// Who is blamed when a device's process ends by itself, and what becomes of it.
#include "actors/coordinator/quarantine.h"

#include <cctype>
#include <csignal>

#include "tests/actors/coordinator/core_fixture.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

using test::CoreFixture;
using test::has;
using test::one_outcome;
using test::status_of;

CoordinatorOptions watching(bool retry) {
  CoordinatorOptions options = test::core_options(1);
  options.retry_pure = retry;
  options.attempts_max = 20;
  return options;
}

struct Cluster : CoreFixture {
  explicit Cluster(bool retry = true) : CoreFixture(watching(retry)) {
    bring_up(1);
    here = cpu0;
  }
  /// The device's process ends, and the next one is there.
  void end(int signal, const std::string& said = {}) {
    exited(here, signal, 200, said);
    here.incarnation += 1;
    REQUIRE(join(Role::kDevice, here));
    answer_loads();
  }
  std::vector<RunFragment> orders() { return take<RunFragment>(here); }
  ActorId here;
};

ContentHash hash_of(int number) { return ContentHash::of(&number, sizeof number); }

ProgramGraph named(const std::string& name) { return test::chain_program(1, name); }

}  // namespace

TEST_CASE("a program that crashes its device twice, alone, is quarantined; others go on") {
  const bool retry = GENERATE(true, false);
  Cluster f(retry);
  const ContentHash bad = f.load(named("bad"), test::on("cpu0"));
  const ContentHash good = f.load(named("good"), test::on("cpu0"));
  RequestSeq request = f.submit(bad);
  f.end(SIGSEGV);
  if (!retry) {
    CHECK(one_outcome(f, request).error->code == ErrorCode::kActorDied);
    request = f.submit(bad);
  }
  REQUIRE(f.orders().size() == 1);
  f.end(SIGABRT);
  const Outcome outcome = one_outcome(f, request);
  CHECK(outcome.error->code == ErrorCode::kQuarantined);
  CHECK(has(outcome.error->message, "'bad' (on cpu0) is quarantined"));
  CHECK(has(outcome.error->causes.at(0).message, "SIGABRT"));
  CHECK(f.orders().empty());
  f.submit(bad);
  CHECK(f.take<Outcome>(f.client).at(0).error->code == ErrorCode::kQuarantined);
  f.submit(good);
  const auto orders = f.orders();
  REQUIRE(orders.size() == 1);
  f.finish(f.here, orders[0], {CoreFixture::leased(f.here, 1)});
  CHECK(f.take<Outcome>(f.client).at(0).status == OutcomeStatus::kOk);
}

TEST_CASE("an exit is charged, with whatever status") {
  Cluster f;
  const RequestSeq request = f.submit(f.load(named("leaves"), test::on("cpu0")));
  f.end(0);
  f.end(0);
  CHECK(one_outcome(f, request).error->code == ErrorCode::kQuarantined);
}

TEST_CASE("a kill from outside is never charged, however often") {
  Cluster f;
  const ContentHash hash = f.load(named("victim"), test::on("cpu0"));
  const RequestSeq request = f.submit(hash);
  for (const int signal : {SIGKILL, SIGTERM, SIGKILL, SIGINT, SIGKILL}) {
    REQUIRE(f.orders().size() == 1);
    f.end(signal);
  }
  // A crash's signal that somebody sent, as the process's own report says it.
  for (int i = 0; i < 3; ++i) {
    REQUIRE(f.orders().size() == 1);
    f.end(SIGSEGV, "\ncrash: SIGSEGV sent by process 77; the thread was in:\nlibc.so.6(+0x1)[0x1]");
  }
  const auto orders = f.orders();
  REQUIRE(orders.size() == 1);
  f.finish(f.here, orders[0], {CoreFixture::leased(f.here, 1)});
  CHECK(one_outcome(f, request).status == OutcomeStatus::kOk);
}

TEST_CASE("nobody is blamed among several; they run one after the other until it is clear") {
  Cluster f;
  const ContentHash good = f.load(named("good"), test::on("cpu0"));
  const ContentHash bad = f.load(named("bad"), test::on("cpu0"));
  const RequestSeq first = f.submit(good);
  const RequestSeq second = f.submit(bad);
  const RequestSeq third = f.submit(good);
  REQUIRE(f.orders().size() == 3);
  f.end(SIGSEGV);
  const RequestSeq fourth = f.submit(good);  // it was not there, and waits behind those who were

  auto orders = f.orders();
  REQUIRE(orders.size() == 1);
  CHECK(orders[0].program == good);
  f.finish(f.here, orders[0], {CoreFixture::leased(f.here, 1)});
  CHECK(one_outcome(f, first).status == OutcomeStatus::kOk);

  for (int death = 0; death < 2; ++death) {
    orders = f.orders();
    REQUIRE(orders.size() == 1);
    CHECK(orders[0].program == bad);
    f.end(SIGSEGV);
  }
  CHECK(one_outcome(f, second).error->code == ErrorCode::kQuarantined);

  orders = f.orders();
  REQUIRE(orders.size() == 1);
  f.finish(f.here, orders[0], {CoreFixture::leased(f.here, 2)});
  CHECK(one_outcome(f, third).status == OutcomeStatus::kOk);
  orders = f.orders();
  REQUIRE(orders.size() == 1);
  f.finish(f.here, orders[0], {CoreFixture::leased(f.here, 3)});
  CHECK(one_outcome(f, fourth).status == OutcomeStatus::kOk);
  CHECK(status_of(f)["requests"]["running"] == 0);
}

TEST_CASE("one of those who run alone may be cancelled, and nobody waits for it") {
  Cluster f;
  const ContentHash hash = f.load(named("p"), test::on("cpu0"));
  const RequestSeq first = f.submit(hash);
  const RequestSeq second = f.submit(hash);
  REQUIRE(f.orders().size() == 2);
  f.end(SIGSEGV);
  SECTION("while it runs") {
    const auto orders = f.orders();
    REQUIRE(orders.size() == 1);
    f.message(f.client, CancelRequest{first});
    CHECK(f.orders().empty());  // it may still be there
    f.finish(f.here, orders[0], {}, Error(ErrorCode::kCancelled, "cancelled"));
    CHECK(f.orders().size() == 1);
  }
  SECTION("while it waits") {
    const auto orders = f.orders();
    f.message(f.client, CancelRequest{second});
    const RequestSeq third = f.submit(hash);
    CHECK(f.orders().empty());
    f.finish(f.here, orders.at(0), {CoreFixture::leased(f.here, 1)});
    CHECK(f.orders().size() == 1);
    CHECK(third != 0);
  }
}

TEST_CASE("a success in between clears a program, a release takes it out of quarantine") {
  Cluster f;
  const ContentHash hash = f.load(named("flaky"), test::on("cpu0"));
  for (int round = 0; round < 3; ++round) {
    const RequestSeq request = f.submit(hash);
    REQUIRE(f.orders().size() == 1);
    f.end(SIGSEGV);
    const auto orders = f.orders();
    REQUIRE(orders.size() == 1);
    f.finish(f.here, orders[0], {CoreFixture::leased(f.here, 1)});
    CHECK(one_outcome(f, request).status == OutcomeStatus::kOk);
  }
  f.submit(hash);
  f.end(SIGSEGV);
  f.end(SIGSEGV);
  CHECK(f.take<Outcome>(f.client).at(0).error->code == ErrorCode::kQuarantined);
  const auto ask = [&](const std::string& name, const nlohmann::json& arguments) {
    f.message(f.client, Operation{++f.last_request, name, arguments.dump()});
    return f.take<OperationResult>(f.client).at(0);
  };
  const auto listed = nlohmann::json::parse(ask("quarantine", nlohmann::json::object()).result)["quarantine"];
  REQUIRE(listed.size() == 1);
  CHECK(listed[0]["name"] == "flaky");
  CHECK(listed[0]["quarantined"] == true);
  CHECK(listed[0]["devices"] == "cpu0");
  CHECK(has(ask("quarantine_release", {{"program", ""}}).error->message, "a program's hash is needed"));
  CHECK(ask("quarantine_release", {{"program", "zz"}}).error->code == ErrorCode::kUsage);
  std::string upper = hash.hex().substr(0, 8);
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  CHECK_FALSE(ask("quarantine_release", {{"program", upper}}).error);
  f.submit(hash);
  CHECK(f.orders().size() == 1);
}

TEST_CASE("incidents are bounded: the oldest is forgotten") {
  Quarantine quarantine;
  Program program;
  for (int i = 0; i < 300; ++i) {
    program.hash = hash_of(i);
    CHECK_FALSE(quarantine.charge(program, "cpu0", Error(ErrorCode::kActorDied, "once")));
  }
  CHECK(quarantine.all().size() == 256);
  CHECK(quarantine.all().count(hash_of(0)) == 0);
  CHECK(quarantine.charge(program, "cpu0", Error(ErrorCode::kActorDied, "twice")));
}

}  // namespace callboard::actors
