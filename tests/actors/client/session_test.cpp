#include "actors/client/session.h"

#include <map>
#include <set>

#include "messages/limits.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::actors;
using namespace std::chrono_literals;

namespace {

const TimePoint kStart{};

template <class T>
std::vector<T> all(const Session::Actions& actions) {
  std::vector<T> found;
  for (const auto& action : actions) {
    if (const auto* one = std::get_if<T>(&action)) found.push_back(*one);
  }
  return found;
}

template <class T>
T only(const Session::Actions& actions) {
  REQUIRE(actions.size() == 1);
  REQUIRE(std::holds_alternative<T>(actions.front()));
  return std::get<T>(actions.front());
}

Session::Actions receive(Session& session, Message message, TimePoint now = kStart) {
  return session.step(Session::FromCoordinator{std::move(message)}, now);
}

RequestSeq submit(Session& session, Duration deadline = 10s) {
  const auto sent = only<Session::SendOut>(session.submit({}, kStart + deadline, kStart));
  return std::get<Submit>(sent.message).request;
}

const ContentHash kCounter = ContentHash::of("counter", 7);

RequestSeq submit_to(Session& session, const ContentHash& program, Duration deadline = 10s) {
  Submit order;
  order.program = program;
  const auto sent = only<Session::SendOut>(session.submit(std::move(order), kStart + deadline, kStart));
  return std::get<Submit>(sent.message).request;
}

Outcome state_lost(RequestSeq request) {
  Outcome outcome;
  outcome.request = request;
  outcome.status = OutcomeStatus::kFailed;
  outcome.error = Error(ErrorCode::kStateLost, "the state of program 'counter' was lost", "this request did not run");
  return outcome;
}

Outcome ok(RequestSeq request, bool quiesced = true) {
  Outcome outcome;
  outcome.request = request;
  outcome.outputs = {WireValue(std::int64_t{7})};
  outcome.quiesced = quiesced;
  return outcome;
}

}  // namespace

TEST_CASE("a request is numbered from one and sent with the time that is left", "[session]") {
  auto session = Session::create();
  auto actions = session->submit({}, kStart + 1500us, kStart);
  auto first = std::get<Submit>(only<Session::SendOut>(actions).message);
  CHECK(first.request == 1);
  CHECK(first.deadline_ms == 2);
  actions = session->submit({}, kNever, kStart);
  auto second = std::get<Submit>(only<Session::SendOut>(actions).message);
  CHECK(second.request == 2);
  CHECK(second.deadline_ms == 0);  // the coordinator's own
  actions = session->submit({}, kStart - 1s, kStart);
  CHECK(std::get<Submit>(only<Session::SendOut>(actions).message).deadline_ms == 1);
  CHECK(session->pending() == 3);
}

TEST_CASE("CS-1: an outcome completes its request once, and only that one", "[session]") {
  auto session = Session::create();
  const RequestSeq first = submit(*session);
  const RequestSeq second = submit(*session);
  auto actions = receive(*session, ok(second));
  auto completed = all<Session::Completed>(actions);
  REQUIRE(completed.size() == 1);
  CHECK(completed[0].request == second);
  CHECK(completed[0].outcome.outputs == std::vector<WireValue>{WireValue(std::int64_t{7})});
  CHECK(all<Session::InputsFree>(actions).size() == 1);
  CHECK(session->pending() == 1);
  CHECK(receive(*session, ok(second)).empty());
  CHECK(all<Session::Completed>(receive(*session, ok(first))).size() == 1);
  CHECK(session->pending() == 0);
  CHECK(session->next_tick() == kNever);
}

TEST_CASE("CS-2: inputs stay until the request is quiesced", "[session]") {
  auto session = Session::create();
  const RequestSeq request = submit(*session);
  auto actions = receive(*session, ok(request, false));
  CHECK(all<Session::Completed>(actions).size() == 1);
  CHECK(all<Session::InputsFree>(actions).empty());
  CHECK(session->pending() == 1);
  CHECK(session->step(Session::Tick{}, kStart + 1h).empty());
  CHECK(only<Session::InputsFree>(receive(*session, Quiesced{request})).request == request);
  CHECK(session->pending() == 0);
}

TEST_CASE("CS-2: a Quiesced that comes before its outcome counts", "[session]") {
  auto session = Session::create();
  const RequestSeq request = submit(*session);
  CHECK(receive(*session, Quiesced{request}).empty());
  CHECK(all<Session::InputsFree>(receive(*session, ok(request, false))).size() == 1);
}

