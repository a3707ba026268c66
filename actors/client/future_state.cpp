#include "actors/client/future_state.h"

#include <algorithm>

namespace callboard::actors {

bool FutureState::wait_for(Duration wait) const {
  if (value_.wait_until(std::min(after(Clock::now(), wait), give_up_))) return true;
  if (Clock::now() < give_up_) return false;
  expire();
  return true;
}

FutureValue FutureState::get() {
  if (!value_.wait_until(give_up_)) expire();
  return value_.value();
}

void FutureState::expire() const {
  value_.set(
      fail(ErrorCode::kDeadlineExceeded, "the client itself did not answer by the request's deadline",
           "its loop thread is blocked: an on_ready or on_actor_event callback that waits, or a stopped process"));
}

void FutureState::cancel() {
  if (!is_ready()) cancel_(shared_from_this());
}

}  // namespace callboard::actors
