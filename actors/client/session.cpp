#include "actors/client/session.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "messages/limits.h"

namespace callboard::actors {
namespace {

/// What a request waits for. A submit may be over for the caller while devices still read its inputs.
enum class Waiting : std::uint8_t {
  kOutcome,   ///< nothing has come
  kQuiesced,  ///< the caller has the outcome; the inputs are in use
  kBoth,      ///< the caller was told "expired" by us; outcome and inputs are outstanding
  kProgram,   ///< ProgramLoaded
  kAnswer,    ///< OperationResult
};

struct Request {
  Waiting waiting = Waiting::kOutcome;
  TimePoint give_up = kNever;
  bool quiesced = false;  ///< Quiesced overtook the Outcome
  bool cancelled = false;
  ContentHash program;  ///< of a submit
};

/// CS-3: the request that brought this error had been given up.
struct UntoldLoss {
  RequestSeq request = 0;
  Error error;
};

bool says_state_lost(const Outcome& outcome) { return outcome.error && outcome.error->code == ErrorCode::kStateLost; }

bool is_for_caller(Waiting waiting) { return waiting != Waiting::kQuiesced && waiting != Waiting::kBoth; }

Outcome failed_outcome(RequestSeq request, OutcomeStatus status, Error error) {
  Outcome outcome;
  outcome.request = request;
  outcome.status = status;
  outcome.error = std::move(error);
  return outcome;
}

Message failed_answer(RequestSeq request, Waiting waiting, Error error) {
  if (waiting == Waiting::kProgram) return ProgramLoaded{request, std::move(error), {}, {}};
  return OperationResult{request, std::move(error), {}};
}

Error loss_of(Error why) {
  if (why.code == ErrorCode::kCancelled || why.code == ErrorCode::kCoordinatorLost) return why;
  Error error(ErrorCode::kCoordinatorLost, "the connection to the coordinator was lost: " + why.message,
              "see `callboard status` and `callboard logs`; connect again once the cluster is up");
  error.causes.push_back(std::move(why));
  return error;
}

/// The coordinator beats several times a second; so long a silence means that it stands still.
constexpr Duration kSilence = limits::kDeadAfter;

Error late_error(RequestSeq request, Duration silence) {
  if (silence >= kSilence) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(silence).count();
    return Error(ErrorCode::kDeadlineExceeded,
                 "request " + std::to_string(request) +
                     " had no answer by its deadline: the coordinator has not been "
                     "heard of for " +
                     std::to_string(seconds) + " s; its process is stopped, or gets no processor time",
                 "look at the process (`callboard status` names it); a longer deadline does not help");
  }
  return Error(ErrorCode::kDeadlineExceeded,
               "request " + std::to_string(request) + " had no answer by its deadline, nor shortly after it",
               "give a longer deadline, or see `callboard status` for what the devices are doing");
}

class SessionImpl final : public Session {
 public:
  RequestSeq next_request() override { return ++last_request_; }

  Actions submit(Submit message, TimePoint deadline, TimePoint now) override {
    if (message.request == 0) message.request = next_request();
    const RequestSeq request = message.request;
    if (lost_) return ended_unsent(request, lost_status(), *lost_);
    if (auto loss = take_untold(message.program)) {
      return ended_unsent(request, OutcomeStatus::kFailed, std::move(*loss));
    }
    message.deadline_ms = wire_deadline(deadline, now);
    deadline = std::min(deadline, after(now, limits::kRequestDeadlineMax));
    remember(request, Waiting::kOutcome, deadline);
    requests_[request].program = message.program;
    Actions actions;
    actions.push_back(SendOut{std::move(message)});
    return actions;
  }

  Actions ask(Message message, RequestSeq request, TimePoint deadline) override {
    Actions actions;
    std::optional<Waiting> waiting;
    if (auto* load = std::get_if<LoadProgram>(&message)) {
      load->request = request;
      waiting = Waiting::kProgram;
    } else if (auto* operation = std::get_if<Operation>(&message)) {
      operation->request = request;
      waiting = Waiting::kAnswer;
    } else if (auto* unload = std::get_if<UnloadProgram>(&message)) {
      unload->request = request;
    }
    if (lost_) {
      if (waiting) actions.push_back(Answered{request, failed_answer(request, *waiting, *lost_)});
      return actions;
    }
    if (waiting) remember(request, *waiting, deadline);
    actions.push_back(SendOut{std::move(message)});
    return actions;
  }