TEST_CASE("CS-1: a request without an answer expires a fixed time after its deadline, its inputs stay", "[session]") {
  auto session = Session::create();
  const RequestSeq request = submit(*session, 10s);
  const TimePoint due = kStart + 10s + Session::kGiveUpAfter;
  CHECK(session->next_tick() == due);
  CHECK(session->step(Session::Tick{}, due - 1ns).empty());
  auto actions = session->step(Session::Tick{}, due);
  auto completed = all<Session::Completed>(actions);
  REQUIRE(completed.size() == 1);
  CHECK(completed[0].outcome.status == OutcomeStatus::kExpired);
  REQUIRE(completed[0].outcome.error);
  CHECK(completed[0].outcome.error->code == ErrorCode::kDeadlineExceeded);
  CHECK(all<Session::InputsFree>(actions).empty());
  auto sent = all<Session::SendOut>(actions);
  REQUIRE(sent.size() == 1);
  CHECK(std::get<CancelRequest>(sent[0].message).request == request);
  CHECK(session->next_tick() == kNever);

  SECTION("the outcome that comes after all is discarded, and frees the inputs") {
    actions = receive(*session, ok(request));
    CHECK(all<Session::Completed>(actions).empty());
    CHECK(all<Session::Discard>(actions).size() == 1);
    CHECK(all<Session::InputsFree>(actions).size() == 1);
  }
  SECTION("the outcome comes unquiesced: two steps") {
    actions = receive(*session, ok(request, false));
    CHECK(only<Session::Discard>(actions).values.size() == 1);
    CHECK(only<Session::InputsFree>(receive(*session, Quiesced{request})).request == request);
  }
  SECTION("the coordinator is lost: the inputs are free, nothing completes twice") {
    actions = session->step(Session::Lost{Error(ErrorCode::kPeerLost, "gone")}, due);
    CHECK(only<Session::InputsFree>(actions).request == request);
  }
}

TEST_CASE("a request that gets no answer says so where the coordinator itself is silent", "[session]") {
  auto session = Session::create();
  session->step(Session::FromCoordinator{Beat{}}, kStart);
  session->submit(Submit{}, kStart + 10s, kStart);
  const bool beating = GENERATE(true, false);
  if (beating) session->step(Session::FromCoordinator{Beat{}}, kStart + 11s);
  const auto actions = session->step(Session::Tick{}, kStart + 10s + Session::kGiveUpAfter);
  const auto completed = all<Session::Completed>(actions);
  REQUIRE(completed.size() == 1);
  REQUIRE(completed[0].outcome.error);
  CHECK(completed[0].outcome.error->code == ErrorCode::kDeadlineExceeded);
  const bool blames = completed[0].outcome.error->message.find("has not been heard of for 12 s") != std::string::npos;
  CHECK(blames != beating);
}

TEST_CASE("CS-1: the loss of the coordinator ends everything at once and every later request too", "[session]") {
  auto session = Session::create();
  const RequestSeq request = submit(*session);
  const RequestSeq load = session->next_request();
  session->ask(LoadProgram{}, load, kNever);
  const RequestSeq question = session->next_request();
  session->ask(Operation{0, "status", "{}"}, question, kNever);
  auto actions = session->step(Session::Lost{Error(ErrorCode::kPeerLost, "no answer")}, kStart);
  auto completed = all<Session::Completed>(actions);
  REQUIRE(completed.size() == 1);
  CHECK(completed[0].request == request);
  CHECK(completed[0].outcome.status == OutcomeStatus::kFailed);
  CHECK(completed[0].outcome.error->code == ErrorCode::kCoordinatorLost);
  CHECK(!completed[0].outcome.error->hint.empty());
  REQUIRE(completed[0].outcome.error->causes.size() == 1);
  CHECK(completed[0].outcome.error->causes[0].code == ErrorCode::kPeerLost);
  auto answered = all<Session::Answered>(actions);
  REQUIRE(answered.size() == 2);
  CHECK(std::get<ProgramLoaded>(answered[0].message).error->code == ErrorCode::kCoordinatorLost);
  CHECK(std::get<OperationResult>(answered[1].message).error->code == ErrorCode::kCoordinatorLost);
  CHECK(session->pending() == 0);

  actions = session->submit({}, kStart + 1s, kStart);
  CHECK(all<Session::SendOut>(actions).empty());
  CHECK(all<Session::Completed>(actions).at(0).outcome.error->code == ErrorCode::kCoordinatorLost);
  CHECK(all<Session::InputsFree>(actions).size() == 1);
  actions = session->ask(Operation{0, "status", "{}"}, session->next_request(), kNever);
  CHECK(std::get<OperationResult>(only<Session::Answered>(actions).message).error);
  CHECK(session->step(Session::Lost{Error(ErrorCode::kPeerLost, "again")}, kStart).empty());
  CHECK(only<Session::Discard>(receive(*session, ok(request))).values.size() == 1);
}

