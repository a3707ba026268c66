// What a client remembers of its requests, without clock, sockets or threads. Pure.
//
//   CS-1  Every request ends: by its Outcome, or at the latest kDeadlineExceeded/kCoordinatorLost a fixed time after its
//         deadline or the loss of the coordinator.
//   CS-2  Inputs are handed back only when the request is quiesced (or the coordinator is lost).
#pragma once

#include <memory>
#include <variant>
#include <vector>

#include "messages/base/clock.h"
#include "messages/protocol.h"

namespace callboard::actors {

class Session {
 public:
  struct FromCoordinator { Message message; };
  struct Lost { Error why; };
  struct Tick {};
  using Event = std::variant<FromCoordinator, Lost, Tick>;

  struct SendOut { Message message; };
  struct Completed { RequestSeq request = 0; Outcome outcome; };          ///< the future's value
  struct Answered { RequestSeq request = 0; Message message; };           ///< ProgramLoaded, OperationResult
  struct InputsFree { RequestSeq request = 0; };                          ///< CS-2
  struct Notify { ActorEvent event; };
  struct Discard { std::vector<WireValue> values; };                      ///< results that nobody waits for: release them
  using Action = std::variant<SendOut, Completed, Answered, InputsFree, Notify, Discard>;
  using Actions = std::vector<Action>;

  virtual ~Session() = default;
  static std::unique_ptr<Session> create();

  /// Numbers a request and remembers it. The message's `request` and `deadline_ms` are filled in.
  virtual RequestSeq next_request() = 0;
  virtual Actions submit(Submit message, TimePoint deadline, TimePoint now) = 0;
  virtual Actions ask(Message load_or_operation, RequestSeq request, TimePoint deadline) = 0;
  virtual Actions cancel(RequestSeq request) = 0;
  virtual Actions step(Event event, TimePoint now) = 0;
  virtual TimePoint next_tick() const = 0;
  virtual std::size_t pending() const = 0;
};

}  // namespace callboard::actors