  Actions cancel(RequestSeq request) override {
    const auto found = requests_.find(request);
    if (found == requests_.end() || found->second.waiting != Waiting::kOutcome || found->second.cancelled) return {};
    found->second.cancelled = true;
    Actions actions;
    actions.push_back(SendOut{CancelRequest{request}});
    return actions;
  }

  Actions step(Event event, TimePoint now) override {
    if (auto* from = std::get_if<FromCoordinator>(&event)) {
      heard_at_ = now;
      return on_message(std::move(from->message));
    }
    if (auto* lost = std::get_if<Lost>(&event)) return on_lost(std::move(lost->why));
    return on_tick(now);
  }

  TimePoint next_tick() const override { return timers_.empty() ? kNever : timers_.begin()->first; }
  std::size_t pending() const override { return requests_.size(); }

 private:
  using Requests = std::map<RequestSeq, Request>;

  OutcomeStatus lost_status() const {
    return lost_->code == ErrorCode::kCancelled ? OutcomeStatus::kCancelled : OutcomeStatus::kFailed;
  }

  void remember(RequestSeq request, Waiting waiting, TimePoint deadline) {
    const TimePoint give_up = after(deadline, kGiveUpAfter);
    requests_[request] = Request{waiting, give_up, false, false, {}};
    timers_.emplace(give_up, request);
  }

  /// The caller of this request waits no longer.
  void end_timer(RequestSeq request, const Request& entry) { timers_.erase({entry.give_up, request}); }

  Actions on_message(Message message) {
    Actions actions;
    if (auto* outcome = std::get_if<Outcome>(&message)) {
      on_outcome(std::move(*outcome), actions);
    } else if (auto* quiesced = std::get_if<Quiesced>(&message)) {
      on_quiesced(quiesced->request, actions);
    } else if (auto* loaded = std::get_if<ProgramLoaded>(&message)) {
      const RequestSeq request = loaded->request;
      const bool useful = !loaded->error;
      on_answer(request, Waiting::kProgram, useful, std::move(message), actions);
    } else if (auto* result = std::get_if<OperationResult>(&message)) {
      const RequestSeq request = result->request;
      on_answer(request, Waiting::kAnswer, false, std::move(message), actions);
    } else if (auto* event = std::get_if<ActorEvent>(&message)) {
      actions.push_back(Notify{std::move(*event)});
    }
    return actions;
  }

  // kOutcome  -> gone       the outcome says quiesced, or Quiesced came before it: Completed, InputsFree
  //           -> kQuiesced  devices still read: Completed now, InputsFree with Quiesced
  //           -> kBoth      give-up time reached (on_tick): Completed as expired, CancelRequest
  // kBoth     -> kQuiesced | gone   the outcome comes after all: its values are discarded
  void on_outcome(Outcome outcome, Actions& actions) {
    const RequestSeq request = outcome.request;
    const auto found = requests_.find(request);
    if (found == requests_.end() || found->second.waiting == Waiting::kQuiesced) {
      // A second outcome of a request that we numbered is the same one again (P2): its leases are the caller's by now.
      const bool repeated = !lost_ && request != 0 && request <= last_request_;
      if (!repeated) discard(std::move(outcome.outputs), actions);
      return;
    }
    Request& entry = found->second;
    if (entry.waiting == Waiting::kProgram || entry.waiting == Waiting::kAnswer) {
      discard(std::move(outcome.outputs), actions);
      return;
    }
    const bool free = outcome.quiesced || entry.quiesced;
    if (entry.waiting == Waiting::kOutcome) {
      end_timer(request, entry);
      if (says_state_lost(outcome)) untold_.erase(entry.program);
      tell_instead_of_results(entry.program, outcome, actions);
      actions.push_back(Completed{request, std::move(outcome)});
    } else {
      if (says_state_lost(outcome)) untold_[entry.program] = UntoldLoss{request, std::move(*outcome.error)};
      discard(std::move(outcome.outputs), actions);
    }
    entry.waiting = Waiting::kQuiesced;
    if (free) free_inputs(found, actions);
  }

  void on_quiesced(RequestSeq request, Actions& actions) {
    const auto found = requests_.find(request);
    if (found == requests_.end()) return;
    if (found->second.waiting == Waiting::kQuiesced) {
      free_inputs(found, actions);
    } else {
      found->second.quiesced = true;
    }
  }