TEST_CASE("a client that closes ends its requests as cancelled", "[session]") {
  auto session = Session::create();
  submit(*session);
  auto actions = session->step(Session::Lost{Error(ErrorCode::kCancelled, "closed")}, kStart);
  const auto completed = all<Session::Completed>(actions).at(0);
  CHECK(completed.outcome.status == OutcomeStatus::kCancelled);
  CHECK(completed.outcome.error->code == ErrorCode::kCancelled);
}

TEST_CASE("R39, CS-3: a notice of lost state whose request was given up is told by the next one, which is not sent",
          "[session]") {
  auto session = Session::create();
  const RequestSeq given_up = submit_to(*session, kCounter, 1s);
  session->step(Session::Tick{}, kStart + 1s + Session::kGiveUpAfter);
  CHECK(all<Session::Completed>(receive(*session, state_lost(given_up))).empty());
  submit_to(*session, ContentHash::of("another", 7));

  Submit order;
  order.program = kCounter;
  const auto actions = session->submit(order, kStart + 10s, kStart);
  CHECK(all<Session::SendOut>(actions).empty());
  CHECK(all<Session::InputsFree>(actions).size() == 1);
  const auto told = all<Session::Completed>(actions);
  REQUIRE(told.size() == 1);
  CHECK(told[0].outcome.status == OutcomeStatus::kFailed);
  CHECK(told[0].outcome.error == state_lost(given_up).error);

  const RequestSeq later = submit_to(*session, kCounter);
  CHECK(all<Session::Completed>(receive(*session, ok(later))).at(0).outcome.status == OutcomeStatus::kOk);
}

TEST_CASE("R39, CS-3: a notice of lost state whose request was given up comes before results of those behind it",
          "[session]") {
  auto session = Session::create();
  const RequestSeq before = submit_to(*session, kCounter);
  const RequestSeq given_up = submit_to(*session, kCounter, 1s);
  const RequestSeq cancelled = submit_to(*session, kCounter);
  const RequestSeq behind = submit_to(*session, kCounter);
  session->step(Session::Tick{}, kStart + 1s + Session::kGiveUpAfter);
  receive(*session, state_lost(given_up));
  const RequestSeq last = submit_to(*session, kCounter);

  // Its device had answered before the loss: it shows the old state.
  CHECK(all<Session::Completed>(receive(*session, ok(before))).at(0).outcome.status == OutcomeStatus::kOk);
  Outcome end;
  end.request = cancelled;
  end.status = OutcomeStatus::kCancelled;
  end.error = Error(ErrorCode::kCancelled, "cancelled");
  CHECK(all<Session::Completed>(receive(*session, end)).at(0).outcome == end);

  const auto actions = receive(*session, ok(behind, false));
  const auto told = all<Session::Completed>(actions);
  REQUIRE(told.size() == 1);
  CHECK(told[0].outcome.status == OutcomeStatus::kFailed);
  CHECK(told[0].outcome.error->code == ErrorCode::kStateLost);
  CHECK(told[0].outcome.error->hint.find("ran on the new state") != std::string::npos);
  CHECK(told[0].outcome.outputs.empty());
  CHECK(all<Session::Discard>(actions).at(0).values == ok(behind).outputs);
  CHECK(all<Session::InputsFree>(actions).empty());
  CHECK(all<Session::Completed>(receive(*session, ok(last))).at(0).outcome.status == OutcomeStatus::kOk);
}

TEST_CASE("R39, CS-3: a loss of state that a caller hears of is not told again", "[session]") {
  auto session = Session::create();
  const RequestSeq given_up = submit_to(*session, kCounter, 1s);
  const RequestSeq told = submit_to(*session, kCounter);
  session->step(Session::Tick{}, kStart + 1s + Session::kGiveUpAfter);
  receive(*session, state_lost(given_up));
  CHECK(all<Session::Completed>(receive(*session, state_lost(told))).size() == 1);
  const RequestSeq later = submit_to(*session, kCounter);
  CHECK(all<Session::Completed>(receive(*session, ok(later))).at(0).outcome.status == OutcomeStatus::kOk);
}

