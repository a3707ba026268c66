#include "actors/client/future_state.h"

#include <algorithm>

namespace callboard::actors {

bool FutureState::wait_until(TimePoint until) const {
  if (value_.is_set()) return true;
  if (const auto host = host_.lock()) host->wait(value_, until);
  return value_.wait_until(until);
}

bool FutureState::wait_for(Duration wait) const {
  if (wait_until(std::min(after(Clock::now(), wait), give_up_))) return true;
  if (Clock::now() < give_up_) return false;
  expire();
  return true;
}

FutureValue FutureState::get() {
  if (!wait_until(give_up_)) expire();
  return value_.value();
}

void FutureState::expire() const {
  value_.set(
      fail(ErrorCode::kDeadlineExceeded, "the client itself did not answer by the request's deadline",
           "its loop thread is blocked: an on_ready or on_actor_event callback that waits, or a stopped process"));
}

void FutureState::cancel() {
  if (is_ready()) return;
  if (const auto host = host_.lock()) host->cancel(shared_from_this());
}

}  // namespace callboard::actors
