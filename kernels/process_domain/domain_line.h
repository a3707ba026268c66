// The child's end of the conversation with its device.
#pragma once

#include <mutex>
#include <optional>

#include "kernels/process_domain/domain_socket.h"

namespace callboard::kernels {

/// The device listens from the moment it has said something until the child has answered. Meanwhile any thread may ask.
class DomainLine {
 public:
  explicit DomainLine(DomainSocket socket) : socket_(std::move(socket)) {}

  /// What the device says next; waits as long as it takes. kPeerLost when the device is gone.
  Result<DomainSocket::Received> next();
  /// The answer; from here on nobody asks.
  Status answer(const DomainMessage& message);
  /// Any thread, also one with the GIL: it is this process's own, and the device, which answers, never takes it.
  /// kNotReady while the device does not listen; kDeadlineExceeded, kPeerLost.
  Result<DomainSocket::Received> ask(const DomainMessage& question);

 private:
  std::mutex mutex_;  // the socket, while the device listens; the main thread alone reads in between
  DomainSocket socket_;
  bool listening_ = false;  // guarded by mutex_
};

}  // namespace callboard::kernels
