// What a client remembers of its requests, without clock, sockets or threads. Pure.
//
//   CS-1  Every request ends: by its Outcome, or at the latest kDeadlineExceeded/kCoordinatorLost a fixed time after
//         its deadline or the loss of the coordinator.
//   CS-2  Inputs are handed back only when the request is quiesced (or the coordinator is lost).
//   CS-3  A caller hears of a loss of state (kStateLost) before any result that shows the new state, also where the
//         request that brought the word had been given up (CS-1). Then the next one of its program brings it: it is not
//         sent, or, if it ran already, its results are dropped.
#pragma once

#include <memory>
#include <variant>
#include <vector>

#include <boost/container/small_vector.hpp>

#include "messages/base/clock.h"
#include "messages/protocol.h"

namespace callboard::actors {

/// What a message says of a deadline: milliseconds left, at least 1; 0 for kNever, where the coordinator applies its
/// own.
std::int64_t wire_deadline(TimePoint deadline, TimePoint now);

class Session {
 public:
  struct FromCoordinator {
    Message message;
  };
  struct Lost {
    Error why;
  };
  struct Tick {};
  using Event = std::variant<FromCoordinator, Lost, Tick>;

  struct SendOut {
    Message message;
  };
  struct Completed {
    RequestSeq request = 0;
    Outcome outcome;
  };  ///< the future's value
  /// ProgramLoaded or OperationResult. `late`: nobody waits any more (a program that came too late is to be unloaded).
  struct Answered {
    RequestSeq request = 0;
    Message message;
    bool late = false;
  };
  struct InputsFree {
    RequestSeq request = 0;
  };  ///< CS-2
  struct Notify {
    ActorEvent event;
  };
  struct Discard {
    std::vector<WireValue> values;
  };  ///< results that nobody waits for: release them
  using Action = std::variant<SendOut, Completed, Answered, InputsFree, Notify, Discard>;
  using Actions = boost::container::small_vector<Action, 2>;  // an outcome is two of them: no allocation for it

  /// The coordinator ends a request at its deadline; its word gets so much longer to arrive (CS-1).
  static constexpr Duration kGiveUpAfter = std::chrono::seconds(2);

  virtual ~Session() = default;
  static std::unique_ptr<Session> create();

  virtual RequestSeq next_request() = 0;
  /// Remembers a request and sends it; `request` (where it is 0) and `deadline_ms` are filled in. A deadline later than
  /// kRequestDeadlineMax from now is that one; kNever leaves it to the coordinator. After Lost it completes at once
  /// with the loss.
  virtual Actions submit(Submit message, TimePoint deadline, TimePoint now) = 0;
  /// LoadProgram (with its `deadline_ms` set by the caller) or Operation; `request` is filled in. Any other message
  /// (UnloadProgram) is only sent.
  virtual Actions ask(Message load_or_operation, RequestSeq request, TimePoint deadline) = 0;
  virtual Actions cancel(RequestSeq request) = 0;
  /// Lost with the code kCancelled (this client closes) ends everything as cancelled; with any other code as
  /// kCoordinatorLost.
  virtual Actions step(Event event, TimePoint now) = 0;
  virtual TimePoint next_tick() const = 0;
  /// Requests without an end, or whose inputs are not free yet.
  virtual std::size_t pending() const = 0;
};

}  // namespace callboard::actors