TEST_CASE("cancel is sent once, for requests that have no outcome", "[session]") {
  auto session = Session::create();
  const RequestSeq request = submit(*session);
  CHECK(std::get<CancelRequest>(only<Session::SendOut>(session->cancel(request)).message).request == request);
  CHECK(session->cancel(request).empty());
  CHECK(session->cancel(request + 1).empty());
  Outcome cancelled;
  cancelled.request = request;
  cancelled.status = OutcomeStatus::kCancelled;
  CHECK(all<Session::Completed>(receive(*session, cancelled)).size() == 1);
  CHECK(session->cancel(request).empty());
  const RequestSeq late = submit(*session);
  session->cancel(late);
  const auto actions = session->step(Session::Tick{}, kStart + 1h);
  CHECK(all<Session::SendOut>(actions).empty());
  CHECK(all<Session::Completed>(actions).size() == 1);
}

TEST_CASE("CS-1: a question ends by its answer, or after its deadline", "[session]") {
  auto session = Session::create();
  const RequestSeq first = session->next_request();
  auto sent = only<Session::SendOut>(session->ask(Operation{0, "status", "{}"}, first, kStart + 1s));
  CHECK(std::get<Operation>(sent.message).request == first);
  CHECK(only<Session::Answered>(receive(*session, OperationResult{first, {}, "{}"})).request == first);
  CHECK(receive(*session, OperationResult{first, {}, "{}"}).empty());

  const RequestSeq load = session->next_request();
  session->ask(LoadProgram{}, load, kStart + 1s);
  auto answered = only<Session::Answered>(session->step(Session::Tick{}, kStart + 1s + Session::kGiveUpAfter));
  CHECK(std::get<ProgramLoaded>(answered.message).error->code == ErrorCode::kDeadlineExceeded);
  CHECK(!answered.late);
  CHECK(session->pending() == 0);
  answered = only<Session::Answered>(
      receive(*session, ProgramLoaded{load, {}, *ContentHash::from_bytes(std::string(32, 'x')), {}}));
  CHECK(answered.late);
  CHECK(receive(*session, ProgramLoaded{load, Error(), {}, {}}).empty());
}

TEST_CASE("a message of no meaning to a client changes nothing", "[session]") {
  auto session = Session::create();
  const RequestSeq request = submit(*session);
  CHECK(receive(*session, Beat{}).empty());
  CHECK(receive(*session, Hello{}).empty());
  CHECK(receive(*session, Quiesced{99}).empty());
  CHECK(receive(*session, OperationResult{request, {}, ""}).empty());
  CHECK(session->pending() == 1);
  // Numbers that we never gave: their leases must not be lost.
  CHECK(only<Session::Discard>(receive(*session, ok(99))).values.size() == 1);
  CHECK(only<Session::Notify>(receive(*session, ActorEvent{{"cpu0", 2}, "down", {}})).event.who.name == "cpu0");
}

TEST_CASE("CS-1, CS-2: whatever comes in whatever order, each request completes once and frees its inputs once",
          "[session]") {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    unsigned state = seed * 2654435761u;
    const auto roll = [&](unsigned sides) {
      state = state * 1664525u + 1013904223u;
      return (state >> 16) % sides;
    };
    auto session = Session::create();
    TimePoint now = kStart;
    std::map<RequestSeq, int> completed, freed;
    std::set<RequestSeq> submitted;
    const auto take = [&](const Session::Actions& actions) {
      for (const auto& done : all<Session::Completed>(actions)) ++completed[done.request];
      for (const auto& free : all<Session::InputsFree>(actions)) {
        ++freed[free.request];
        CHECK(completed[free.request] == 1);
      }
    };
    for (int i = 0; i < 60; ++i) {
      now += std::chrono::milliseconds(roll(700));
      const RequestSeq some = 1 + roll(12);
      switch (roll(6)) {
        case 0:
        case 1:
          if (submitted.size() < 12) {
            const auto actions = session->submit({}, now + std::chrono::milliseconds(roll(3000)), now);
            submitted.insert(submitted.size() + 1);
            take(actions);
          }
          break;
        case 2:
          take(receive(*session, ok(some, roll(2) == 0), now));
          break;
        case 3:
          take(receive(*session, Quiesced{some}, now));
          break;
        case 4:
          take(session->cancel(some));
          break;
        default:
          take(session->step(Session::Tick{}, now));
          break;
      }
    }
    take(session->step(Session::Tick{}, now + 1h));
    for (const RequestSeq request : submitted) CHECK(completed[request] == 1);
    take(session->step(Session::Lost{Error(ErrorCode::kPeerLost, "end")}, now));
    for (const RequestSeq request : submitted) {
      CHECK(completed[request] == 1);
      CHECK(freed[request] == 1);
    }
    CHECK(completed.size() == submitted.size());
  }
}