  void on_answer(RequestSeq request, Waiting expected, bool tell_late, Message message, Actions& actions) {
    const auto found = requests_.find(request);
    if (found != requests_.end() && found->second.waiting == expected) {
      end_timer(request, found->second);
      requests_.erase(found);
      actions.push_back(Answered{request, std::move(message), false});
    } else if (tell_late) {
      actions.push_back(Answered{request, std::move(message), true});
    }
  }

  Actions on_lost(Error why) {
    Actions actions;
    if (lost_) return actions;
    lost_ = loss_of(std::move(why));
    for (const auto& [request, entry] : requests_) {
      if (entry.waiting == Waiting::kProgram || entry.waiting == Waiting::kAnswer) {
        actions.push_back(Answered{request, failed_answer(request, entry.waiting, *lost_), false});
        continue;
      }
      if (is_for_caller(entry.waiting)) {
        actions.push_back(Completed{request, failed_outcome(request, lost_status(), *lost_)});
      }
      actions.push_back(InputsFree{request});
    }
    requests_.clear();
    timers_.clear();
    return actions;
  }

  Actions on_tick(TimePoint now) {
    Actions actions;
    const Duration silence = heard_at_ == kNever ? Duration::zero() : now - heard_at_;
    while (!timers_.empty() && timers_.begin()->first <= now) {
      const RequestSeq request = timers_.begin()->second;
      timers_.erase(timers_.begin());
      const auto found = requests_.find(request);
      if (found == requests_.end()) continue;
      Request& entry = found->second;
      if (entry.waiting == Waiting::kOutcome) {
        entry.waiting = Waiting::kBoth;
        actions.push_back(
            Completed{request, failed_outcome(request, OutcomeStatus::kExpired, late_error(request, silence))});
        if (!entry.cancelled) actions.push_back(SendOut{CancelRequest{request}});
        entry.cancelled = true;
      } else {
        actions.push_back(
            Answered{request, failed_answer(request, entry.waiting, late_error(request, silence)), false});
        requests_.erase(found);
      }
    }
    return actions;
  }

  void free_inputs(Requests::iterator found, Actions& actions) {
    actions.push_back(InputsFree{found->first});
    requests_.erase(found);
  }

  static Actions ended_unsent(RequestSeq request, OutcomeStatus status, Error error) {
    Actions actions;
    actions.push_back(Completed{request, failed_outcome(request, status, std::move(error))});
    actions.push_back(InputsFree{request});
    return actions;
  }

  // -- CS-3. The coordinator tells a loss of state once, before anything that ran on the new state.

  /// For a request that is not sent, unless one that may run on the new state is under way already: that one tells it.
  std::optional<Error> take_untold(const ContentHash& program) {
    const auto loss = untold_.find(program);
    if (loss == untold_.end()) return std::nullopt;
    const bool others = std::any_of(requests_.upper_bound(loss->second.request), requests_.end(), [&](const auto& one) {
      return one.second.waiting == Waiting::kOutcome && one.second.program == program;
    });
    if (others) return std::nullopt;
    Error error = std::move(loss->second.error);
    untold_.erase(loss);
    return error;
  }

  void tell_instead_of_results(const ContentHash& program, Outcome& outcome, Actions& actions) {
    const auto loss = untold_.find(program);
    const bool shows_new_state =
        loss != untold_.end() && outcome.status == OutcomeStatus::kOk && outcome.request > loss->second.request;
    if (!shows_new_state) return;
    discard(std::exchange(outcome.outputs, {}), actions);
    outcome.status = OutcomeStatus::kFailed;
    outcome.error = std::move(loss->second.error);
    outcome.error->hint = "request " + std::to_string(loss->second.request) +
                          ", which was to say so, had been given up; this request ran on the new state, its results "
                          "are dropped";
    untold_.erase(loss);
  }

  static void discard(std::vector<WireValue> values, Actions& actions) {
    if (!values.empty()) actions.push_back(Discard{std::move(values)});
  }

  RequestSeq last_request_ = 0;
  TimePoint heard_at_ = kNever;  // when the coordinator last said something, a beat included
  Requests requests_;
  std::set<std::pair<TimePoint, RequestSeq>> timers_;  // of those whose caller waits
  std::optional<Error> lost_;
  std::map<ContentHash, UntoldLoss> untold_;
};

}  // namespace

std::int64_t wire_deadline(TimePoint deadline, TimePoint now) {
  if (deadline == kNever) return 0;
  return std::max<std::int64_t>(std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count(), 1);
}

std::unique_ptr<Session> Session::create() { return std::make_unique<SessionImpl>(); }

}  // namespace callboard::actors
