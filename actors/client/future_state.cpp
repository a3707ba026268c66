#include "actors/client/future_state.h"

#include <algorithm>

namespace callboard::actors {

bool FutureState::wait_for(Duration wait) const {
  // Beyond give_up_ there is nothing to wait for.
  return value_.wait_until(std::min(after(Clock::now(), wait), after(give_up_, std::chrono::seconds(1)))) || is_ready();
}

FutureValue FutureState::get() {
  if (!value_.wait_until(give_up_)) {
    value_.set(fail(ErrorCode::kDeadlineExceeded, "the client itself did not answer by the request's deadline",
                    "its loop thread is blocked: an on_ready or on_actor_event callback that waits, or a stopped process"));
  }
  return value_.value();
}

void FutureState::cancel() {
  if (!is_ready()) cancel_(shared_from_this());
}

}  // namespace callboard::actors
