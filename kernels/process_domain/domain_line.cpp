#include "kernels/process_domain/domain_line.h"

#include <chrono>
#include <utility>

namespace callboard::kernels {

namespace {

// A device answers between two kernels, whatever they take; when it is gone, the socket says so.
constexpr std::chrono::minutes kPatience{30};

}  // namespace

Result<DomainSocket::Received> DomainLine::next() {
  CALLBOARD_ASSIGN(auto received, socket_.receive(kNever));
  if (!received) return fail(ErrorCode::kInternal, "a wait without an end has ended");
  std::lock_guard lock(mutex_);
  listening_ = true;
  return std::move(*received);
}

Status DomainLine::answer(const DomainMessage& message) {
  std::lock_guard lock(mutex_);
  listening_ = false;
  return socket_.send(message, after(Clock::now(), kPatience));
}

Result<DomainSocket::Received> DomainLine::ask(const DomainMessage& question) {
  std::lock_guard lock(mutex_);
  if (!listening_) return fail(ErrorCode::kNotReady, "the device listens during calls only");
  CALLBOARD_TRY(socket_.send(question, after(Clock::now(), kPatience)));
  CALLBOARD_ASSIGN(auto received, socket_.receive(after(Clock::now(), kPatience)));
  if (received) return std::move(*received);
  listening_ = false;  // its answer may still come, and would be taken for another one's
  return fail(ErrorCode::kDeadlineExceeded, "the device does not answer");
}

}  // namespace callboard::kernels
